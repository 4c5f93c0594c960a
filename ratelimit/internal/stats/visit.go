package stats

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// RuleSeries has the counters of one rule, or of one limit in a rate_limits list, and their clean key. For a rule, the
// key is the part of the metric names between "ratelimit.service.rate_limit." and the counter's name. For a limit,
// CutLabel splits the key.
type RuleSeries struct {
	Key string
	*Rule
}

// StatName returns the metric name of the counter that Stat(i) returns; empty if that counter is not shown.
func (s RuleSeries) StatName(i int) string { return statName(s.Key, i) }

// RulePrefix begins the names of all statistics of rules.
const RulePrefix = "ratelimit.service.rate_limit."

// RuleStats are the names of a rule's counters, in the order of Rule's fields.
var RuleStats = [...]string{"total_hits", "over_limit", "near_limit", "within_limit", "shadow_mode",
	"over_limit_with_local_cache"}

// Stat returns the counter that RuleStats[i] names.
func (r *Rule) Stat(i int) *Counter { return r.counter(i) }

// Hit reports whether one of the counters is not 0.
func (r *Rule) Hit() bool {
	for i := range RuleStats {
		if r.counter(i).Value() != 0 {
			return true
		}
	}
	return false
}

// Rules returns the rules that were hit, in no particular order. Each RuleSeries takes 24 bytes and refers to the live
// counters. If GroupRules was called, Rules also returns each group that has forgotten rules, with the counts of these
// rules. The caller may change the list.
func (r *Registry) Rules() []RuleSeries { return r.visit(false) }

// Limits is Rules for the limits in rate_limits lists.
func (r *Registry) Limits() []RuleSeries { return r.visit(true) }

func (r *Registry) visit(limits bool) []RuleSeries {
	r.mu.Lock()
	ruling := r.ruling
	lost := make([]RuleSeries, 0, len(r.lost))
	for group, rule := range r.lost {
		if _, _, limit := CutLabel(group); limit == limits {
			lost = append(lost, RuleSeries{group, rule})
		}
	}
	r.mu.Unlock()
	n := 0
	for _, s := range ruling {
		if s.isLimit() == limits && s.Hit() {
			n++
		}
	}
	hit := make([]RuleSeries, 0, n+len(lost))
	for _, s := range ruling {
		if len(hit) < n && s.isLimit() == limits && s.Hit() {
			hit = append(hit, RuleSeries{s.key, &s.Rule})
		}
	}
	return append(hit, lost...)
}

// GroupRules makes the registry keep the counts of forgotten rules, for callers that add up the rules of a group.
// Without these counts, the sum would decrease when a rule is forgotten, and monitoring would assume a restart. The
// counts are kept for as long as another rule of the group exists. The function group returns the name of the group for
// a rule's key. GroupRules must be called before Run.
func (r *Registry) GroupRules(group func(key string) string) { r.group = group }

// keepLost adds the counts of a forgotten rule to the counts of the rule's group. The caller holds r.mu.
func (r *Registry) keepLost(s *ruleSeries) {
	if r.group == nil || !s.Hit() {
		return
	}
	name := r.groupOf(s)
	if r.lost[name] == nil {
		if r.lost == nil {
			r.lost = map[string]*Rule{}
		}
		r.lost[name] = &Rule{}
	}
	for i := range RuleStats {
		r.lost[name].counter(i).Add(s.counter(i).Value())
	}
}

// dropLost drops the counts of groups that have no rules left; a group that gets a rule later starts from 0. The caller
// holds r.mu.
func (r *Registry) dropLost() {
	if len(r.lost) == 0 {
		return
	}
	alive := make(map[string]bool, len(r.lost))
	for _, s := range r.ruling {
		if name := r.groupOf(s); r.lost[name] != nil {
			alive[name] = true
		}
	}
	for name := range r.lost {
		if !alive[name] {
			delete(r.lost, name)
		}
	}
}

// Named calls f with every counter and gauge that does not belong to a rule, and with its present value. The series are
// sorted by name and tags, and include those whose value is 0.
func (r *Registry) Named(f func(s Series, kind Kind, value float64)) {
	list, _ := r.present()
	list = slices.SortedFunc(slices.Values(list), func(a, b *series) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.suffix, b.suffix))
	})
	for _, s := range list {
		value := float64(s.present())
		if s.kind == KindCounter {
			value = float64(s.value()) // unlike an int64, correct for any value of a counter
		}
		f(s.Series, s.kind, value)
	}
}

// Timers returns the series of all timers made so far.
func (r *Registry) Timers() []Series {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Series, 0, len(r.timers))
	for _, t := range r.timers {
		all = append(all, t.Series)
	}
	return all
}

// ExtraTags returns the tags of EXTRA_TAGS, sorted and cleaned.
func (r *Registry) ExtraTags() []Tag { return slices.Clone(r.extra) }

// OnTime makes the registry call f with every timer value, as well as pass it to the sink. The call comes within two
// tenths of a second, always from the same goroutine. rate is as in Sink.Time. OnTime must be called before Run.
func (r *Registry) OnTime(f func(s Series, d time.Duration, rate float64)) {
	r.onTime = f
	r.timing.Store(true)
}

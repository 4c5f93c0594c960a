package stats

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// RuleSeries has the counters of one rule, or of one limit of a list, with the clean key. For a rule it is the part of
// their names between "ratelimit.service.rate_limit." and the statistic; CutLabel splits a limit's.
type RuleSeries struct {
	Key string
	*Rule
}

// StatName returns the name of the counter Stat(i); empty where it is not shown.
func (s RuleSeries) StatName(i int) string { return statName(s.Key, i) }

// RulePrefix begins the names of all statistics of rules.
const RulePrefix = "ratelimit.service.rate_limit."

// RuleStats are the names of a rule's statistics, in the order of Rule's fields.
var RuleStats = [...]string{"total_hits", "over_limit", "near_limit", "within_limit", "shadow_mode",
	"over_limit_with_local_cache"}

// Stat returns the counter of RuleStats[i].
func (r *Rule) Stat(i int) *Counter { return r.counter(i) }

// Hit reports whether anything was ever counted.
func (r *Rule) Hit() bool {
	for i := range RuleStats {
		if r.counter(i).Value() != 0 {
			return true
		}
	}
	return false
}

// Rules returns the rules that were hit, in no order: 24 bytes each, with the live counters. After GroupRules it also
// returns the groups, with the counts of their forgotten rules. The caller owns the list.
func (r *Registry) Rules() []RuleSeries { return r.visit(false) }

// Limits is Rules for the limits of lists.
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

// GroupRules is for callers that add up the rules of a group; group returns the group's name for a key. A forgotten
// rule would make such a sum smaller, and a counter that decreases is read as a reset. So the counts of forgotten rules
// are kept for as long as the group has another rule. GroupRules must be called before Run.
func (r *Registry) GroupRules(group func(key string) string) { r.group = group }

// keepLost adds the counts of a forgotten rule to its group. r.mu is held.
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

// dropLost drops the groups without a rule; a rule that joins one later starts from 0. r.mu is held.
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

// Named calls f with every counter and gauge that is not a rule's and its present value, sorted by name and tags,
// including zero values.
func (r *Registry) Named(f func(s Series, kind Kind, value float64)) {
	list, _ := r.present()
	list = slices.SortedFunc(slices.Values(list), func(a, b *series) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.suffix, b.suffix))
	})
	for _, s := range list {
		value := float64(s.present())
		if s.kind == KindCounter {
			value = float64(s.value()) // also correct above the greatest int64
		}
		f(s.Series, s.kind, value)
	}
}

// Timers returns the timers made so far.
func (r *Registry) Timers() []Series {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Series, 0, len(r.timers))
	for _, t := range r.timers {
		all = append(all, t.Series)
	}
	return all
}

// ExtraTags returns EXTRA_TAGS, sorted and clean.
func (r *Registry) ExtraTags() []Tag { return slices.Clone(r.extra) }

// OnTime has f called with every timer value, in addition to the sink, within two tenths of a second, from one
// goroutine. rate is as in Sink.Time. It must be called before Run.
func (r *Registry) OnTime(f func(s Series, d time.Duration, rate float64)) {
	r.onTime = f
	r.timing.Store(true)
}

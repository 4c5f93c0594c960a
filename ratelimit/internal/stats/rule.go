package stats

import (
	"bytes"
	"slices"
	"strings"
)

// Rule has the counters of one rule or, if the metric names contain values of requests, of one such value.
// docs/statistics.md#what-a-hit-counts-as says what each counter counts.
type Rule struct {
	TotalHits, OverLimit, NearLimit, WithinLimit, ShadowMode, OverLimitWithLocalCache Counter
}

func (r *Rule) counter(i int) *Counter {
	return [...]*Counter{&r.TotalHits, &r.OverLimit, &r.NearLimit, &r.WithinLimit, &r.ShadowMode,
		&r.OverLimitWithLocalCache}[i]
}

// holders says whether something still needs a series. It is guarded by Registry.mu.
type holders struct {
	refs  int32 // number of dynamic keys that map to the series
	free  uint8 // number of flushes since nothing needs the series
	fixed bool  // needed by the program itself, or by rules in force or being compiled
}

// sum returns a number that changes whenever one of the counters changes.
func (r *Rule) sum() uint64 {
	var n uint64
	for i := range RuleStats {
		n += r.counter(i).Value()
	}
	return n
}

// ruleSeries is a Rule in the registry. There may be 100,000, most of which are never hit, so it is small.
type ruleSeries struct {
	Rule
	key  string                  // the clean key
	last *[len(RuleStats)]uint64 // values passed to the sink so far; nil: all 0; only the flusher uses it

	holders
}

// Rule returns the counters of the rule with a key such as "domain.key_value.key2", which Rule cleans. Equal keys have
// the same Rule, across reloads too, until a call of Retain leaves it out.
func (r *Registry) Rule(key string) *Rule {
	clean := string(appendKey(nil, []byte(key)))
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.ruleLocked(clean)
	s.fixed = true
	return &s.Rule
}

func (r *Registry) ruleLocked(clean string) *ruleSeries {
	s, ok := r.rules[clean]
	if !ok {
		s = &ruleSeries{key: clean}
		r.rules[clean] = s
		r.ruling = append(r.ruling, s)
	}
	s.free = 0
	return s
}

// Retain is called after a reload with the Rules that the new configuration uses. All other Rules are flushed a few
// times more, since requests that are still running may add to them, and then forgotten.
func (r *Registry) Retain(inUse []*Rule) {
	held := make(map[*Rule]struct{}, len(inUse))
	for _, h := range inUse {
		held[h] = struct{}{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.ruling {
		_, s.fixed = held[&s.Rule]
	}
}

// forgetFlushes is the number of flushes for which a series that is no longer needed is kept, because a running request
// may still use it.
const forgetFlushes = 3

// gone is called once per flush, and reports whether the series may be dropped.
func (h *holders) gone() bool {
	if h.fixed || h.refs > 0 {
		h.free = 0
		return false
	}
	h.free++
	return h.free > forgetFlushes
}

// forget drops the series that are no longer needed. The flusher calls it after each flush. It replaces the lists
// instead of changing them, because other goroutines may be reading them.
func (r *Registry) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.rules) + len(r.named)
	for _, s := range r.ruling {
		if s.gone() {
			delete(r.rules, s.key)
			r.keepLost(s)
		}
	}
	for _, s := range r.list {
		if s.gone() {
			delete(r.named, s.id)
		}
	}
	if len(r.rules)+len(r.named) == before {
		return
	}
	r.ruling = slices.DeleteFunc(slices.Clone(r.ruling), func(s *ruleSeries) bool { return s.free > forgetFlushes })
	r.list = slices.DeleteFunc(slices.Clone(r.list), func(s *series) bool { return s.free > forgetFlushes })
	r.dropLost()
}

// Each limit of a rate_limits list has a Rule of its own, in addition to the Rule of its entry. Of the counters in this
// Rule, only those in LimitStats are shown. Its key is the key of the entry's rule and the limit's label, separated by
// labelMark, a byte that no clean key contains.

// LimitPrefix begins the names of all statistics of limits in rate_limits lists.
const LimitPrefix = "ratelimit.service.limit."

// LimitStats are the statistics that a limit in a rate_limits list has, in the order of RuleStats.
var LimitStats = []string{"over_limit", "near_limit", "shadow_mode"}

const labelMark = 0

// AppendLabel appends the label of a limit to the key of its entry's rule; DynamicLimit takes the result.
func AppendLabel(dst []byte, label string) []byte { return append(append(dst, labelMark), label...) }

// CleanLabel returns a limit's label in the form that metric names have: cleaned as keys are, with `_` instead of dots,
// which separate the parts of a name.
func CleanLabel(label string) string {
	return strings.ReplaceAll(string(appendKey(nil, []byte(label))), ".", "_")
}

// CutLabel splits the key of a limit in a rate_limits list into its rule's key and its label. ok is false for the key
// of a rule itself.
func CutLabel(key string) (rule, label string, ok bool) {
	return strings.Cut(key, string(rune(labelMark)))
}

// Limit returns the counters of one limit in a rate_limits list. key is the key of the entry's rule, which Limit
// cleans; label must be clean. The result is kept as long as a result of the method Rule.
func (r *Registry) Limit(key, label string) *Rule {
	clean := string(AppendLabel(appendKey(make([]byte, 0, len(key)+1+len(label)), []byte(key)), label))
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.ruleLocked(clean)
	s.fixed = true
	return &s.Rule
}

// DynamicLimit is DynamicRule for a limit in a rate_limits list. key is the rule's key with the limit's label, from
// AppendLabel.
func (r *Registry) DynamicLimit(key []byte) *Rule { return r.dyn.find(key, limitKeys) }

// cleanLimit takes the key of a limit from AppendLabel and returns it with the part before the label in the form that
// metric names have (appendKey). The label has that form already.
func cleanLimit(key []byte) string {
	at := bytes.LastIndexByte(key, labelMark) // the last mark: values of requests may have the byte, labels do not
	return string(append(appendKey(nil, key[:at]), key[at:]...))
}

// isLimit reports whether the series is that of a limit in a rate_limits list.
func (s *ruleSeries) isLimit() bool { return strings.IndexByte(s.key, labelMark) >= 0 }

// statName returns the name of the counter RuleStats[i] of a series with a clean key; empty if that counter is not
// shown.
func statName(key string, i int) string {
	key, label, limit := CutLabel(key)
	switch {
	case !limit:
		return RulePrefix + key + "." + RuleStats[i]
	case slices.Contains(LimitStats, RuleStats[i]):
		return LimitPrefix + key + "." + label + "." + RuleStats[i]
	}
	return ""
}

// groupOf returns the name of the group to which a series belongs; GroupRules defines the groups. A limit in a
// rate_limits list belongs to the group that consists of its rule's group and its label.
func (r *Registry) groupOf(s *ruleSeries) string {
	key, label, limit := CutLabel(s.key)
	if !limit {
		return r.group(key)
	}
	return string(AppendLabel([]byte(r.group(key)), label))
}

package stats

import (
	"bytes"
	"slices"
	"strings"
)

// Rule has the counters of one rule, or of one runtime value of it; docs/statistics.md#what-a-hit-counts-as says what
// each of them counts.
type Rule struct {
	TotalHits, OverLimit, NearLimit, WithinLimit, ShadowMode, OverLimitWithLocalCache Counter
}

func (r *Rule) counter(i int) *Counter {
	return [...]*Counter{&r.TotalHits, &r.OverLimit, &r.NearLimit, &r.WithinLimit, &r.ShadowMode,
		&r.OverLimitWithLocalCache}[i]
}

// holders says why a series is still needed. Guarded by Registry.mu.
type holders struct {
	refs  int32 // dynamic keys that map to the series
	free  uint8 // flushes since the series is not needed
	fixed bool  // rules in force or being compiled, or the program itself, need it
}

// sum changes whenever one of the counters changes.
func (r *Rule) sum() uint64 {
	var n uint64
	for i := range RuleStats {
		n += r.counter(i).Value()
	}
	return n
}

// ruleSeries is a Rule with its place in the registry. There may be one for each of 100,000 rules, most of which are
// never hit.
type ruleSeries struct {
	Rule
	key  string                  // clean
	last *[len(RuleStats)]uint64 // flushed so far, nil for nothing; used by the flusher only

	holders
}

// Rule returns the counters of a rule key, "domain.key_value.key2", which it cleans. Equal keys give equal handles,
// across reloads too, until Retain leaves the handle out.
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

// Retain says, after a reload, which handles of Rule the rules in force use. The other handles are flushed for as long
// as a running request may still add to them, and then forgotten.
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

// forgetFlushes is how many flushes an unused series is kept, since a running request may still use it.
const forgetFlushes = 3

// gone counts one more flush and reports whether the series may be dropped.
func (h *holders) gone() bool {
	if h.fixed || h.refs > 0 {
		h.free = 0
		return false
	}
	h.free++
	return h.free > forgetFlushes
}

// forget drops unused series. The flusher calls it after each flush. The lists are replaced, not changed, since readers
// may use them.
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

// Each limit of a list has counters in addition to the counters of its entry's rule: a Rule of which only LimitStats
// are shown. Its key is the rule's key and the limit's label, separated by a byte that no clean key has.

// LimitPrefix begins the names of all statistics of limits of lists.
const LimitPrefix = "ratelimit.service.limit."

// LimitStats are the statistics of a limit of a list, in the order of RuleStats.
var LimitStats = []string{"over_limit", "near_limit", "shadow_mode"}

const labelMark = 0

// AppendLabel appends the label of a limit to the key of its rule, for DynamicLimit.
func AppendLabel(dst []byte, label string) []byte { return append(append(dst, labelMark), label...) }

// CleanLabel returns a label as metric names have it: cleaned as keys are, and without dots, which separate the parts
// of names.
func CleanLabel(label string) string {
	return strings.ReplaceAll(string(appendKey(nil, []byte(label))), ".", "_")
}

// CutLabel splits a series' key into the rule's key and the label; ok is false for the key of a rule itself.
func CutLabel(key string) (rule, label string, ok bool) {
	return strings.Cut(key, string(rune(labelMark)))
}

// Limit returns the counters of one limit of a list. It cleans key, the key of the rule; label must be clean. Handles
// live as long as handles of Rule.
func (r *Registry) Limit(key, label string) *Rule {
	clean := string(AppendLabel(appendKey(make([]byte, 0, len(key)+1+len(label)), []byte(key)), label))
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.ruleLocked(clean)
	s.fixed = true
	return &s.Rule
}

// DynamicLimit is DynamicRule for a key that ends in a label, as AppendLabel appends it.
func (r *Registry) DynamicLimit(key []byte) *Rule { return r.dyn.find(key, limitKeys) }

// cleanLimit cleans a key with a label.
func cleanLimit(key []byte) string {
	at := bytes.LastIndexByte(key, labelMark) // values of requests may have the mark, labels do not
	return string(append(appendKey(nil, key[:at]), key[at:]...))
}

// isLimit reports whether the series is of a limit of a list.
func (s *ruleSeries) isLimit() bool { return strings.IndexByte(s.key, labelMark) >= 0 }

// statName returns the name of the statistic RuleStats[i] of a clean key; empty where it is not shown.
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

// groupOf returns the group of a series; limits are grouped by their rule's group and their label.
func (r *Registry) groupOf(s *ruleSeries) string {
	key, label, limit := CutLabel(s.key)
	if !limit {
		return r.group(key)
	}
	return string(AppendLabel([]byte(r.group(key)), label))
}

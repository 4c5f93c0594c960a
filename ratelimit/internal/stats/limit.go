package stats

import (
	"bytes"
	"slices"
	"strings"
)

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

// cutLabel splits a series' key into the rule's key and the label; ok is false for the key of a rule itself.
func cutLabel(key string) (rule, label string, ok bool) {
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

// statName returns the name of the statistic RuleStats[i]; empty where it is not shown.
func (s *ruleSeries) statName(i int) string {
	key, label, limit := cutLabel(s.key)
	switch {
	case !limit:
		return RulePrefix + key + "." + RuleStats[i]
	case slices.Contains(LimitStats, RuleStats[i]):
		return LimitPrefix + key + "." + label + "." + RuleStats[i]
	}
	return ""
}

// LimitSeries has the counters of one limit of a list, the key of its rule and its label, both clean.
type LimitSeries struct {
	Key, Label string
	*Rule
}

// Limits returns the limits of lists that were hit and, after GroupRules, the groups, as Rules does.
func (r *Registry) Limits() []LimitSeries {
	var out []LimitSeries
	for _, s := range r.hit(true) {
		key, label, _ := cutLabel(s.Key)
		out = append(out, LimitSeries{key, label, s.Rule})
	}
	return out
}

// groupOf returns the group of a series; limits are grouped by their rule's group and their label.
func (r *Registry) groupOf(s *ruleSeries) string {
	key, label, limit := cutLabel(s.key)
	if !limit {
		return r.group(key)
	}
	return string(AppendLabel([]byte(r.group(key)), label))
}

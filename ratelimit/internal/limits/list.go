package limits

import (
	"iter"
	"slices"
	"strconv"
	"strings"

	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/stats"
)

// listLimit has the data that only limits of a rate_limits list need.
type listLimit struct {
	index uint8       // the limit's index in the list
	label string      // the label of the limit's statistics
	stats *stats.Rule // nil if the metric key contains values of the request
}

// Limits returns the rule and its Further rules, in order; for a nil rule, none.
func (r *Rule) Limits() iter.Seq[*Rule] {
	return func(yield func(*Rule) bool) {
		if r == nil || !yield(r) {
			return
		}
		for _, further := range r.Further {
			if !yield(further) {
				return
			}
		}
	}
}

// anyReplaces reports whether a limit of r's list, or r itself, replaces the rules whose name has the number id. r is
// not nil.
func (r *Rule) anyReplaces(id uint32) bool {
	for limit := range r.Limits() {
		if limit.ReplacesID(id) {
			return true
		}
	}
	return false
}

// LimitStats returns the counters of one limit of a rate_limits list; only the counters in stats.LimitStats are shown.
// It returns nil if the rule is not in a list. It also returns nil if the metric key contains values of the request;
// AppendLimitKey then makes the key.
func (r *Rule) LimitStats() *stats.Rule {
	if !r.Listed() {
		return nil
	}
	return r.levels.list.stats
}

// Listed reports whether the rule is one limit of a rate_limits list.
func (r *Rule) Listed() bool { return r.rare().list != nil }

// AppendLimitKey appends the key that stats.Registry.DynamicLimit takes for a limit of a rate_limits list: its metric
// key, as AppendMetricKey makes it, and its label.
func (r *Rule) AppendLimitKey(dst []byte, domain string, entries []rls.Entry) []byte {
	dst = r.AppendMetricKey(dst, domain, entries)
	return stats.AppendLabel(dst, r.levels.list.label)
}

// label names the limit in statistics: by its configured name or, without a name, by its numbers. A number is added if
// another limit of the list has the label already.
func (l *Limit) label(taken []string) string {
	var room [48]byte
	text := append(room[:0], l.Name...)
	if l.Name == "" {
		text = append(strconv.AppendUint(text, uint64(l.PerUnit), 10), "_per_"...)
		if l.Multiplier > 1 {
			text = append(strconv.AppendUint(text, uint64(l.Multiplier), 10), '_')
		}
		text = append(text, strings.ToLower(l.Unit)...)
	}
	clean := stats.CleanLabel(string(text))
	label := clean
	for n := 2; slices.Contains(taken, label); n++ {
		label = clean + "_" + strconv.Itoa(n)
	}
	return label
}

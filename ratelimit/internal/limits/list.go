package limits

import (
	"iter"
	"slices"
	"strconv"
	"strings"

	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/stats"
)

// listLimit is what belongs to one limit of a rate_limits list.
type listLimit struct {
	index uint8       // in the list, from 0
	label string      // of its statistics
	stats *stats.Rule // nil when the metric key holds values of the request
}

// Limits are the rule and those of Further, in order; none of nil.
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

// anyReplaces reports whether one of the rule's limits replaces those of a name; not of nil.
func (r *Rule) anyReplaces(id uint32) bool {
	for limit := range r.Limits() {
		if limit.ReplacesID(id) {
			return true
		}
	}
	return false
}

// LimitStats is the counters of one limit of a rate_limits list, of which those of stats.LimitStats are shown. It is
// nil for a limit that stands alone, and when the metric key holds values of the request: AppendLimitKey names it then.
func (r *Rule) LimitStats() *stats.Rule {
	if !r.Listed() {
		return nil
	}
	return r.levels.list.stats
}

// Listed reports whether the rule is one limit of a rate_limits list.
func (r *Rule) Listed() bool { return r.rare().list != nil }

// AppendLimitKey appends what stats.Registry.DynamicLimit takes: the metric key, as of AppendMetricKey, and the label
// of a limit of a rate_limits list.
func (r *Rule) AppendLimitKey(dst []byte, domain string, entries []rls.Entry) []byte {
	dst = r.AppendMetricKey(dst, domain, entries)
	return stats.AppendLabel(dst, r.levels.list.label)
}

// label names the limit in statistics: by its name, else by what it allows. A label that is taken gets a number.
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

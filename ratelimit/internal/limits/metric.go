package limits

import (
	"slices"
	"strings"

	"gatehouse/ratelimit/internal/rls"
)

// metricPart is a level's part of a rule's metric key: docs/statistics.md#metric-keys.
type metricPart struct {
	text string // ".key", ".key_value" or ".key_prefix"
	with runtimeValue
}

// runtimeValue says whether the request's value follows the text of a part.
type runtimeValue uint8

const (
	noValue       runtimeValue = iota
	valueIfAny                 // _value, or nothing when it is empty
	valueAlways                // _value, also when it is empty
	addressAlways              // _address, as in counter keys
)

// AppendMetricKey appends the metric key, before sanitising, of a rule whose Stats is nil. For an override the key is
// the domain and every entry as key or key_value.
func (r *Rule) AppendMetricKey(dst []byte, domain string, entries []rls.Entry) []byte {
	dst = append(dst, domain...)
	parts := r.rare().metric
	for i := range entries {
		e := &entries[i]
		with := valueIfAny
		if i < len(parts) && parts[i].with == addressAlways {
			dst = append(append(dst, parts[i].text...), '_')
			from := len(dst)
			dst = r.rare().keys[i].appendAddress(dst, e.Value)
			metricAddress(dst[from:])
			continue
		}
		if r.override {
			dst = append(dst, '.')
			dst = append(dst, e.Key...)
		} else {
			if i >= len(parts) {
				break // Find did not return this rule for these entries
			}
			dst = append(dst, parts[i].text...)
			with = parts[i].with
		}
		if with == valueAlways || with == valueIfAny && e.Value != "" {
			dst = append(dst, '_')
			dst = append(dst, e.Value...)
		}
	}
	return dst
}

// appendAnyMetricKey is AppendMetricKey for rules with a fixed key, too.
func (r *Rule) appendAnyMetricKey(dst []byte, domain string, entries []rls.Entry) []byte {
	if r.rare().metric == nil && r.step != nil {
		_, fixed := metricParts(domain, r.path(), r.step.Detailed)
		return append(dst, fixed...)
	}
	return r.AppendMetricKey(dst, domain, entries)
}

// path returns the steps that lead to the rule; the last one is the rule's own.
func (r *Rule) path() (path []*step) {
	for s := r.step; s.parent != nil; s = s.parent {
		path = append(path, s)
	}
	slices.Reverse(path)
	return path
}

// metricParts lays out the metric key of a rule at the end of path. If no part depends on the request, parts is nil and
// fixed is the whole key.
func metricParts(domain string, path []*step, detailed bool) (parts []metricPart, fixed string) {
	shared := false
	for _, s := range path {
		shared = shared || s.Share
	}
	parts = make([]metricPart, len(path))
	runtime := false
	for i, s := range path {
		parts[i] = s.metricPart(detailed, shared)
		runtime = runtime || parts[i].with != noValue
	}
	if runtime {
		return parts, ""
	}
	var b strings.Builder
	b.WriteString(domain)
	for _, p := range parts {
		b.WriteString(p.text)
	}
	return nil, b.String()
}

func (s *step) metricPart(detailed, someShared bool) metricPart {
	key := "." + s.key
	switch {
	case s.match != nil:
		return s.matchMetricPart(detailed)
	case s.Share:
		return metricPart{key + "_" + s.pattern.prefix, noValue}
	case s.value != "" && s.pattern == nil:
		// An exact entry is reached only with its own value.
		return metricPart{key + "_" + s.literal(), noValue}
	case detailed && someShared:
		return metricPart{key, valueIfAny}
	case detailed:
		return metricPart{key, valueAlways}
	case s.pattern != nil && s.ValueToMetric:
		return metricPart{key, valueAlways}
	case s.pattern != nil:
		return metricPart{key + "_" + s.value, noValue}
	case s.ValueToMetric:
		return metricPart{key, valueIfAny}
	}
	return metricPart{key, noValue}
}

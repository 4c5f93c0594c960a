package limits

import (
	"slices"
	"strings"

	"gatehouse/ratelimit/internal/rls"
)

// metricPart is the part of a rule's metric key that one entry of the rule's path adds; docs/statistics.md#metric-keys
// describes metric keys.
type metricPart struct {
	text string // ".key", ".key_value" or ".key_prefix"
	with runtimeValue
}

// runtimeValue says whether the value of the request's entry follows the text of a metricPart.
type runtimeValue uint8

const (
	noValue       runtimeValue = iota
	valueIfAny                 // followed by _value; by nothing if the value is empty
	valueAlways                // followed by _value, even if the value is empty
	addressAlways              // followed by _address, cut as in counter keys
)

// AppendMetricKey appends the key, not yet sanitised, under which statistics count a rule whose Stats is nil. For an
// override, a limit that came with the request, the key is the domain and every entry as key or key_value.
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
				break // Find has not returned this rule for these entries
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

// appendAnyMetricKey is AppendMetricKey also for rules that have Stats, whose key is the same for all requests.
func (r *Rule) appendAnyMetricKey(dst []byte, domain string, entries []rls.Entry) []byte {
	if r.rare().metric == nil && r.step != nil {
		_, fixed := metricParts(domain, r.path(), r.step.Detailed)
		return append(dst, fixed...)
	}
	return r.AppendMetricKey(dst, domain, entries)
}

// path returns the steps that lead to the rule; the last step is the rule's own.
func (r *Rule) path() (path []*step) {
	for s := r.step; s.parent != nil; s = s.parent {
		path = append(path, s)
	}
	slices.Reverse(path)
	return path
}

// metricParts returns the parts of the metric key of a rule at the end of path. If no part depends on the request,
// parts is nil and fixed is the whole key.
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
		// a request reaches an exact entry only with the entry's value
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

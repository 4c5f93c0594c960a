package metrics

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// This file writes metrics in the text format of Prometheus 0.0.4, with names as OpenTelemetry's compatibility
// specification defines them: dots become underscores, then the unit is appended and, for a counter, _total. The
// resource becomes the series target_info.

// appendExposition appends all metrics, sorted by name, each once with its type. If two instruments have the same name,
// it shows only the first.
func appendExposition(b []byte, all *metricdata.ResourceMetrics) []byte {
	b = append(b, "# HELP target_info What this process is.\n# TYPE target_info gauge\n"...)
	if all.Resource != nil {
		b = appendSample(b, "target_info", all.Resource.Set(), "", 1)
	}
	var metrics []metricdata.Metrics
	for _, scope := range all.ScopeMetrics {
		metrics = append(metrics, scope.Metrics...)
	}
	slices.SortStableFunc(metrics, func(a, b metricdata.Metrics) int { return cmp.Compare(a.Name, b.Name) })
	for i, m := range metrics {
		if i > 0 && m.Name == metrics[i-1].Name {
			continue
		}
		switch d := m.Data.(type) {
		case metricdata.Sum[int64]:
			b = appendPoints(b, m, d.DataPoints, d.IsMonotonic)
		case metricdata.Sum[float64]:
			b = appendPoints(b, m, d.DataPoints, d.IsMonotonic)
		case metricdata.Gauge[int64]:
			b = appendPoints(b, m, d.DataPoints, false)
		case metricdata.Gauge[float64]:
			b = appendPoints(b, m, d.DataPoints, false)
		case metricdata.Histogram[float64]:
			b = appendHistograms(b, m, d.DataPoints)
		}
	}
	return b
}

// seriesName returns the name of a metric in the text format. A final _count is reserved for histograms, so
// go.goroutine.count becomes go_goroutines, as in Prometheus' own libraries.
func seriesName(m metricdata.Metrics, counter bool) string {
	name := labelName(m.Name)
	if of, ok := strings.CutSuffix(name, "_count"); ok {
		name = of + "s"
	}
	if suffix := map[string]string{"s": "_seconds", "By": "_bytes", "1": "_ratio"}[m.Unit]; suffix != "" &&
		!strings.HasSuffix(name, suffix) {
		name += suffix
	}
	if counter && !strings.HasSuffix(name, "_total") {
		name += "_total"
	}
	return name
}

func appendHead(b []byte, name, help, kind string) []byte {
	b = append(append(append(b, "# HELP "...), name...), ' ')
	b = append(b, strings.NewReplacer(`\`, `\\`, "\n", `\n`).Replace(help)...)
	b = append(append(append(b, "\n# TYPE "...), name...), ' ')
	return append(append(b, kind...), '\n')
}

func appendPoints[N int64 | float64](b []byte, m metricdata.Metrics, points []metricdata.DataPoint[N],
	counter bool) []byte {
	name, kind := seriesName(m, counter), "gauge"
	if counter {
		kind = "counter"
	}
	b = appendHead(b, name, m.Description, kind)
	for _, p := range points {
		b = appendSample(b, name, &p.Attributes, "", float64(p.Value))
	}
	return b
}

func appendHistograms(b []byte, m metricdata.Metrics, points []metricdata.HistogramDataPoint[float64]) []byte {
	name := seriesName(m, false)
	b = appendHead(b, name, m.Description, "histogram")
	for _, p := range points {
		var n uint64
		for i, count := range p.BucketCounts {
			le := math.Inf(1)
			if i < len(p.Bounds) {
				le = p.Bounds[i]
			}
			n += count
			b = appendSample(b, name+"_bucket", &p.Attributes, number(le), float64(n))
		}
		b = appendSample(b, name+"_sum", &p.Attributes, "", p.Sum)
		b = appendSample(b, name+"_count", &p.Attributes, "", float64(p.Count))
	}
	return b
}

// appendSample appends one line. le is the upper bound of a histogram's bucket; "" for any other line.
func appendSample(b []byte, name string, set *attribute.Set, le string, value float64) []byte {
	b = append(b, name...)
	sep := byte('{')
	label := func(name, value string) {
		b = append(append(append(b, sep), name...), '=', '"')
		b = append(append(b, escaper.Replace(strings.ToValidUTF8(value, "\uFFFD"))...), '"')
		sep = ','
	}
	for i := set.Iter(); i.Next(); {
		kv := i.Attribute()
		label(labelName(string(kv.Key)), kv.Value.String())
	}
	if le != "" {
		label("le", le)
	}
	if sep == ',' {
		b = append(b, '}')
	}
	return append(append(append(b, ' '), number(value)...), '\n')
}

var escaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func number(v float64) string {
	if math.IsInf(v, 1) {
		return "+Inf"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// labelName replaces the characters of s that are not letters, digits or underscores, so that it is a valid name.
func labelName(s string) string {
	s = strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' {
			return r
		}
		return '_'
	}, s)
	if s == "" || s[0] <= '9' {
		s = "_" + s
	}
	return s
}

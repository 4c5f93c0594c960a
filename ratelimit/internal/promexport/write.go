package promexport

import (
	"bufio"
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"gatehouse/ratelimit/internal/stats"
)

// kind is the type of a metric.
type kind = dto.MetricType

const (
	counter   = dto.MetricType_COUNTER
	gauge     = dto.MetricType_GAUGE
	histogram = dto.MetricType_HISTOGRAM
	summary   = dto.MetricType_SUMMARY
	taken     = dto.MetricType_UNTYPED // the name belongs to one of the metrics of Go or of the process
)

// kinds are the metric types of counters and gauges.
var kinds = map[stats.Kind]kind{stats.KindCounter: counter, stats.KindGauge: gauge}

// writer writes the page for one scrape. It refuses to write a name with two types, because Prometheus would not read a
// page with two types of one name.
type writer struct {
	w     *bufio.Writer
	page  *Page
	kinds map[string]kind
	buf   bytes.Buffer
	err   error
}

// claim reports whether a metric with this name may be written with type k. It counts and logs a name that already has
// another type.
func (w *writer) claim(name string, k kind) bool {
	if _, known := w.kinds[name]; !known {
		w.kinds[name] = k
	}
	if w.kinds[name] == k {
		return true
	}
	w.page.conflict.Inc()
	if !w.page.told[name] && len(w.page.told) < 1000 {
		w.page.told[name] = true
		w.page.Log.Warn("pull metrics: two statistics of different types become one metric; only the first is shown",
			"metric", name)
	}
	return false
}

// encode writes a metric family. If first is false, f has more series of the family that was written last.
func (w *writer) encode(f *dto.MetricFamily, first bool) {
	if w.err != nil || len(f.Metric) == 0 {
		return
	}
	w.buf.Reset()
	if _, w.err = expfmt.MetricFamilyToText(&w.buf, f); w.err != nil {
		return
	}
	text := w.buf.Bytes()
	for !first && bytes.HasPrefix(text, []byte("# ")) {
		text = text[bytes.IndexByte(text, '\n')+1:]
	}
	_, w.err = w.w.Write(text)
}

// families gathers series by metric name. Series of a counter with the same labels are added up.
type families map[string]*family

type family struct {
	kind    kind
	help    string
	samples map[string]*sample // by labels
}

type sample struct {
	labels []stats.Tag // sorted by name
	value  float64
}

// of returns the family with the given name, and makes it if it does not exist. It returns nil if the name already has
// another type; adding to a nil family does nothing.
func (fs families) of(w *writer, name string, k kind, help string) *family {
	if !w.claim(name, k) {
		return nil
	}
	f := fs[name]
	if f == nil {
		f = &family{kind: k, help: help, samples: map[string]*sample{}}
		fs[name] = f
	}
	return f
}

// add adds value to the series with the given labels. The family keeps labels; the caller must not change them.
func (f *family) add(labels []stats.Tag, value float64) {
	if f == nil {
		return
	}
	id := identity(labels)
	s := f.samples[id]
	switch {
	case s == nil:
		f.samples[id] = &sample{labels, value}
	case f.kind == gauge: // take the latest value
		s.value = value
	default:
		s.value += value
	}
}

// write writes the families sorted by name, and the series of each sorted by labels.
func (fs families) write(w *writer) {
	for _, name := range slices.Sorted(maps.Keys(fs)) {
		f := fs[name]
		out := &dto.MetricFamily{Name: &name, Type: f.kind.Enum(), Help: &f.help}
		ids := slices.Sorted(maps.Keys(f.samples))
		for i, id := range ids {
			s := f.samples[id]
			m := &dto.Metric{Label: pairs(s.labels)}
			if f.kind == gauge {
				m.Gauge = &dto.Gauge{Value: &s.value}
			} else {
				m.Counter = &dto.Counter{Value: &s.value}
			}
			out.Metric = append(out.Metric, m)
			if len(out.Metric) == chunk {
				w.encode(out, i < chunk)
				out.Metric = out.Metric[:0]
			}
		}
		w.encode(out, len(ids) < chunk)
	}
}

// chunk is the number of series that are turned into lines at a time.
const chunk = 512

// identity returns a text that is equal for equal sets of labels. It separates labels by a zero byte, which no value
// has, because control characters in names have been replaced.
func identity(labels []stats.Tag) string {
	var b strings.Builder
	for _, l := range labels {
		b.WriteString(l.Name)
		b.WriteByte(0)
		b.WriteString(l.Value)
		b.WriteByte(0)
	}
	return b.String()
}

// with returns a metric's own labels together with the labels in extra, which all metrics have. A metric's own label
// wins over an extra label with the same name.
func with(extra []stats.Tag, own ...stats.Tag) []stats.Tag {
	all := own
	for _, t := range extra {
		if !slices.ContainsFunc(own, func(o stats.Tag) bool { return o.Name == t.Name }) {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b stats.Tag) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

func pairs(labels []stats.Tag) []*dto.LabelPair {
	all := make([]*dto.LabelPair, len(labels))
	for i := range labels {
		all[i] = &dto.LabelPair{Name: &labels[i].Name, Value: &labels[i].Value}
	}
	return all
}

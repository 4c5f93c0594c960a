package promexport

import (
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"gatehouse/ratelimit/internal/stats"
)

// times turns timer values into histograms and summaries. The registry passes samples, each of which stands for 1/rate
// events, so the counts and sums are the counts and sums of all events.
type times struct {
	mapping func(stats.Series) (timeMapping, bool)

	mu  sync.Mutex
	all map[string]*timer // by the timer's name; nil for a timer that is not shown
	by  map[string]*timer // by metric and labels
}

// timeMapping says which metric a timer becomes.
type timeMapping struct {
	name, help string
	labels     []stats.Tag
	kind       kind    // histogram or summary
	scale      float64 // factor applied to milliseconds
	buckets    []float64
	summary    prometheus.SummaryOpts
}

type timer struct {
	timeMapping
	counts     []float64 // for each bucket, not cumulative; the last is for values above all buckets
	count, sum float64
	quantiles  prometheus.Summary
}

// observe receives timer values from stats.Registry.OnTime.
func (t *times) observe(s stats.Series, d time.Duration, rate float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := t.of(s); h != nil {
		h.observe(float64(d)/float64(time.Millisecond)*h.scale, 1/rate)
	}
}

// of returns the metric of a timer, and makes the metric if it does not exist. It returns nil if the timer is not
// shown. The caller holds t.mu.
func (t *times) of(s stats.Series) *timer {
	h, known := t.all[s.Name]
	if known {
		return h
	}
	if m, shown := t.mapping(s); shown {
		id := m.name + "\x00" + identity(m.labels)
		if h = t.by[id]; h == nil {
			h = &timer{timeMapping: m, counts: make([]float64, len(m.buckets)+1)}
			if m.kind == summary {
				h.quantiles = prometheus.NewSummary(m.summary)
			}
			t.by[id] = h
		}
	}
	t.all[s.Name] = h
	return h
}

func (h *timer) observe(v, events float64) {
	h.count += events
	h.sum += v * events
	if h.quantiles != nil {
		h.quantiles.Observe(v)
		return
	}
	i, _ := slices.BinarySearch(h.buckets, v) // a value that equals a bucket's bound is in the bucket (le)
	h.counts[i] += events
}

// write writes all timers, including those that have no values yet.
func (t *times) write(w *writer, timers []stats.Series) {
	families := t.families(w, timers)
	for _, name := range slices.Sorted(maps.Keys(families)) {
		w.encode(families[name], true)
	}
}

// families returns the present values, and writes nothing: it holds the lock that the flusher needs, and a client may
// read the page slowly.
func (t *times) families(w *writer, timers []stats.Series) map[string]*dto.MetricFamily {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range timers {
		t.of(s)
	}
	families := map[string]*dto.MetricFamily{}
	for _, id := range slices.Sorted(maps.Keys(t.by)) {
		h := t.by[id]
		if !w.claim(h.name, h.kind) {
			continue
		}
		f := families[h.name]
		if f == nil {
			f = &dto.MetricFamily{Name: &h.name, Help: &h.help, Type: h.kind.Enum()}
			families[h.name] = f
		}
		f.Metric = append(f.Metric, h.metric())
	}
	return families
}

func (h *timer) metric() *dto.Metric {
	m := &dto.Metric{Label: pairs(h.labels)}
	count := uint64(math.Round(h.count))
	if h.quantiles != nil {
		var q dto.Metric
		if h.quantiles.Write(&q) == nil {
			q.Summary.SampleCount, q.Summary.SampleSum = &count, new(h.sum)
			m.Summary = q.Summary
		}
		return m
	}
	m.Histogram = &dto.Histogram{SampleCount: &count, SampleSum: new(h.sum)}
	below := 0.0
	for i := range h.buckets {
		below += h.counts[i]
		n := min(uint64(math.Round(below)), count)
		m.Histogram.Bucket = append(m.Histogram.Bucket, &dto.Bucket{UpperBound: &h.buckets[i], CumulativeCount: &n})
	}
	return m
}

// defaultQuantiles are the quantiles of a timer for which a mapping file sets none.
var defaultQuantiles = map[float64]float64{0.5: 0.05, 0.9: 0.01, 0.99: 0.001}

// callBuckets are the buckets of envoyproxy/ratelimit, from .005 to 10 s, and finer buckets below .005 s, where most
// decisions are.
var callBuckets = append([]float64{.00005, .0001, .00025, .0005, .001, .0025}, prometheus.DefBuckets...)

// storeBuckets begin at 50 µs, where the response times of a nearby store begin.
var storeBuckets = []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}

// timeMapping returns the metric that a timer becomes, by the mapping file or the default mapping.
func (p *Page) timeMapping(s stats.Series) (timeMapping, bool) {
	if p.Mapping != nil {
		return p.Mapping.timer(s)
	}
	seconds := func(name string, buckets []float64, own ...stats.Tag) timeMapping {
		return timeMapping{name: name, help: helpOf(name), kind: histogram, scale: 0.001, buckets: buckets,
			labels: p.labels(s, own...)}
	}
	if method, ok := methodOf(s.Name, ".response_time"); ok {
		m := seconds("ratelimit_service_response_time_seconds", callBuckets,
			stats.Tag{Name: "grpc_method", Value: method})
		if p.Milliseconds { // in milliseconds, the buckets of envoyproxy/ratelimit begin at 5 µs
			m.scale, m.buckets = 1, prometheus.DefBuckets
		}
		return m, true
	}
	if s.Name == "ratelimit.store.response_time" { // not in envoyproxy/ratelimit: always in seconds
		return seconds("ratelimit_store_response_time_seconds", storeBuckets), true
	}
	name := clean(s.Name)
	return timeMapping{name: name, help: helpOf(name), kind: summary, scale: 1, labels: p.labels(s),
		summary: prometheus.SummaryOpts{Objectives: defaultQuantiles}}, true
}

// Package stats counts what the daemon does and passes the metrics to a sink: statsd, plain or tagged, over UDP or TCP,
// JSON lines, or nothing.
//
// It is a base package like rls, since rules resolve their counters when they are compiled; it knows nothing of
// requests, rules or listeners. Names are the replaced service's, which dashboards use. A counter is one atomic number;
// nothing on the request path waits for a sink.
package stats

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Kind distinguishes counters, gauges and timers.
type Kind uint8

// The kinds of a series.
const (
	KindCounter Kind = iota
	KindGauge
	KindTimer
)

// String returns the word that the stdout sink writes.
func (k Kind) String() string { return [...]string{"counter", "gauge", "timer"}[k] }

// Counter only grows. The zero value is ready.
type Counter struct{ n atomic.Uint64 }

// Add adds n.
func (c *Counter) Add(n uint64) {
	if n != 0 {
		c.n.Add(n)
	}
}

// Inc adds one.
func (c *Counter) Inc() { c.n.Add(1) }

// Value returns the total since the program started.
func (c *Counter) Value() uint64 { return c.n.Load() }

// Settings of a Registry; a 0 means the default.
type Settings struct {
	// name:value,name:value put on every metric: `.__name=value` in plain statsd, tags in tagged
	// statsd, labels in pull metrics.
	ExtraTags map[string]string `env:"EXTRA_TAGS"`
	// Series whose names hold values of requests (detailed_metric, value_to_metric, overrides); beyond it they share
	// one series named _overflow.
	MaxDynamicKeys int `env:"STATS_MAX_DYNAMIC_KEYS" envDefault:"10000" min:"1"`
	// Series of domains without rules (domain_not_found); beyond it they share one of the domain _overflow.
	MaxUnknownDomains int `env:"STATS_MAX_UNKNOWN_DOMAINS" envDefault:"1000" min:"1"`
	// A series of either kind is forgotten after this long without a hit.
	DynamicIdle time.Duration `env:"STATS_DYNAMIC_IDLE" envDefault:"10m" min:"1s"`
}

// Options of a Registry. The zero value is ready.
type Options struct {
	Settings
	// Log takes what an operator should know about the sink; nil means slog.Default().
	Log *slog.Logger
}

// Registry holds every series of the program. All methods are safe for concurrent use.
type Registry struct {
	extra       []Tag // sorted, clean; never changes
	extraSuffix string
	idle        time.Duration
	delivered   time.Time // when the sink last took everything; used by the flusher only
	log         *slog.Logger
	dropped     *Counter                             // timer values that did not fit into the sink
	onTime      func(Series, time.Duration, float64) // gets timer values too; never changes after Run

	// timing reports that samples are taken now; all timers read it.
	timing atomic.Bool
	dyn    dynamic

	// mu guards the maps and lists below. It is never held while a sink or a gauge function
	// runs. Lists only grow in place or are replaced, so that a copy of the slice header is a
	// consistent view.
	mu     sync.Mutex
	named  map[string]*series
	list   []*series
	timers []*Timer
	rules  map[string]*ruleSeries // by clean key
	ruling []*ruleSeries
	group  func(key string) string // of GroupRules; nil: no groups
	lost   map[string]*Rule        // by group
	before []func()                // called before each flush and each Each
}

// series is a counter or gauge with a name of its own.
type series struct {
	Series
	id      string // the name with only its own tags, as /stats shows it
	kind    Kind
	counter *Counter      // a counter that is counted here
	total   func() uint64 // a counter that is counted elsewhere
	gauge   func() int64
	last    uint64 // flushed so far; used by the flusher only

	holders
}

// claim marks the series as taken. Two sources of one name are a bug of the program.
func (s *series) claim() {
	if s.fixed {
		panic("stats: " + s.Name + " registered twice")
	}
	s.fixed = true
}

func (s *series) value() uint64 {
	if s.total != nil {
		return s.total()
	}
	return s.counter.Value()
}

// present returns the value of a counter or gauge.
func (s *series) present() int64 {
	if s.kind == KindGauge {
		return s.gauge()
	}
	return int64(s.value())
}

// NewRegistry returns an empty registry with the counters of its own.
func NewRegistry(o Options) *Registry {
	r := &Registry{
		extra: cleanTags(o.ExtraTags),
		idle:  cmp.Or(o.DynamicIdle, 10*time.Minute),
		log:   cmp.Or(o.Log, slog.Default()),
		named: map[string]*series{},
		rules: map[string]*ruleSeries{},
	}
	r.extraSuffix = suffixOf(r.extra)
	r.dropped = r.Counter("ratelimit.stats.timers_dropped")
	reserved := r.Counter("reserved_tag")
	for _, t := range r.extra {
		if reservedTags[t.Name] {
			reserved.Inc()
		}
	}
	r.dyn.open(r, cmp.Or(o.MaxDynamicKeys, 10_000), cmp.Or(o.MaxUnknownDomains, 1000))
	return r
}

// Counter returns the counter with this name and these tags besides the registry's, and makes it at the first call.
func (r *Registry) Counter(name string, tags ...Tag) *Counter {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.addLocked(name, tags, KindCounter)
	if s.counter == nil || s.total != nil {
		s.claim()
	}
	s.fixed = true
	return s.counter
}

// CounterFunc has the registry read a counter that is kept elsewhere. f must be quick, safe for concurrent use, and
// never decrease. A name with the same tags can be given once.
func (r *Registry) CounterFunc(name string, f func() uint64, tags ...Tag) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.addLocked(name, tags, KindCounter)
	s.claim()
	s.total = f
}

// GaugeFunc has the registry read a gauge at each flush. f must be quick and safe for concurrent
// use. A name with the same tags can be given once.
func (r *Registry) GaugeFunc(name string, f func() int64, tags ...Tag) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.addLocked(name, tags, KindGauge)
	s.claim()
	s.gauge = f
}

// FlagFunc is GaugeFunc for a bool: 1 for true, 0 for false.
func (r *Registry) FlagFunc(name string, is func() bool) {
	r.GaugeFunc(name, func() int64 {
		if is() {
			return 1
		}
		return 0
	})
}

// Timer returns the timer of that name, made at the first call.
func (r *Registry) Timer(name string) *Timer {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.timers {
		if t.Name == name {
			return t
		}
	}
	t := newTimer(r.seriesOf(name, nil), &r.timing)
	r.timers = append(r.timers, t)
	return t
}

// addLocked returns the series, and makes it if it is new. r.mu is held.
func (r *Registry) addLocked(name string, own []Tag, k Kind) *series {
	made := r.seriesOf(name, own)
	id := plainOwn(name, own)
	if s, ok := r.named[id]; ok {
		return s
	}
	s := &series{Series: made, id: id, kind: k}
	if k == KindCounter {
		s.counter = new(Counter)
	}
	r.named[id] = s
	r.list = append(r.list, s)
	return s
}

// Each calls f with every counter and gauge, sorted by name, including zero values. A name shows the series' own tags,
// not EXTRA_TAGS. The values are read one after the other.
func (r *Registry) Each(f func(name string, kind Kind, value int64)) {
	type row struct {
		name  string
		kind  Kind
		value int64
	}
	list, ruling := r.present()
	rows := make([]row, 0, len(list)+len(ruling)*len(RuleStats))
	for _, s := range list {
		rows = append(rows, row{s.id, s.kind, s.present()})
	}
	for _, s := range ruling {
		for i := range RuleStats {
			if name := statName(s.key, i); name != "" {
				rows = append(rows, row{name, KindCounter, int64(s.counter(i).Value())})
			}
		}
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.name, b.name) })
	for _, w := range rows {
		f(w.name, w.kind, w.value)
	}
}

// present returns all series and rules, after calling the functions in before.
func (r *Registry) present() ([]*series, []*ruleSeries) {
	r.mu.Lock()
	before := r.before
	r.mu.Unlock()
	for _, f := range before {
		f()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.list, r.ruling
}

// plainOwn returns the name with only its own tags, as /stats shows it.
func plainOwn(name string, own []Tag) string {
	if len(own) == 0 {
		return name
	}
	return name + suffixOf(slices.SortedFunc(slices.Values(own), func(a, b Tag) int {
		return strings.Compare(a.Name, b.Name)
	}))
}

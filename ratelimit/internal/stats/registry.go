// Package stats counts what the daemon does and passes the metrics to a sink: to statsd, in plain or tagged lines, over
// UDP or TCP; as lines of JSON to a pipe; or nowhere.
//
// It is a base package like rls, because rules get their counters when they are compiled. It knows neither requests nor
// rules nor listeners. The metrics have the names of envoyproxy/ratelimit, for which dashboards exist. A counter is one
// atomic number; requests never wait for a sink.
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

// Kind is counter, gauge or timer.
type Kind uint8

// These are the kinds of a series.
const (
	KindCounter Kind = iota
	KindGauge
	KindTimer
)

// String returns the kind's name, as the stdout sink writes it.
func (k Kind) String() string { return [...]string{"counter", "gauge", "timer"}[k] }

// Counter is a number that only grows. Its zero value is ready for use.
type Counter struct{ n atomic.Uint64 }

// Add adds n to the counter.
func (c *Counter) Add(n uint64) {
	if n != 0 {
		c.n.Add(n)
	}
}

// Inc adds 1 to the counter.
func (c *Counter) Inc() { c.n.Add(1) }

// Value returns the total since the program started.
func (c *Counter) Value() uint64 { return c.n.Load() }

// Settings are the environment variables of a Registry. A 0 means the default.
type Settings struct {
	// name:value,name:value put on every metric: `.__name=value` in plain statsd, tags in tagged
	// statsd, labels in pull metrics.
	ExtraTags map[string]string `env:"EXTRA_TAGS"`
	// Most series whose names hold values of requests (detailed_metric, value_to_metric, overrides); any further ones
	// share one series named _overflow.
	MaxDynamicKeys int `env:"STATS_MAX_DYNAMIC_KEYS" envDefault:"10000" min:"1"`
	// Most series of domains without rules (domain_not_found); any further domains share the series of the domain
	// _overflow.
	MaxUnknownDomains int `env:"STATS_MAX_UNKNOWN_DOMAINS" envDefault:"1000" min:"1"`
	// A series for values of requests, or for a domain without rules, is forgotten after this long without a hit.
	DynamicIdle time.Duration `env:"STATS_DYNAMIC_IDLE" envDefault:"10m" min:"1s"`
}

// Options configure a Registry. Their zero value is ready for use.
type Options struct {
	Settings
	// Log receives what operators should know about the sink; nil means slog.Default().
	Log *slog.Logger
}

// Registry holds all series of the program. Its methods are safe for concurrent use.
type Registry struct {
	extra       []Tag // sorted and cleaned; not changed after NewRegistry
	extraSuffix string
	idle        time.Duration
	delivered   time.Time // when the sink last took everything; only the flusher uses it
	log         *slog.Logger
	dropped     *Counter                             // counts timer values that the sink refused
	onTime      func(Series, time.Duration, float64) // receives timer values too; not changed after Run

	// timing is set while timers record durations. All timers read it.
	timing atomic.Bool
	dyn    dynamic

	// mu guards the maps and lists below. It is never held while a sink or a gauge's function runs. A list grows by
	// appending or is replaced, never changed in place, so that a copy of the slice header is a consistent view.
	mu     sync.Mutex
	named  map[string]*series
	list   []*series
	timers []*Timer
	rules  map[string]*ruleSeries // by clean key
	ruling []*ruleSeries
	group  func(key string) string // the function set by GroupRules; nil if there are no groups
	lost   map[string]*Rule        // group -> counts of its forgotten rules
	before []func()                // functions to call before each flush and each Each
}

// series is a counter or gauge of the daemon, as opposed to the counters of a rule (ruleSeries).
type series struct {
	Series
	id      string // the name with the series' own tags only, as the page /stats shows it
	kind    Kind
	counter *Counter      // set for a counter that the registry makes (Counter)
	total   func() uint64 // set for a counter whose value a function returns (CounterFunc)
	gauge   func() int64
	last    uint64 // the value passed to the sink so far; only the flusher uses it

	holders
}

// claim records that the source of the series' values is set. It panics if the source was set before: two sources for
// one name are a bug in the program.
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

// present returns the present value of the counter or gauge.
func (s *series) present() int64 {
	if s.kind == KindGauge {
		return s.gauge()
	}
	return int64(s.value())
}

// NewRegistry returns a registry that has only counters of its own.
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

// Counter returns the counter with the given name, the given tags and EXTRA_TAGS. The first call makes the counter.
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

// CounterFunc adds a counter that is counted elsewhere; f returns its value. f must be quick, safe for concurrent use,
// and never decrease. A name with the same tags may be added only once.
func (r *Registry) CounterFunc(name string, f func() uint64, tags ...Tag) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.addLocked(name, tags, KindCounter)
	s.claim()
	s.total = f
}

// GaugeFunc adds a gauge; f returns its value, and is called at each flush. f must be quick and safe for concurrent
// use. A name with the same tags may be added only once.
func (r *Registry) GaugeFunc(name string, f func() int64, tags ...Tag) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.addLocked(name, tags, KindGauge)
	s.claim()
	s.gauge = f
}

// FlagFunc is GaugeFunc for a bool: the gauge is 1 for true, 0 for false.
func (r *Registry) FlagFunc(name string, is func() bool) {
	r.GaugeFunc(name, func() int64 {
		if is() {
			return 1
		}
		return 0
	})
}

// Timer returns the timer with the given name. The first call makes the timer.
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

// addLocked returns the series with the given name and with the tags in own, and makes the series if it does not exist.
// The caller holds r.mu.
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

// Each calls f with every counter and gauge, sorted by name, including those whose value is 0. The names contain the
// series' own tags but not EXTRA_TAGS. The values are not from one instant: they are read one after the other. A
// counter's value is its uint64, converted.
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

// present returns all series and all rules' series, after calling the functions in r.before.
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

// plainOwn returns the name with the series' own tags only, as the page /stats shows it.
func plainOwn(name string, own []Tag) string {
	if len(own) == 0 {
		return name
	}
	return name + suffixOf(slices.SortedFunc(slices.Values(own), func(a, b Tag) int {
		return strings.Compare(a.Name, b.Name)
	}))
}

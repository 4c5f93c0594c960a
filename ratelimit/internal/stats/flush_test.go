package stats

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// recorder is a sink that keeps its lines. Tests of the loop use it; the transports are tested
// against real sockets.
type recorder struct {
	mu     sync.Mutex
	on     bool
	room   int // counters it still takes; 0 is no bound
	lines  []string
	closed bool
}

func (s *recorder) add(format string, args ...any) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
	return true
}

func (s *recorder) Ready() bool                { s.mu.Lock(); defer s.mu.Unlock(); return s.on }
func (s *recorder) Awake(context.Context) bool { return s.Ready() }
func (s *recorder) Count(m Series, n uint64) bool {
	if s.room > 0 && len(s.lines) >= s.room {
		return false
	}
	return s.add("%s:%d|c", m.Plain(), n)
}
func (s *recorder) Gauge(m Series, v int64) bool { return s.add("%s:%d|g", m.Plain(), v) }
func (s *recorder) Time(m Series, d time.Duration, rate float64) bool {
	return s.add("%s:%v|ms|@%.4f", m.Plain(), d, rate)
}
func (s *recorder) Flush() {}
func (s *recorder) Close(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

// take returns the lines since the last call, without the registry's own series.
func (s *recorder) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := slices.DeleteFunc(s.lines, func(l string) bool { return strings.HasPrefix(l, "ratelimit.stats.") })
	s.lines = nil
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRegistry(Options{Settings: Settings{ExtraTags: map[string]string{"ver": "1.2"}}, Log: quiet()})
		sink := &recorder{on: true}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { r.Run(ctx, sink, 10*time.Second) })
		step := func(d time.Duration, want ...string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if diff := cmp.Diff(strings.Join(want, "\n"), sink.take()); diff != "" {
				t.Error(diff)
			}
		}
		c, rule, timer := r.Counter("a"), r.Rule("d.k_v"), r.Timer("t")
		r.GaugeFunc("g", func() int64 { return 5 })

		time.Sleep(time.Millisecond)
		c.Add(3)
		rule.OverLimit.Inc()
		timer.Observe(250 * time.Microsecond)
		step(time.Second, "t.__ver=1_2:250µs|ms|@1.0000")
		step(9*time.Second,
			"a.__ver=1_2:3|c", "g.__ver=1_2:5|g", "ratelimit.service.rate_limit.d.k_v.over_limit.__ver=1_2:1|c")
		step(10*time.Second, "g.__ver=1_2:5|g")

		// An outage: differences are kept, times are not even taken.
		sink.mu.Lock()
		sink.on = false
		sink.mu.Unlock()
		time.Sleep(time.Second)
		c.Add(2)
		timer.Observe(time.Second)
		step(30 * time.Second)
		sink.mu.Lock()
		sink.on = true
		sink.mu.Unlock()
		c.Add(1)
		step(10*time.Second, "a.__ver=1_2:3|c", "g.__ver=1_2:5|g")

		// The end: one more flush.
		timer.Observe(time.Second)
		c.Inc()
		cancel()
		wg.Wait()
		step(0, "a.__ver=1_2:1|c", "g.__ver=1_2:5|g", "t.__ver=1_2:1s|ms|@1.0000")
		if !sink.closed || timer.Enabled() {
			t.Error("the sink is not closed, or the timer still on")
		}
	})
}

// A sink resolves and connects while the first requests come: their times must not be lost for that.
func TestRun_timesOfTheFirstRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRegistry(Options{Log: quiet()})
		sink := &recorder{}
		timer := r.Timer("t")
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { r.Run(ctx, sink, 10*time.Second) })
		time.Sleep(time.Millisecond)
		timer.Observe(time.Millisecond)
		time.Sleep(drainEvery / 2)
		sink.mu.Lock()
		sink.on = true
		sink.mu.Unlock()
		time.Sleep(3 * drainEvery)
		synctest.Wait()
		if diff := cmp.Diff("t:1ms|ms|@1.0000", sink.take()); diff != "" {
			t.Error(diff)
		}
		cancel()
		wg.Wait()
	})
}

// Without a listener: after the first drain times cost nothing.
func TestRun_noSinkTakesTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRegistry(Options{Log: quiet()})
		timer := r.Timer("t")
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { r.Run(ctx, &recorder{}, 10*time.Second) })
		time.Sleep(drainEvery + time.Millisecond)
		synctest.Wait()
		if timer.Enabled() {
			t.Error("the timer is on while the sink is away")
		}
		cancel()
		wg.Wait()
	})
}

func TestEmit_aRefusedCountIsKept(t *testing.T) {
	r := NewRegistry(Options{})
	c := r.Counter("zz")
	c.Add(7)
	sink := &recorder{on: true, room: 1}
	sink.lines = []string{"ratelimit.stats.full"}
	if r.emit(sink) {
		t.Error("emit says that all was taken")
	}
	sink.take()
	sink.room = 0
	c.Add(1)
	if !r.emit(sink) {
		t.Error("emit says that something was refused")
	}
	if got := sink.take(); got != "zz:8|c" {
		t.Errorf("got %q", got)
	}
}

func TestRun_withoutSinkKeysExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRegistry(Options{Settings: Settings{DynamicIdle: time.Minute}})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { r.Run(ctx, nil, 10*time.Second) })
		r.DynamicRule([]byte("d.idle"))
		time.Sleep(3 * time.Minute)
		if n := r.dyn.keys.n.Load(); n != 0 {
			t.Errorf("%d keys left", n)
		}
		cancel()
		wg.Wait()
	})
}

// A sink that never comes (no statsd at the default address) must not keep unused series for ever.
func TestRun_sinkUnavailableKeysExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRegistry(Options{Settings: Settings{DynamicIdle: time.Minute}, Log: quiet()})
		sink := &recorder{}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { r.Run(ctx, sink, 10*time.Second) })
		r.DynamicRule([]byte("d.idle")).TotalHits.Inc()
		r.Rule("d.old").TotalHits.Inc()
		kept := r.Rule("d.kept")
		kept.TotalHits.Inc()
		r.Retain([]*Rule{kept})
		series := func() (n int) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(r.ruling)
		}
		all := series()
		time.Sleep(50 * time.Second)
		if n := r.dyn.keys.n.Load(); n != 1 || series() != all {
			t.Errorf("%d keys, %d of %d series after 50 s: a short outage must lose nothing", n, series(), all)
		}
		time.Sleep(4 * time.Minute)
		if n := r.dyn.keys.n.Load(); n != 0 || series() != all-2 {
			t.Errorf("%d keys, %d of %d series left", n, series(), all)
		}
		sink.mu.Lock()
		sink.on = true
		sink.mu.Unlock()
		time.Sleep(15 * time.Second)
		if got := sink.take(); !strings.Contains(got, "d.kept.total_hits:1|c") {
			t.Errorf("the rule in force has lost its count: %s", got)
		}
		cancel()
		wg.Wait()
	})
}

func TestTimer_samples(t *testing.T) {
	r := NewRegistry(Options{})
	r.timing.Store(true)
	timer := r.Timer("t")
	f := func(events int) {
		t.Helper()
		for range events {
			timer.Observe(time.Millisecond)
		}
		timer.drain(func(time.Duration, float64) { t.Error("not cooled") })
		n, stood := 0, 0.0
		timer.drain(func(d time.Duration, rate float64) {
			n++
			stood += 1 / rate
			if d != time.Millisecond {
				t.Errorf("%v, want 1ms", d)
			}
		})
		if n > timerSlots || stood < float64(events)-0.5 || stood > float64(events)+0.5 {
			t.Errorf("%d events: %d samples stand for %.1f", events, n, stood)
		}
		if timer.drain(func(time.Duration, float64) { t.Error("handed out twice") }); events <= timerSlots &&
			n != events {
			t.Errorf("%d of %d kept", n, events)
		}
		timer.drain(func(time.Duration, float64) {})
	}
	f(0)
	f(1)
	f(timerSlots)
	f(timerSlots + 1)
	f(100000)
	f(1)
}

func TestTimer_thinsOutEvenly(t *testing.T) {
	r := NewRegistry(Options{})
	r.timing.Store(true)
	timer := r.Timer("t")
	var kept []time.Duration
	for range 4 {
		kept = nil
		for i := range 8 * timerSlots {
			timer.Observe(time.Duration(i))
		}
		timer.drain(func(d time.Duration, _ float64) { kept = append(kept, d) })
	}
	// Once the rate is known the samples reach to the end of the interval.
	if len(kept) != timerSlots || kept[len(kept)-1] != 8*timerSlots-8 {
		t.Errorf("%d kept, the last is %v", len(kept), kept[len(kept)-1])
	}
}

func TestGoRuntime(t *testing.T) {
	r := NewRegistry(Options{})
	r.GoRuntime()
	got := map[string]int64{}
	r.Each(func(name string, _ Kind, v int64) { got[strings.TrimPrefix(name, "ratelimit.go.")] = v })
	for _, name := range strings.Fields("alloc totalAlloc sys lookups mallocs frees heapAlloc heapSys heapIdle " +
		"heapInuse heapReleased heapObjects nextGC lastGC pauseTotalNs numGC gcCPUPercent numGoroutine") {
		if _, ok := got[name]; !ok {
			t.Errorf("ratelimit.go.%s is missing", name)
		}
	}
	if got["heapAlloc"] == 0 || got["numGoroutine"] == 0 {
		t.Errorf("heapAlloc %d, numGoroutine %d", got["heapAlloc"], got["numGoroutine"])
	}
}

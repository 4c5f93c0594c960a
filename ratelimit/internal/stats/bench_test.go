package stats

import (
	"fmt"
	"testing"
	"time"
)

func BenchmarkTimer(b *testing.B) {
	r := NewRegistry(Options{})
	t := r.Timer("t")
	run := func(name string, on bool) {
		b.Run(name, func(b *testing.B) {
			r.timing.Store(on)
			b.ReportAllocs()
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					t.Observe(time.Millisecond)
				}
			})
		})
	}
	run("off", false)
	run("on", true)
}

func BenchmarkDynamicRule(b *testing.B) {
	r := NewRegistry(Options{})
	keys := make([][]byte, 1<<13)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "domain.path_/v1/users.user_%d", i)
	}
	run := func(name string, mask int) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(p *testing.PB) {
				for i := 0; p.Next(); i++ {
					r.DynamicRule(keys[i&mask]).TotalHits.Inc()
				}
			})
		})
	}
	run("8192keys", len(keys)-1)
	run("hot", 0)
}

func BenchmarkFlush(b *testing.B) {
	r := NewRegistry(Options{})
	for i := range 10000 {
		r.Rule(fmt.Sprintf("domain.k_%d", i))
	}
	sink := &recorder{on: true}
	b.ReportAllocs()
	for b.Loop() {
		for _, s := range r.ruling {
			s.TotalHits.Inc()
		}
		sink.lines = sink.lines[:0]
		if !r.emit(sink) || len(sink.lines) < 10000 {
			b.Fatal("nothing flushed")
		}
	}
}

// BenchmarkStatsdTime is what one time value costs the flusher: at most 5,120 of them a second.
func BenchmarkStatsdTime(b *testing.B) {
	out := &tcp{wake: make(chan struct{}, 1)}
	out.connected.Store(true)
	s := newStatsd(out)
	m := NewRegistry(Options{Settings: Settings{ExtraTags: map[string]string{"az": "b"}}}).Timer(
		"ratelimit_server.ShouldRateLimit.response_time").Series
	b.ReportAllocs()
	for b.Loop() {
		if !s.Time(m, 123456, 0.5) {
			b.Fatal("refused")
		}
		if len(out.queue) > tcpQueue/2 {
			out.queue = out.queue[:0]
		}
	}
}

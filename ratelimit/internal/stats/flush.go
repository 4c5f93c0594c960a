package stats

import (
	"context"
	"time"
)

// Sink receives the metrics. Only the flusher calls it, and no method waits for a network or a
// pipe: a sink queues, bounded, and refuses what it has no room for.
type Sink interface {
	// Ready says that what is handed over now has a live way out. While it is false counters
	// keep their differences, and timers record nothing.
	Ready() bool
	// Count hands over what was counted since the last time it returned true for that series.
	Count(s Series, delta uint64) bool
	// Gauge hands over a value; the next flush brings a newer one if this is refused.
	Gauge(s Series, value int64) bool
	// Time hands over one duration that stands for 1/rate events; refused ones are lost.
	Time(s Series, d time.Duration, rate float64) bool
	// Flush sends on what was handed over so far.
	Flush()
	// Awake tries once more to find a live way out, until ctx ends, and is Ready: the last counts
	// of a process would otherwise be lost in the pause between two tries.
	Awake(ctx context.Context) bool
	// Close sends what is queued until ctx ends, then frees everything.
	Close(ctx context.Context) error
}

const (
	// drainEvery is how late a timer's value may leave: twice this.
	drainEvery = 100 * time.Millisecond
	// finalFlush bounds the last flush, so that a dead sink does not hold up the shutdown.
	finalFlush = 2 * time.Second
)

// Run flushes into sink until ctx ends, then once more, and closes sink. It is called once, also without a sink (nil,
// DISABLE_STATS): idle keys expire here. Counters leave as the difference to what the sink last took, only when it is
// not 0; gauges at every flush; timer values as they come.
//
// A count is latched when the sink took it: lost is only what was in the kernel's or the
// network's hands when a connection broke, a datagram that was not received, and what could not be
// delivered before the program's end.
func (r *Registry) Run(ctx context.Context, sink Sink, every time.Duration) {
	r.delivered = time.Now()
	flush := time.NewTicker(every)
	defer flush.Stop()
	var drain <-chan time.Time
	if sink != nil || r.onTime != nil {
		t := time.NewTicker(drainEvery)
		defer t.Stop()
		drain = t.C
		r.timing.Store(true) // a sink finds its way out within the first drain, or that drain ends this
	}
	for {
		select {
		case <-ctx.Done():
			r.finish(sink)
			return
		case <-drain:
			r.drain(sink)
		case now := <-flush.C:
			r.flush(sink, now)
		}
	}
}

// flush hands everything to sink and then lets go of what is idle, unless the sink refused
// something: what still has a difference stays. After Options.DynamicIdle without a sink it goes all
// the same, or a statsd that never comes would fill the table, and memory with each reload.
func (r *Registry) flush(sink Sink, now time.Time) {
	if sink == nil || sink.Ready() && r.emit(sink) {
		r.delivered = now
	} else if now.Sub(r.delivered) <= r.idle {
		return
	}
	r.dyn.expire(now, r.idle)
	r.forget()
}

// emit hands over all counters that grew and all gauges; false when the sink refused a counter.
func (r *Registry) emit(sink Sink) bool {
	list, ruling := r.present()
	all := true
	for _, s := range list {
		if s.kind == KindGauge {
			sink.Gauge(s.Series, s.gauge())
			continue
		}
		all = latch(sink, s.Series, &s.last, s.value()) && all
	}
	for _, s := range ruling {
		for i := range RuleStats {
			v := s.counter(i).Value()
			if v == 0 || s.last != nil && v == s.last[i] {
				continue
			}
			if s.last == nil {
				s.last = new([len(RuleStats)]uint64)
			}
			name := Series{Name: s.statName(i), Tags: r.extra, suffix: r.extraSuffix}
			all = latch(sink, name, &s.last[i], v) && all
		}
	}
	sink.Flush()
	return all
}

// latch hands over the growth since *last and remembers it if the sink took it.
func latch(sink Sink, s Series, last *uint64, v uint64) bool {
	if v > *last && !sink.Count(s, v-*last) {
		return false
	}
	*last = v
	return true
}

// drain hands over the timers' samples, to the sink while it is ready and to the function of OnTime, and has timers
// record only while there is a receiver.
func (r *Registry) drain(sink Sink) {
	ready := sink != nil && sink.Ready()
	r.timing.Store(ready || r.onTime != nil)
	if !ready && r.onTime == nil {
		return
	}
	r.mu.Lock()
	timers := r.timers
	r.mu.Unlock()
	for _, t := range timers {
		t.drain(func(d time.Duration, rate float64) {
			if ready && !sink.Time(t.Series, d, rate) {
				r.dropped.Inc()
			}
			if r.onTime != nil {
				r.onTime(t.Series, d, rate)
			}
		})
	}
	if ready {
		sink.Flush()
	}
}

// finish is the final flush: nothing may be counted any more. Two drains empty both buffers of
// a timer.
func (r *Registry) finish(sink Sink) {
	if sink == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), finalFlush)
	defer cancel()
	awake := sink.Awake(ctx)
	r.drain(sink)
	r.drain(sink)
	r.timing.Store(false)
	delivered := awake && r.emit(sink)
	if err := sink.Close(ctx); err != nil {
		r.log.Warn("stats: the last statistics may be incomplete", "error", err)
	} else if !delivered {
		r.log.Warn("stats: the last statistics were not delivered: no connection")
	}
}

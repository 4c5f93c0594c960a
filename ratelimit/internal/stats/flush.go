package stats

import (
	"context"
	"time"
)

// Sink receives the metrics. Only the flusher calls it, and no method waits for a network or a pipe: a sink has a
// bounded queue, and refuses values that do not fit.
type Sink interface {
	// Ready reports that the sink can deliver values now. While it returns false, counters keep their differences, and
	// timers record nothing.
	Ready() bool
	// Count passes the growth since the last time Count returned true for that series.
	Count(s Series, delta uint64) bool
	// Gauge passes a value; the next flush brings a newer value if this one is refused.
	Gauge(s Series, value int64) bool
	// Time passes one duration that stands for 1/rate events; refused durations are lost.
	Time(s Series, d time.Duration, rate float64) bool
	// Flush sends the values passed so far.
	Flush()
	// Awake tries to connect once more, until ctx ends, and then returns Ready: the last counts of a process would
	// otherwise be lost in the pause between two tries.
	Awake(ctx context.Context) bool
	// Close sends queued values until ctx ends, then frees everything.
	Close(ctx context.Context) error
}

const (
	// drainEvery is the period of draining timers; a value leaves after twice this time at the latest.
	drainEvery = 100 * time.Millisecond
	// finalFlush bounds the last flush, so that a dead sink does not hold up the shutdown.
	finalFlush = 2 * time.Second
)

// Run flushes into sink until ctx ends, then once more, and closes sink. It is called once, also without a sink (nil,
// DISABLE_STATS), since idle keys expire here. Of counters the difference to the value that the sink last took is sent,
// unless it is 0; gauges are sent at every flush, timer values as they come.
//
// A count is latched when the sink has taken it. Lost are only values that the kernel or the network held when a
// connection broke, datagrams that were not received, and values that could not be delivered before the program's end.
func (r *Registry) Run(ctx context.Context, sink Sink, every time.Duration) {
	r.delivered = time.Now()
	flush := time.NewTicker(every)
	defer flush.Stop()
	var drain <-chan time.Time
	if sink != nil || r.onTime != nil {
		t := time.NewTicker(drainEvery)
		defer t.Stop()
		drain = t.C
		r.timing.Store(true) // a sink connects within the first drain, or that drain resets this
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

// flush passes all values to sink and then drops idle series, unless the sink refused something: series with a
// difference stay. Without a ready sink for Options.DynamicIdle they are dropped all the same, or a statsd that never
// comes would fill the table, and memory with each reload.
func (r *Registry) flush(sink Sink, now time.Time) {
	if sink == nil || sink.Ready() && r.emit(sink) {
		r.delivered = now
	} else if now.Sub(r.delivered) <= r.idle {
		return
	}
	r.dyn.expire(now, r.idle)
	r.forget()
}

// emit passes all counters that grew and all gauges. It returns false when the sink refused a counter.
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
			name := Series{Name: statName(s.key, i), Tags: r.extra, suffix: r.extraSuffix}
			all = latch(sink, name, &s.last[i], v) && all
		}
	}
	sink.Flush()
	return all
}

// latch passes the growth since *last, and sets *last if the sink took it.
func latch(sink Sink, s Series, last *uint64, v uint64) bool {
	if v > *last && !sink.Count(s, v-*last) {
		return false
	}
	*last = v
	return true
}

// drain passes the timers' samples to the sink, while it is ready, and to the function of OnTime. Timers record only
// while there is a receiver.
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

// finish is the final flush, after which nothing is counted. Two drains empty both buffers of a timer.
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

package stats

import (
	"context"
	"time"
)

// Sink receives the metrics and sends them on. Only the flusher calls it, and its methods do not wait for a network or
// a pipe, except for Awake and Close: a sink has a bounded queue, and refuses values that do not fit.
type Sink interface {
	// Ready reports whether the sink can deliver values now. While Ready returns false, the growth of counters is kept
	// for later, and timers record nothing.
	Ready() bool
	// Count passes a counter's growth since Count last returned true for the series. It returns false if the sink
	// refuses the growth.
	Count(s Series, delta uint64) bool
	// Gauge passes a gauge's value. If the sink refuses it, the value is not passed again, since the next flush passes
	// a newer one.
	Gauge(s Series, value int64) bool
	// Time passes one duration, which stands for 1/rate events. A duration that the sink refuses is lost.
	Time(s Series, d time.Duration, rate float64) bool
	// Flush sends the values passed so far.
	Flush()
	// Awake tries to connect at once, until ctx ends, and then returns Ready. It is called before the last flush of the
	// process, which might otherwise come in the pause between two tries to connect, so that the last counts would be
	// lost.
	Awake(ctx context.Context) bool
	// Close sends queued values until ctx ends, then closes the sink.
	Close(ctx context.Context) error
}

const (
	// drainEvery is how often the timers' durations are passed to the sink. A duration is passed after twice this time
	// at the latest.
	drainEvery = 100 * time.Millisecond
	// finalFlush bounds the time of the last flush, so that a sink that does not answer does not delay the end of the
	// process.
	finalFlush = 2 * time.Second
)

// Run flushes the metrics into sink until ctx ends, then flushes once more and closes sink. Call it once, even if there
// is no sink (nil, for DISABLE_STATS), because it also drops idle series. A flush passes a counter's growth since the
// sink last took it, unless the growth is 0, and a gauge's value. Durations are passed as they come.
//
// A count is remembered as passed only when the sink has taken it. Values are lost only in three cases: in datagrams
// that are not received; in the kernel or the network when a connection breaks; and if they cannot be delivered before
// the process ends.
func (r *Registry) Run(ctx context.Context, sink Sink, every time.Duration) {
	r.delivered = time.Now()
	flush := time.NewTicker(every)
	defer flush.Stop()
	var drain <-chan time.Time
	if sink != nil || r.onTime != nil {
		t := time.NewTicker(drainEvery)
		defer t.Stop()
		drain = t.C
		r.timing.Store(true) // the sink may connect before the first drain, which sets timing again if it does not
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

// flush passes all values to sink and then drops idle series. If the sink refuses a value, no series is dropped, since
// a series that has growth left must stay. If no sink has been ready for Options.DynamicIdle, idle series are dropped
// all the same: otherwise, while statsd is unreachable, the dynamic table would fill, and memory would grow with each
// reload.
func (r *Registry) flush(sink Sink, now time.Time) {
	if sink == nil || sink.Ready() && r.emit(sink) {
		r.delivered = now
	} else if now.Sub(r.delivered) <= r.idle {
		return
	}
	r.dyn.expire(now, r.idle)
	r.forget()
}

// emit passes the growth of all counters, and all gauges. It returns false if the sink refused a counter.
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

// latch passes a counter's growth from *last to v, and sets *last to v if the sink took the growth. It returns false if
// the sink refused it.
func latch(sink Sink, s Series, last *uint64, v uint64) bool {
	if v > *last && !sink.Count(s, v-*last) {
		return false
	}
	*last = v
	return true
}

// drain passes the durations that the timers have recorded to the sink, while it is ready, and to the function set by
// OnTime. Timers record only while there is one of the two to receive them.
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

// finish makes the final flush. Hits that are counted afterwards are lost. It drains twice, because a timer has two
// buffers.
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

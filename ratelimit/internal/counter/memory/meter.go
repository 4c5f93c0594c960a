package memory

import (
	"math"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/siphash"
)

// meter is a stored sliding window or token bucket. With its id it takes 48 bytes.
type meter struct {
	at                int64
	current, previous uint32 // current of a token bucket is its State.Rest
	// window, limit and burst are the numbers of the limit by which the counter was last judged.
	window, limit, burst uint32
	algorithm            counter.Algorithm
}

func newMeter(h *counter.Hit) meter {
	v := meter{at: h.State.At, current: h.State.Current, previous: h.State.Previous, algorithm: h.Algorithm,
		window: uint32(min(max(h.Window, 0), math.MaxUint32)),
		limit:  uint32(min(h.Limit, math.MaxUint32)), burst: uint32(min(h.Burst, math.MaxUint32))}
	if h.Algorithm == counter.TokenBucket {
		v.current = h.State.Rest
	}
	return v
}

// state puts the stored state into s. If the counter was stored for another algorithm than a, s is set to a counter
// without hits.
func (v *meter) state(s *counter.State, a counter.Algorithm) {
	switch {
	case a != v.algorithm:
		*s = counter.State{}
	case a == counter.TokenBucket:
		s.At, s.Rest, s.Current, s.Previous = v.at, v.current, 0, 0
	default:
		s.At, s.Current, s.Previous, s.Rest = v.at, v.current, v.previous, 0
	}
}

// used returns how much of the counter's capacity is used at the time now, in µs. dead reports that nothing is used, so
// that dropping the counter loses nothing.
func (v *meter) used(now int64) (used int64, capacity uint64, dead bool) {
	m := counter.Meter{Algorithm: v.algorithm, Window: int64(v.window), Limit: uint64(v.limit), Burst: uint64(v.burst)}
	var s counter.State
	v.state(&s, v.algorithm)
	m.Load(&s, now)
	return m.Used(&s), m.Capacity(), m.Empty(&s)
}

// meters is a shard's table of sliding windows and token buckets.
type meters struct {
	table[meter]
	last int64 // the latest time, in µs, for which a counter was judged
}

// late is how many µs may pass after a request has read the clock until it holds the shard's lock. If other requests
// with later times came first, it is judged at the latest of these times. Otherwise a request that read the clock just
// before the end of a sliding window would take the counter back into the window that has ended.
const late = 20_000

// at returns the time, in µs, at which the shard's counters are judged for a request that has read instant from the
// clock.
func (t *meters) at(instant int64) int64 {
	if instant < t.last && t.last-instant <= late {
		return t.last
	}
	t.last = instant
	return instant
}

// load puts the counter's present state into h.State and returns the counter's slot, or nil if the shard has no such
// counter. fromFuture is the result of Meter.Load. The shard's lock is held.
func (s *shard) load(x siphash.ID, h *counter.Hit, instant int64) (sl *slot[meter], fromFuture bool) {
	if s.meters != nil {
		instant = s.meters.at(instant)
		sl, _ = s.meters.find(x)
	}
	if sl != nil {
		sl.v.state(&h.State, h.Algorithm)
	} else {
		h.State = counter.State{}
	}
	return sl, h.Load(&h.State, instant)
}

// judge carries out one hit on a sliding window or a token bucket; the shard's lock is held. now is the request's time
// in Unix seconds, instant the time in µs. judge returns false if there is no room for a new counter.
func (m *Store) judge(s *shard, x siphash.ID, h *counter.Hit, now, instant int64) (ok bool) {
	change := h.Change()
	sl, fromFuture := s.load(x, h, instant)
	if !h.JudgeChange(change) && !(fromFuture && h.BringsDown()) {
		return true
	}
	return m.write(sl, x, h, now, instant)
}

// write stores h.State. sl is the counter's slot, or nil if the counter is new. write returns false if there is no room
// for a new counter.
func (m *Store) write(sl *slot[meter], x siphash.ID, h *counter.Hit, now, instant int64) (ok bool) {
	s, empty := m.shard(x), h.Meter.Empty(&h.State)
	switch {
	case sl != nil && empty:
		s.meters.delete(x)
		m.keys.Add(-1)
		return true
	case sl != nil:
		sl.v = newMeter(h)
		return true
	case empty:
		return true
	}
	if s.meters == nil {
		s.meters = &meters{last: instant}
	}
	m.keys.Add(-int64(s.meters.sweep(func(v *meter) bool {
		_, _, dead := v.used(instant)
		return dead
	})))
	if !m.reserve(s, now) {
		return false
	}
	s.meters.makeRoom()
	s.meters.place(slot[meter]{id: x, v: newMeter(h)})
	return true
}

package memory

import (
	"math/bits"
	"slices"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/siphash"
)

// stopScratch is what one request under Request.Stop needs to remember, kept for the next one.
type stopScratch struct {
	ids []siphash.ID
	// was is each counter before the request, then each as it would be after the hit.
	was, would []int64
	// wasAt and wouldBe are the same of sliding windows and token buckets; empty where the request has none.
	wasAt, wouldBe []counter.State
	locked         [maxShards / 64]uint64
}

// addOrStop carries out a request under Request.Stop. All its shards stay locked from the first read to the last write,
// so that no other request comes between; they are locked in ascending order, so that two such requests cannot wait for
// each other.
func (m *Store) addOrStop(req *counter.Request) error {
	c := m.stops.Get().(*stopScratch)
	defer m.stops.Put(c)
	c.ids, c.was, c.would = c.ids[:0], c.was[:0], c.would[:0]
	c.wasAt, c.wouldBe = c.wasAt[:0], c.wouldBe[:0]
	clear(c.locked[:])
	instant := int64(0)
	for i := range req.Hits {
		x := m.id(req.Hits[i].Key)
		c.ids = append(c.ids, x)
		if instant == 0 && req.Hits[i].Algorithm != counter.FixedWindow {
			instant = m.instant(req.Instant)
			c.wasAt = slices.Grow(c.wasAt, len(req.Hits))[:len(req.Hits)]
			c.wouldBe = slices.Grow(c.wouldBe, len(req.Hits))[:len(req.Hits)]
		}
		s := x.A & m.mask
		c.locked[s/64] |= 1 << (s % 64)
	}
	c.each(func(i int) { m.shards[i].mu.Lock() })
	defer c.each(func(i int) { m.shards[i].mu.Unlock() })

	stopped := false
	for i := range req.Hits {
		h := &req.Hits[i]
		if h.Algorithm != counter.FixedWindow {
			m.foresee(c, req.Hits, i, instant)
			stopped = stopped || h.Refused && !h.Shadow
			c.was, c.would = append(c.was, 0), append(c.would, 0)
			continue
		}
		was := m.shard(c.ids[i]).total(c.ids[i])
		before := was
		for j := i - 1; j >= 0; j-- { // the same key earlier in this request
			if c.ids[j] == c.ids[i] {
				before = c.would[j]
				break
			}
		}
		h.After, h.Spared = h.Apply(before), false
		would := h.After
		if h.Over(h.After) {
			would = before // a hit that goes over is never written
			stopped = stopped || !h.Shadow
		}
		c.was, c.would = append(c.was, was), append(c.would, would)
	}
	for i := range req.Hits {
		h := &req.Hits[i]
		switch {
		case h.Algorithm != counter.FixedWindow:
			if !m.settle(c, req, i, stopped, instant) {
				return counter.ErrFull
			}
		case h.Over(h.After):
		case stopped:
			h.After, h.Spared = c.was[i], true
		default:
			if _, ok := m.add(m.shard(c.ids[i]), c.ids[i], h, req.Now); !ok {
				return counter.ErrFull
			}
		}
	}
	return nil
}

// foresee fills in what would become of hit i, of a sliding window or a token bucket, if the request were written.
func (m *Store) foresee(c *stopScratch, hits []counter.Hit, i int, instant int64) {
	h, x := &hits[i], c.ids[i]
	m.shard(x).load(x, h, instant)
	was := h.State
	before := was
	for j := i - 1; j >= 0; j-- { // the same key earlier in this request
		if c.ids[j] == x && hits[j].Algorithm == h.Algorithm {
			before = c.wouldBe[j]
			break
		}
	}
	h.Judge(&before)
	c.wasAt[i], c.wouldBe[i] = was, h.State
}

// settle writes hit i, of a sliding window or a token bucket, or spares it. False: there is no room.
func (m *Store) settle(c *stopScratch, req *counter.Request, i int, stopped bool, instant int64) (ok bool) {
	h, x := &req.Hits[i], c.ids[i]
	s := m.shard(x)
	if !stopped {
		return m.judge(s, x, h, req.Now, instant)
	}
	sl, fromFuture := s.load(x, h, instant)
	if !h.Refused {
		h.After, h.Spared = h.Used(), true
	}
	if !fromFuture || !h.BringsDown() {
		return true
	}
	return m.write(sl, x, h, req.Now, instant)
}

// each calls f with the number of every shard of the request, in ascending order.
func (c *stopScratch) each(f func(i int)) {
	for w, word := range c.locked {
		for ; word != 0; word &= word - 1 {
			f(w*64 + bits.TrailingZeros64(word))
		}
	}
}

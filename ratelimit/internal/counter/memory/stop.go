package memory

import (
	"math/bits"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/siphash"
)

// stopScratch is memory for carrying out one request under Request.Stop. It is reused by later requests.
type stopScratch struct {
	ids    []siphash.ID
	looks  []counter.Hit // the counters as they were before the request
	locked [maxShards / 64]uint64
}

// addOrStop carries out a request under Request.Stop. It keeps the shards of all hits locked from the first read to the
// last write, so that no other request changes a counter in between. Shards are locked in ascending order, so that two
// such requests cannot wait for each other.
func (m *Store) addOrStop(req *counter.Request) error {
	c := m.stops.Get().(*stopScratch)
	defer m.stops.Put(c)
	c.ids, c.looks = c.ids[:0], c.looks[:0]
	clear(c.locked[:])
	instant := int64(0)
	for i := range req.Hits {
		h := &req.Hits[i]
		x := m.id(h.Key)
		c.ids = append(c.ids, x)
		c.looks = append(c.looks, counter.Hit{Meter: h.Meter})
		if instant == 0 && h.Algorithm != counter.FixedWindow {
			instant = m.instant(req.Instant)
		}
		s := x.A & m.mask
		c.locked[s/64] |= 1 << (s % 64)
	}
	c.each(func(i int) { m.shards[i].mu.Lock() })
	defer c.each(func(i int) { m.shards[i].mu.Unlock() })

	for i, x := range c.ids {
		look, s := &c.looks[i], m.shard(x)
		if look.Algorithm == counter.FixedWindow {
			look.After = s.total(x)
			continue
		}
		s.load(x, look, instant)
		look.After = look.Used(&look.State)
	}
	held := counter.JudgeStop(req.Hits, c.looks, false)
	for i, x := range c.ids {
		h, s, ok := &req.Hits[i], m.shard(x), true
		switch {
		case h.Algorithm == counter.FixedWindow:
			if !held && !h.Over(h.After) {
				_, ok = m.add(s, x, h, req.Now)
			}
		case !held:
			ok = m.judge(s, x, h, req.Now, instant)
		default:
			if sl, fromFuture := s.load(x, h, instant); fromFuture && h.BringsDown() {
				ok = m.write(sl, x, h, req.Now, instant)
			}
		}
		if !ok {
			return counter.ErrFull
		}
	}
	return nil
}

// each calls f with the number of every shard that the request needs, in ascending order.
func (c *stopScratch) each(f func(i int)) {
	for w, word := range c.locked {
		for ; word != 0; word &= word - 1 {
			f(w*64 + bits.TrailingZeros64(word))
		}
	}
}

package memory

import (
	"math/bits"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/siphash"
)

// stopScratch is what one request under Request.Stop needs to remember, kept for the next one.
type stopScratch struct {
	ids []siphash.ID
	// was is each counter before the request, then each as it would be after the hit.
	was, would []int64
	locked     [maxShards / 64]uint64
}

// addOrStop carries out a request under Request.Stop. All its shards stay locked from the first look
// to the last write, so that no other request comes between; they are locked in ascending order, so
// that two such requests cannot wait for each other.
func (m *Store) addOrStop(req *counter.Request) error {
	c := m.stops.Get().(*stopScratch)
	defer m.stops.Put(c)
	c.ids, c.was, c.would = c.ids[:0], c.was[:0], c.would[:0]
	clear(c.locked[:])
	for i := range req.Hits {
		x := m.id(req.Hits[i].Key)
		c.ids = append(c.ids, x)
		s := x.A & m.mask
		c.locked[s/64] |= 1 << (s % 64)
	}
	c.each(func(i int) { m.shards[i].mu.Lock() })
	defer c.each(func(i int) { m.shards[i].mu.Unlock() })

	stopped := false
	for i := range req.Hits {
		h := &req.Hits[i]
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

// each calls f with the number of every shard of the request, in ascending order.
func (c *stopScratch) each(f func(i int)) {
	for w, word := range c.locked {
		for ; word != 0; word &= word - 1 {
			f(w*64 + bits.TrailingZeros64(word))
		}
	}
}

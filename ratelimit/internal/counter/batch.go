package counter

import (
	"math/rand/v2"
	"unsafe"
)

// maxBatchHits bounds one batch, so that a flood is spread over the connections. One request may
// exceed it.
const maxBatchHits = 2048

// expirySlack is how many seconds a key outlives its window, for instances whose clocks differ.
const expirySlack = 5

type opKind uint8

const (
	opCount  opKind = iota // INCRBY, or GET when nobody adds anything
	opRefund               // a script: subtract, not below 0
	opStop                 // a script: all of some hits of one call, or none
)

// op is one command of a batch, together with what has to go before it.
type op struct {
	kind opKind
	// fresh: this process has not met the key, so SET NX gives it its expiry first.
	fresh bool
	// asking: ASKING goes before each of its commands.
	asking bool
	hash   uint64
	key    string // points into a call of the batch
	n      int64  // hits to add, saturating; or to refund
	ttl    int64
	hits   []callHit // of opStop

	base int64    // the answer: total before the batch's hits; after a refund
	was  []string // of opStop: the totals before
	held bool     // of opStop: nothing was written, since a hit would go over
	err  error    // the store refused this command
	away *away    // it did not carry it out, but may do so later or elsewhere

	overflowed bool // INCRBY would pass 2^63-1
}

// batch is calls on their way to the store, reused for the next ones.
type batch struct {
	calls []*call
	ops   []op
	index opIndex
	// refusal is the first word of an answer that says something about the server and not about the
	// command, such as LOADING.
	refusal string
}

// build turns the calls that are still waited for into commands: one for each key, however many hit it,
// but hits never pass a script on the same key. Calls whose callers have left are dropped.
func (b *batch) build(met *metSet, jitter int64, free func(*call)) {
	b.ops, b.refusal = b.ops[:0], ""
	b.index.reset()
	kept := b.calls[:0]
	for _, c := range b.calls {
		if c.state.Load() != waiting {
			free(c)
			continue
		}
		kept = append(kept, c)
		switch {
		case c.each:
			for i := range c.hits {
				b.addStop(c, c.hits[i:i+1], jitter)
			}
			continue
		case c.stop:
			b.addStop(c, c.hits, jitter)
			continue
		}
		for i := range c.hits {
			b.addHit(c, &c.hits[i], jitter)
		}
	}
	clear(b.calls[len(kept):])
	b.calls = kept

	met.mu.Lock()
	defer met.mu.Unlock()
	for i := range b.ops {
		o := &b.ops[i]
		o.fresh = o.kind == opCount && o.n > 0 && !met.has(o.hash)
	}
}

func (b *batch) addHit(c *call, h *callHit, jitter int64) {
	key := unsafe.String(unsafe.SliceData(h.key), len(h.key))
	at := b.index.find(h.hash, func(op int32) bool { return b.ops[op].key == key })
	refund := h.refund && h.n > 0
	if refund || *at == 0 || b.ops[*at-1].kind != opCount {
		o := op{hash: h.hash, key: key, ttl: h.ttl(c.now, jitter)}
		if refund {
			o.kind, o.n = opRefund, h.n
		}
		b.ops = append(b.ops, o)
		*at = int32(len(b.ops))
	}
	h.op = *at - 1
	o := &b.ops[h.op]
	o.asking = o.asking || h.asking
	if !refund {
		o.n = saturate(o.n, h.n)
		h.prefix = o.n
	}
}

func (b *batch) addStop(c *call, hits []callHit, jitter int64) {
	b.ops = append(b.ops, op{kind: opStop, hits: hits})
	for i := range hits {
		h := &hits[i]
		h.op = int32(len(b.ops)) - 1
		h.prefix = h.ttl(c.now, jitter)
		b.ops[h.op].asking = b.ops[h.op].asking || h.asking
		// Later hits on this key need a command of their own, behind this one.
		key := unsafe.String(unsafe.SliceData(h.key), len(h.key))
		*b.index.find(h.hash, func(op int32) bool { return b.ops[op].holds(key) }) = h.op + 1
	}
}

// holds reports whether the command concerns the key.
func (o *op) holds(key string) bool {
	if o.kind != opStop {
		return o.key == key
	}
	for i := range o.hits {
		if string(o.hits[i].key) == key {
			return true
		}
	}
	return false
}

// longestTTL is a thousand years: Redis refuses times to live whose end in milliseconds has no 63 bits.
const longestTTL = 1000 * 365 * 86400

// ttl is the life of a key made by this hit, in seconds (DESIGN "TTL").
func (h *callHit) ttl(now, jitter int64) int64 {
	ttl := min(max(1, h.end-now)+expirySlack, longestTTL)
	if j := min(jitter, h.window/10); j > 0 {
		ttl += rand.Int64N(j)
	}
	return ttl
}

// settle works out the answers of one call from those of its commands.
func (b *batch) settle(c *call) {
	for i := 0; i < len(c.hits); i++ {
		h := &c.hits[i]
		o := &b.ops[h.op]
		if o.err != nil {
			c.err = o.err
			return
		}
		h.spared = false
		if h.away = o.away; h.away != nil {
			c.undone++
			continue
		}
		switch o.kind {
		case opCount:
			h.after = saturate(max(0, o.base), h.prefix)
		case opRefund:
			h.after = o.base
		case opStop:
			if c.err = o.settleStop(); c.err != nil {
				return
			}
			i += len(o.hits) - 1
		}
	}
}

// unsent says that nothing of the batch has gone out.
func (b *batch) unsent() {
	for i := range b.ops {
		b.ops[i].away = &awayUnsent
	}
}

// opIndex finds the command for a key within a batch: open addressing, emptied by counting up the round.
type opIndex struct {
	table []indexEntry
	n     int
	round uint32
}

type indexEntry struct {
	round uint32
	op    int32 // its number plus 1
	hash  uint64
}

func (x *opIndex) reset() {
	x.n = 0
	if x.round++; x.round == 0 { // after 2^32 batches entries would come back to life
		clear(x.table)
		x.round = 1
	}
}

// find returns where the key's command number is kept: 0 if the key is new.
func (x *opIndex) find(hash uint64, same func(op int32) bool) *int32 {
	if 2*(x.n+1) > len(x.table) {
		x.grow()
	}
	mask := uint64(len(x.table) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		e := &x.table[i]
		if e.round != x.round {
			*e = indexEntry{round: x.round, hash: hash}
			x.n++
			return &e.op
		}
		if e.hash == hash && e.op > 0 && same(e.op-1) {
			return &e.op
		}
	}
}

func (x *opIndex) grow() {
	old := x.table
	x.table = make([]indexEntry, max(64, 2*len(old)))
	mask := uint64(len(x.table) - 1)
	for _, e := range old {
		if e.round != x.round {
			continue
		}
		i := e.hash & mask
		for x.table[i].round == x.round {
			i = (i + 1) & mask
		}
		x.table[i] = e
	}
}

package redis

import (
	"math/rand/v2"
	"unsafe"

	"gatehouse/ratelimit/internal/counter"
)

// maxBatchHits bounds the hits of one batch, so that a flood is spread over the connections. A single request may
// exceed it.
const maxBatchHits = 2048

type opKind uint8

// op is one command of a batch, with the commands that have to come before it.
type op struct {
	kind opKind
	// seen: this process knows that the key has an expiry. fresh: it does not know, so SET NX sets an expiry first.
	seen, fresh bool
	// asking: ASKING goes before each command of the op.
	asking     bool
	overflowed bool // INCRBY would pass 2^63-1

	hash  uint64
	key   string   // points into a call of the batch
	n     int64    // hits to add, saturating; or to refund
	first *callHit // the hit that the op was made for, at now: sets the key's expiry
	now   int64

	base        int64        // the answer: the total before the batch's hits, or after a refund
	err         error        // the store refused this command
	notExecuted *notExecuted // not executed; the same or another server may execute it later

	stop  *stopOp // nil unless kind is opStop
	meter int32   // index into the batch's meters, of an opMeter
}

// stopOp has what only an opStop needs.
type stopOp struct {
	hits []callHit
	was  []string // the totals before the op
	held bool     // nothing was written, since a hit would exceed its limit
	// meters: some of the hits are on sliding windows or token buckets; then now is the server's time.
	meters bool
	now    int64
}

// batch is a list of calls on their way to the store. It is reused.
type batch struct {
	calls  []*call
	ops    []op
	meters []meterOp
	index  opIndex
	jitter int64
	// ordered: a key has a command after a script, so the server must not lack the script.
	ordered bool
	// refusal is the first word of an answer that concerns the server and not the command, such as LOADING.
	refusal string
}

// turn is how many requests of one connection go into a batch that cannot take all.
const turn = 64

// inTurns moves calls from the queue to a batch: all calls, or as many as fit, with at most turn requests of a
// connection, so that a connection that sends thousands does not hold up the others.
func inTurns(batch, queue []*call) (taken, rest []*call) {
	hits := 0
	for _, c := range queue {
		hits += len(c.hits)
	}
	if hits <= maxBatchHits {
		batch = append(batch, queue...)
		clear(queue)
		return batch, queue[:0]
	}
	hits = 0
	of := map[uint64]int{}
	kept := queue[:0]
	for _, c := range queue {
		from := uint64(0)
		if c.started != nil {
			from = c.started.From
		}
		if len(batch) > 0 && (hits+len(c.hits) > maxBatchHits || from != 0 && of[from] >= turn) {
			kept = append(kept, c)
			continue
		}
		of[from]++
		hits += len(c.hits)
		batch = append(batch, c)
	}
	clear(queue[len(kept):])
	return batch, kept
}

const (
	opCount  opKind = iota // INCRBY, or GET when nothing is added
	opRefund               // a script: subtract, not below 0
	opStop                 // a script: all of some hits of one call, or none
	opDelete               // DEL
	opMeter                // a script: runs of hits on a sliding window or a token bucket
)

// build turns the calls whose callers still wait into commands: one command for each key, however many hits the key
// has, except that hits stay behind an earlier script on their key. Other calls are dropped.
func (b *batch) build(met *seenKeys, jitter int64, free func(*call)) {
	b.ops, b.meters, b.refusal, b.jitter = b.ops[:0], b.meters[:0], "", jitter
	b.ordered = false
	kept, hits := b.calls[:0], 0
	for _, c := range b.calls {
		if c.state.Load() != waiting {
			free(c)
			continue
		}
		kept = append(kept, c)
		hits += len(c.hits)
	}
	clear(b.calls[len(kept):])
	b.calls = kept

	b.index.reset(hits)
	for _, c := range kept {
		switch c.stop {
		case counter.StopEach:
			for i := range c.hits {
				if h := &c.hits[i]; h.isMeter() {
					b.addHit(c, h) // its limit stops it anyway
				} else {
					b.addStop(c, c.hits[i:i+1])
				}
			}
			continue
		case counter.StopAll:
			b.addStop(c, c.hits)
			continue
		}
		for i := range c.hits {
			b.addHit(c, &c.hits[i])
		}
	}

	met.mu.Lock()
	defer met.mu.Unlock()
	for i := range b.ops {
		if o := &b.ops[i]; o.kind == opCount && o.n > 0 {
			o.seen = met.has(o.hash)
			o.fresh = !o.seen
		}
	}
}

// add makes room for one more command. last is the number of the previous command on the same key, plus 1; 0 is none.
func (b *batch) add(last int32) *op {
	b.ordered = b.ordered || last > 0 && b.ops[last-1].usesSHA()
	b.ops = append(b.ops, op{})
	return &b.ops[len(b.ops)-1]
}

// usesSHA reports whether the command calls a script that the server may have lost.
func (o *op) usesSHA() bool { return o.kind == opStop || o.kind == opMeter }

func (b *batch) addHit(c *call, h *callHit) {
	if h.isMeter() && !h.Delete {
		b.addMeter(c, h)
		return
	}
	key := unsafe.String(unsafe.SliceData(h.Key), len(h.Key))
	at := b.index.find(h.hash, func(op int32) bool { return b.ops[op].key == key })
	refund := h.Refund && h.n > 0
	if refund || h.Delete || *at == 0 || b.ops[*at-1].kind != opCount {
		o := b.add(*at)
		o.hash, o.key, o.first, o.now = h.hash, key, h, c.now
		switch {
		case h.Delete:
			o.kind = opDelete
		case refund:
			o.kind, o.n = opRefund, h.n
		}
		*at = int32(len(b.ops))
	}
	h.op = *at - 1
	o := &b.ops[h.op]
	o.asking = o.asking || h.asking
	if !refund {
		o.n = counter.Saturate(o.n, h.n)
		h.prefix = o.n
	}
}

func (b *batch) addStop(c *call, hits []callHit) {
	o := b.add(0)
	o.kind, o.stop = opStop, &stopOp{hits: hits}
	for i := range hits {
		h := &hits[i]
		h.op = int32(len(b.ops)) - 1
		h.prefix = h.ttl(c.now, b.jitter)
		o.stop.meters = o.stop.meters || h.isMeter()
		o.asking = o.asking || h.asking
		// Later hits on this key need a command of their own, after this one.
		key := unsafe.String(unsafe.SliceData(h.Key), len(h.Key))
		at := b.index.find(h.hash, func(op int32) bool { return b.ops[op].holds(key) })
		b.ordered = b.ordered || *at > 0 && *at <= h.op && b.ops[*at-1].usesSHA()
		*at = h.op + 1
	}
}

// holds reports whether the command concerns the key.
func (o *op) holds(key string) bool {
	if o.kind != opStop {
		return o.key == key
	}
	for i := range o.stop.hits {
		if string(o.stop.hits[i].Key) == key {
			return true
		}
	}
	return false
}

// longestTTL is a thousand years: Redis refuses a time to live whose end in milliseconds exceeds 63 bits.
const longestTTL = 1000 * 365 * 86400

// ttl returns the time to live of a key made by this hit, in seconds: docs/windows.md#life-of-a-key.
func (h *callHit) ttl(now, jitter int64) int64 {
	ttl := min(max(1, h.End-now)+counter.ExpirySlack, longestTTL)
	if j := min(jitter, h.Window/10); j > 0 {
		ttl += rand.Int64N(j)
	}
	return ttl
}

// ttl returns the time to live of the command's key, in seconds.
func (b *batch) ttl(o *op) int64 { return o.first.ttl(o.now, b.jitter) }

// settle works out the answers of one call from the answers to its commands.
func (b *batch) settle(c *call) {
	for i := 0; i < len(c.hits); i++ {
		h := &c.hits[i]
		o := &b.ops[h.op]
		if o.err != nil {
			c.err = o.err
			return
		}
		if h.notExecuted = o.notExecuted; h.notExecuted != nil {
			c.undone++
			continue
		}
		switch o.kind {
		case opCount:
			h.After, h.Spared = counter.Saturate(max(0, o.base), h.prefix), false
		case opRefund, opDelete:
			h.After, h.Spared = o.base, false
		case opMeter: // done by replay
		case opStop:
			if c.err = o.settleStop(); c.err != nil {
				return
			}
			i += len(o.stop.hits) - 1
		}
	}
}

// unsent marks all commands of the batch as not sent.
func (b *batch) unsent() {
	for i := range b.ops {
		b.ops[i].notExecuted = &notSent
	}
}

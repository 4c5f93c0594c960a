package redis

import (
	"math/rand/v2"
	"unsafe"

	"gatehouse/ratelimit/internal/counter"
)

// maxBatchHits bounds the hits of one batch, so that a flood of requests is spread over several connections. A single
// request may have more hits.
const maxBatchHits = 2048

type opKind uint8

// op is one command of a batch. The commands that have to precede it, such as SET NX, belong to the op.
type op struct {
	kind opKind
	// seen means that the key is known to have an expiry. fresh means that this is unknown, so that SET NX, which
	// creates a missing key with an expiry, precedes INCRBY.
	seen, fresh bool
	// asking means that ASKING precedes each command of the op, since the slot of the key is moving to this node.
	asking     bool
	overflowed bool // INCRBY has failed, since the total would exceed 2^63-1

	hash  uint64
	key   string   // the key's bytes belong to a call of the batch
	n     int64    // hits to add, at most 2^63-1, or to refund
	first *callHit // the hit for which the op was made, at the time now; its window determines the key's expiry
	now   int64

	base        int64        // from the reply: the total before the batch's hits, or after a refund
	err         error        // the server has refused this command
	notExecuted *notExecuted // nil if the command was executed; otherwise why not, in which case it can be sent again

	stop  *stopOp // only for kind opStop
	meter int32   // only for kind opMeter: the index of its meterOp in batch.meters
}

// stopOp has the fields that only an op of kind opStop needs.
type stopOp struct {
	hits []callHit
	was  []string // the totals or states before the op, one for each of hits, as text
	held bool     // nothing was written, since a hit exceeds its limit
	// meters means that some of the hits are on sliding windows or token buckets. now is then the server's time in µs,
	// from the reply.
	meters bool
	now    int64
}

// batch is a list of calls that are sent to the server together. It is reused for later calls.
type batch struct {
	calls  []*call
	ops    []op
	meters []meterOp
	index  opIndex
	jitter int64
	// ordered means that the batch has a command that follows a script on the same key. Such a script must not be sent
	// again if the server does not have it, since it would then run after the command.
	ordered bool
	// refusal is the first word of an error reply that concerns the server and not the command, such as LOADING; empty
	// if there was none.
	refusal string
}

// turn is how many requests of one client connection are put into a batch if the batch has no room for all waiting
// requests.
const turn = 64

// inTurns moves calls from the queue into a batch: all of them, if they fit. Otherwise it moves as many as fit, but at
// most turn requests of each client connection, so that a connection with thousands of requests does not delay the
// others.
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
	opCount  opKind = iota // INCRBY, or GET if nothing is added
	opRefund               // a script that subtracts, but not below 0
	opStop                 // a script that counts all of some hits of one call, or none
	opDelete               // DEL
	opMeter                // a script for runs of equal hits on one sliding window or token bucket
)

// build makes the commands of a batch for the calls whose callers still wait, and drops the other calls. Each key has
// one command, however many hits it has, unless a script on the key comes between: hits after the script need another
// command.
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
					b.addHit(c, h) // this algorithm counts only hits within the limit anyway
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

// add appends an op. last is the index of the previous op on the same key, plus 1; 0 means that there is none.
func (b *batch) add(last int32) *op {
	b.ordered = b.ordered || last > 0 && b.ops[last-1].usesSHA()
	b.ops = append(b.ops, op{})
	return &b.ops[len(b.ops)-1]
}

// usesSHA reports whether the op calls a script by its SHA-1, which fails if the server has lost its scripts.
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
		// Later hits on this key need another op, after the op of this call.
		key := unsafe.String(unsafe.SliceData(h.Key), len(h.Key))
		at := b.index.find(h.hash, func(op int32) bool { return b.ops[op].holds(key) })
		b.ordered = b.ordered || *at > 0 && *at <= h.op && b.ops[*at-1].usesSHA()
		*at = h.op + 1
	}
}

// holds reports whether the op has the key.
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

// longestTTL is a thousand years, in seconds. Redis refuses a time to live that ends at a time whose number of
// milliseconds has more than 63 bits.
const longestTTL = 1000 * 365 * 86400

// ttl returns the time to live of a key that this hit creates, in seconds: docs/windows.md#life-of-a-key.
func (h *callHit) ttl(now, jitter int64) int64 {
	ttl := min(max(1, h.End-now)+counter.ExpirySlack, longestTTL)
	if j := min(jitter, h.Window/10); j > 0 {
		ttl += rand.Int64N(j)
	}
	return ttl
}

// ttl returns the time to live of the op's key, in seconds.
func (b *batch) ttl(o *op) int64 { return o.first.ttl(o.now, b.jitter) }

// settle fills in the answers to the hits of one call, from the replies to the batch's ops.
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
		case opMeter: // replay has filled in the answer
		case opStop:
			if c.err = o.settleStop(); c.err != nil {
				return
			}
			i += len(o.stop.hits) - 1
		}
	}
}

// unsent marks all ops of the batch as not sent.
func (b *batch) unsent() {
	for i := range b.ops {
		b.ops[i].notExecuted = &notSent
	}
}

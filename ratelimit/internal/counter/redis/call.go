package redis

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"gatehouse/ratelimit/internal/counter"
)

// call is one request on its way through the store. It has a copy of everything: the caller may leave, and use its keys
// and hits for something else, while the batch is in the store.
type call struct {
	now    int64
	stop   counter.Stop
	hits   []callHit
	keys   []byte // all keys, back to back
	undone int    // hits that the server did not execute; set between claim and ready

	arrived int64           // on the store's clock
	stay    time.Duration   // how long the caller can wait
	leave   int64           // when the watchdog expires the call, on the same clock
	ctx     context.Context // the caller's, for the watchdog; nil: the caller itself watches it
	state   atomic.Int32
	err     error            // set between claim and ready
	ready   chan struct{}    // has room for one
	started *counter.Pending // completed instead of ready; nil: the caller waits
	resume  resumer          // for started
}

// callHit is a copy of a Hit, with its answer.
type callHit struct {
	counter.Hit
	hash   uint64
	n      int64 // the hits to add, or to refund
	asking bool

	// The batch sets the fields below. Before that, they may have values of another request.
	op          int32        // the command that carries it
	prefix      int64        // the command's hits up to and including this one
	notExecuted *notExecuted // why the server did not execute it; nil if it did
}

// States of a call. The goroutine that moves a call out of waiting decides how the call ends. No goroutine touches the
// call after its last owner has returned it to the pool.
const (
	waiting  = iota
	answered // by its batch: the caller owns it
	left     // its caller has left: the batch owns it
	canceled // answered by the breaker or the watchdog: the batch owns it
)

func newCall() *call { return &call{ready: make(chan struct{}, 1)} }

// fill copies a request. hash returns the hash of a key, never 0. asking says for each hit whether the slot of its key
// is moving to the server; nil: for no hit.
func (c *call) fill(req *counter.Request, asking []bool, hash func([]byte) uint64) {
	c.now, c.stop, c.undone, c.err = req.Now, req.Stop, 0, nil
	c.hits, c.keys = c.hits[:0], c.keys[:0]
	size := 0
	for i := range req.Hits {
		size += len(req.Hits[i].Key)
	}
	if cap(c.keys) < size { // grown once, since the hits point into it
		c.keys = make([]byte, 0, max(size, 256))
	}
	c.hits = slices.Grow(c.hits, len(req.Hits))[:len(req.Hits)]
	for i := range req.Hits {
		h, to := &req.Hits[i], &c.hits[i]
		start := len(c.keys)
		c.keys = append(c.keys, h.Key...)
		to.Hit, to.hash, to.n = *h, hash(h.Key), int64(min(h.N, math.MaxInt64))
		to.Key, to.asking, to.notExecuted = c.keys[start:], asking != nil && asking[i], nil
	}
	c.state.Store(waiting)
}

// deliver copies the answers to the request.
func (c *call) deliver(req *counter.Request) {
	for i := range req.Hits {
		req.Hits[i].TakeAnswer(&c.hits[i].Hit)
	}
}

// claim moves the call out of waiting; false if another goroutine has already done so.
func (c *call) claim(to int32) bool { return c.state.CompareAndSwap(waiting, to) }

package redis

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"gatehouse/ratelimit/internal/counter"
)

// call is one request on its way through the store. It has copies of the hits and keys, since the caller may stop
// waiting, and reuse the hits and keys, while the call's batch has no replies yet.
type call struct {
	now    int64
	stop   counter.Stop
	hits   []callHit
	keys   []byte // the keys of all hits, one after another
	undone int    // how many hits the server has not executed; set between claim and the send to ready

	arrived int64           // when the call entered the queue, on the store's clock
	stay    time.Duration   // how long the caller can wait
	leave   int64           // when the watchdog ends the call as timed out, on the store's clock
	ctx     context.Context // the caller's context, for the watchdog to watch; nil: the caller itself watches it
	state   atomic.Int32
	err     error            // why the call has failed; set between claim and the send to ready
	ready   chan struct{}    // gets a value when the call has ended; has room for one
	started *counter.Pending // for a call that came by Server.Start: completed in place of ready; nil: a caller waits
	resume  resumer          // for a call with started set: carries out hits that were not executed
}

// callHit is a copy of a Hit. It also receives the answer.
type callHit struct {
	counter.Hit
	hash   uint64
	n      int64 // how many hits to add or to refund
	asking bool

	// build and settle set the fields below. Before that, they may have values of an earlier request.
	op          int32        // the index of the op that has this hit
	prefix      int64        // how many hits the op has up to and including this one
	notExecuted *notExecuted // why the server has not executed the hit; nil if it has
}

// The states of a call. The goroutine that moves a call out of the state waiting decides how the call ends, and so
// determines its owner. The owner may return the call to the pool; no goroutine uses the call afterwards.
const (
	waiting  = iota
	answered // by its batch; the caller is the owner
	left     // the caller has stopped waiting; the batch is the owner
	canceled // ended with an error by the breaker or the watchdog; the batch is the owner
)

func newCall() *call { return &call{ready: make(chan struct{}, 1)} }

// fill copies a request into the call. hash returns the hash of a key, which is never 0. asking says for each hit
// whether the slot of its key is moving to the server; nil: for no hit.
func (c *call) fill(req *counter.Request, asking []bool, hash func([]byte) uint64) {
	c.now, c.stop, c.undone, c.err = req.Now, req.Stop, 0, nil
	c.hits, c.keys = c.hits[:0], c.keys[:0]
	size := 0
	for i := range req.Hits {
		size += len(req.Hits[i].Key)
	}
	if cap(c.keys) < size { // grown only once, since the hits point into it
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

// deliver copies the answers from the call to the request.
func (c *call) deliver(req *counter.Request) {
	for i := range req.Hits {
		req.Hits[i].TakeAnswer(&c.hits[i].Hit)
	}
}

// claim moves the call from waiting to another state. It returns false if another goroutine has already done so.
func (c *call) claim(to int32) bool { return c.state.CompareAndSwap(waiting, to) }

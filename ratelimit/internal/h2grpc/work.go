package h2grpc

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"gatehouse/ratelimit/internal/counter"
)

// work has the calls and answers of one read. It comes from a pool, since a connection needs no work between reads.
type work struct {
	bundle  bundle
	waiting []*Call            // the calls for the store
	costly  []*Call            // the calls that need goroutines of their own
	handed  []*counter.Pending // the calls of one counter.Async.Start
	dead    []*stream          // streams that have ended
}

var workPool = sync.Pool{New: func() any { return new(work) }}

// flushBundle passes the answers so far to the send queue. Then it starts the costly calls on goroutines of their own.
func (c *conn) flushBundle() {
	if len(c.in.work.bundle.answers) > 0 {
		c.out.answer(&c.in.work.bundle, 0)
		for i := range c.in.work.bundle.answers {
			s := c.in.work.bundle.answers[i].stream
			if !s.registered {
				free(s)
			}
		}
		c.in.work.bundle.reset()
	}
	if len(c.in.work.costly) > 0 {
		c.out.flush()
		n := c.out.handOver(c.in.work.costly, c.server.o.MaxStreams)
		for i, x := range c.in.work.costly {
			if i < n {
				c.server.askers.start(x)
			} else {
				c.server.refused(reasonTooManyCalls)
				x.drop()
			}
		}
		clear(c.in.work.costly)
		c.in.work.costly = c.in.work.costly[:0]
	}
}

// findFlushed returns the registered stream with the number id, or nil. If no such stream is registered, findFlushed
// first passes on the answers and calls of this read: the stream of such a call is then registered if its answer waits
// for flow control, or if the call waits for the store.
func (c *conn) findFlushed(id uint32) *stream {
	s := c.out.find(id)
	if s == nil && len(c.in.work.bundle.answers)+len(c.in.work.waiting)+len(c.in.work.costly) > 0 {
		c.flush()
		s = c.out.find(id)
	}
	return s
}

// checksApart is how many incomplete health checks a connection may have in addition to MaxStreams.
const checksApart = 16

// register registers the current stream, because the next frame is not the DATA frame of that stream. It returns false
// if there are too many streams.
func (c *conn) register() bool {
	s := c.in.current
	if s == nil {
		return true
	}
	c.in.current = nil
	s.open = true
	limit := c.server.o.MaxStreams
	if s.header.method == methodCheck { // a health check must be answered however many calls are open
		limit += checksApart
	}
	if !c.out.admit(s, limit) {
		c.server.refused(reasonTooManyCalls)
		c.in.ended.add(s.id)
		free(s)
		return false
	}
	return true
}

// abort resets a stream because of a fault of the client. The answers of this read are sent first.
func (c *conn) abort(id uint32, code http2.ErrCode) *connError {
	c.flush()
	c.out.reset(id, code)
	if c.in.current != nil && c.in.current.id == id {
		free(c.in.current)
		c.in.current = nil
	}
	c.in.ended.add(id)
	return c.spend()
}

// refuse answers a request by a refusal, whether or not the request is complete.
func (c *conn) refuse(s *stream, r *refusal) {
	c.in.work.bundle.refuse(s, r)
	s.refused = true
	if !s.ended {
		c.in.ended.add(s.id)
	}
	if c.in.current == s {
		c.in.current = nil
	}
}

// noteUnread has the service count and log a call of ShouldRateLimit that is refused because its request could not be
// read.
func (c *conn) noteUnread(s *stream, r *refusal) {
	if s.header.method == methodDecide {
		c.server.o.Service.NoteUnread(r.code, errors.New(r.message))
	}
}

// charge takes from the budget the cost of decoding the last header block.
func (c *conn) charge() { c.limits.budget.left -= c.in.headers.size * longListCost / maxHeaderList }

// spend takes from the budget one frame that is not part of a call. If the budget is empty, it returns an error, which
// ends the connection.
func (c *conn) spend() *connError {
	if !c.limits.budget.spend() {
		return &connError{http2.ErrCodeEnhanceYourCalm, reasonFlood, "too many frames without calls"}
	}
	return nil
}

func (c *conn) spendIf(pays bool) *connError {
	if pays {
		return c.spend()
	}
	return nil
}

// allowance bounds the frames and pings that a client may send without calls.
type allowance struct {
	budget   budget
	lastPing time.Time
	strikes  int
}

// budget is how many frames a client may still send that are not part of a call. It grows with each call, and with
// time.
type budget struct {
	left   int
	filled time.Time
}

const (
	budgetMost      = 2000
	budgetPerCall   = 4
	budgetPerSecond = 200
	longListCost    = 100 // in frames, for a header list of 64 KiB: decoding one takes a millisecond
)

func (b *budget) earn() {
	if b.left < budgetMost {
		b.left += budgetPerCall
	}
}

func (b *budget) spend() bool {
	if b.left--; b.left > 0 {
		return true
	}
	now := time.Now()
	b.left = min(budgetMost, int(now.Sub(b.filled).Seconds()*budgetPerSecond))
	b.filled = now
	return b.left > 0
}

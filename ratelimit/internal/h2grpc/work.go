package h2grpc

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"gatehouse/ratelimit/internal/counter"
)

// work is the calls and answers of one read. It is pooled, since a connection needs none between reads.
type work struct {
	bundle  bundle
	waiting []*Call            // wait for the store
	costly  []*Call            // need goroutines of their own
	handed  []*counter.Pending // the calls of one Start
	dead    []*stream          // have ended
}

var workPool = sync.Pool{New: func() any { return new(work) }}

// flushBundle passes the answers so far to the send queue, then starts the calls that take long.
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

// findFlushed returns the registered stream with that id, or nil. If there is none, the answers and calls of this read
// are passed on first: a stream of this read may then be registered, since it waits for a window or for the store.
func (c *conn) findFlushed(id uint32) *stream {
	s := c.out.find(id)
	if s == nil && len(c.in.work.bundle.answers)+len(c.in.work.waiting)+len(c.in.work.costly) > 0 {
		c.flush()
		s = c.out.find(id)
	}
	return s
}

// checksApart is how many unfinished health checks a connection may have beyond its other streams.
const checksApart = 16

// register registers the stream whose DATA did not come next. false: there are too many streams.
func (c *conn) register() bool {
	s := c.in.current
	if s == nil {
		return true
	}
	c.in.current = nil
	s.open = true
	limit := c.server.o.MaxStreams
	if s.header.method == methodCheck { // a health check is answered however many calls are open
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

// abort resets a stream. Earlier answers are sent before the reset.
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

// refuse refuses a request, whether or not it is complete.
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

// noteUnread counts and logs a decision that is refused because it could not be read.
func (c *conn) noteUnread(s *stream, r *refusal) {
	if s.header.method == methodDecide {
		c.server.o.Service.NoteUnread(r.code, errors.New(r.message))
	}
}

// charge takes the cost of decoding the last list of fields from the budget.
func (c *conn) charge() { c.limits.budget.left -= c.in.headers.size * longListCost / maxHeaderList }

// spend takes a frame that is no part of a call from the budget.
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

// allowance is how many frames and pings that begin no call a client may still send.
type allowance struct {
	budget   budget
	lastPing time.Time
	strikes  int
}

// budget is how many frames that begin no call a connection may still send. It grows with every call and with time.
type budget struct {
	left   int
	filled time.Time
}

const (
	budgetMost      = 2000
	budgetPerCall   = 4
	budgetPerSecond = 200
	longListCost    = 100 // frames that a list of fields of 64 KiB costs: decoding one takes a millisecond
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

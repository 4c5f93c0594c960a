package h2grpc

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/service"
)

// work is what one read brings. It is pooled, since a connection has none between reads.
type work struct {
	bundle  bundle
	waiting []*Call            // for the store
	costly  []*Call            // for goroutines of their own
	handed  []*counter.Pending // of one Start
	dead    []*stream          // that have ended
}

var works = sync.Pool{New: func() any { return new(work) }}

// decide begins a call whose message has come. Its answer goes into the connection's bundle, now or, where a store is
// asked, when the store has answered.
func (c *conn) decide(s *stream, message []byte) {
	x := calls.Get().(*Call)
	x.conn, x.stream = c, s
	x.ctx, x.end = c.startSpan(s)
	if len(message) <= bufferBytes {
		x.body = append(x.body[:0], message...)
	} else {
		x.body, x.kept = message, cap(message) // the stream's own, or decompressed for it
		if c.server.account.used.Add(int64(x.kept)); !c.server.relieve() {
			c.server.refused(reasonBuffered)
			c.in.work.bundle.finish(x, s.refusal(codes.ResourceExhausted, "too many long messages"))
			return
		}
	}
	if s.header.timed {
		x.deadline = c.in.now.Add(s.header.timeout)
	}
	o := &c.server.o
	if err := x.Request.Unmarshal(x.body); err != nil {
		o.Service.NoteRefused(service.Malformed, err)
		c.in.work.bundle.finish(x,
			s.refusal(codes.Internal, "grpc: failed to unmarshal the received message: "+err.Error()))
		return
	}
	if o.Service.Cost(len(x.body)) > costly {
		c.flushBundle()
		c.in.work.costly = append(c.in.work.costly, x)
		return
	}
	if asks, ended := c.server.begin(x, c.in.arrived); asks {
		c.in.work.waiting = append(c.in.work.waiting, x)
	} else {
		c.in.work.bundle.finish(x, ended)
	}
}

// costly is the estimated time above which a call gets a goroutine of its own, so that its neighbours on the connection
// do not wait for it.
const costly = 200 * time.Microsecond

// flush passes answers to the send queue and calls to the store.
func (c *conn) flush() {
	c.flushBundle()
	if len(c.in.work.waiting) > 0 {
		c.server.startAll(c, c.in.work.waiting)
		clear(c.in.work.waiting)
		c.in.work.waiting = c.in.work.waiting[:0]
	}
}

// flushBundle hands over the answers so far, then starts the calls that take long.
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

// findFlushed is the registered stream of that id, or nil. The answer or call of one that this read has completed is
// passed on before, since the send queue has to know of a stream that is waiting for a window, or for the store.
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

// register registers the stream whose DATA did not come next; false: there are too many.
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

// abort resets a stream. What was answered before goes out before.
func (c *conn) abort(id uint32, code errCode) *connError {
	c.flush()
	c.out.reset(id, code)
	if c.in.current != nil && c.in.current.id == id {
		free(c.in.current)
		c.in.current = nil
	}
	c.in.ended.add(id)
	return c.spend()
}

// refuse answers a request that gets no further, whether it is complete or not.
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

// charge takes from the budget what decoding the last list of fields has cost.
func (c *conn) charge() { c.limits.budget.left -= c.in.headers.size * longListCost / maxHeaderList }

// spend pays for a frame that is no part of a call.
func (c *conn) spend() *connError {
	if !c.limits.budget.spend() {
		return &connError{codeEnhanceYourCalm, reasonFlood, "too many frames without calls"}
	}
	return nil
}

func (c *conn) spendIf(pays bool) *connError {
	if pays {
		return c.spend()
	}
	return nil
}

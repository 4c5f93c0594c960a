package h2grpc

import (
	"sync"
	"time"

	"gatehouse/ratelimit/internal/counter"
)

// This file is what happens to calls that need a store. Where the store can, it takes the calls of one read together
// and completes them on the goroutine that has read its answers; else a goroutine waits for each.

// startAll hands the calls of one read to the store.
func (s *Server) startAll(c *conn, calls []*Call) {
	n := c.out.handOver(calls, s.o.MaxStreams)
	for _, x := range calls[n:] {
		s.refused(reasonTooManyCalls)
		x.drop()
	}
	for i := 0; i < n; {
		to := s.asyncOf(calls[i], c.in.now)
		if to == nil {
			s.askers.start(calls[i])
			i++
			continue
		}
		c.in.work.handed = append(c.in.work.handed[:0], &calls[i].started)
		for i++; i < n && s.asyncOf(calls[i], c.in.now) == to; i++ {
			c.in.work.handed = append(c.in.work.handed, &calls[i].started)
		}
		for _, st := range to.Start(c.in.work.handed) {
			if x := st.Tag.(*Call); st.Err != nil {
				c.in.work.bundle.finish(x, s.complete(x, st.Err))
			} else {
				s.askers.start(x)
			}
		}
	}
	clear(c.in.work.handed)
	if n := len(c.in.work.bundle.answers); n > 0 {
		c.out.answer(&c.in.work.bundle, n)
		c.in.work.bundle.reset()
	}
}

// handOver registers the streams of calls that go to a store, and reports how many of the first are within the limit of
// streams; the others are refused.
func (o *sendQueue) handOver(calls []*Call, limit int) (accepted int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, x := range calls {
		s := x.stream
		if !s.registered && len(o.streams) >= limit {
			for _, x := range calls[i:] {
				o.refuseStream(x.stream)
			}
			return i
		}
		o.register(s)
		s.inStore = true
		o.inStore++
	}
	return len(calls)
}

// asyncOf is what takes a call without a goroutine that waits; nil: nothing does.
func (s *Server) asyncOf(x *Call, now time.Time) counter.Async {
	store, request := s.o.Service.Pending(&x.Call)
	async, ok := store.(counter.AsyncStore)
	if !ok || !x.deadline.IsZero() && x.deadline.Sub(now) <= counter.Soon {
		return nil
	}
	x.started.Req, x.started.Deadline, x.started.Owner, x.started.Tag = request, x.deadline, s, x
	x.started.From = x.conn.id
	return async.Async(request)
}

// complete completes the decision of a call whose store has answered.
func (s *Server) complete(x *Call, storeErr error) (ended *refusal) {
	defer func() {
		if p := recover(); p != nil {
			ended = s.panicked(x, p)
		}
	}()
	err := s.o.Service.Complete(&x.Call, storeErr, s.o.Service.Now())
	s.count(&x.Call)
	return s.refusalOf(x, err)
}

// Complete implements counter.Owner: the answers to the calls of one connection go out together.
func (s *Server) Complete(done []*counter.Pending) {
	b := bundles.Get().(*bundle)
	for i := 0; i < len(done); {
		c := done[i].Tag.(*Call).conn
		for ; i < len(done); i++ {
			x := done[i].Tag.(*Call)
			if x.conn != c {
				break
			}
			b.finish(x, s.complete(x, done[i].Err))
		}
		s.send(c, b)
	}
	bundles.Put(b)
}

// send sends the answers to calls that a store has finished.
func (s *Server) send(c *conn, b *bundle) {
	c.out.answer(b, len(b.answers))
	b.reset()
	c.out.flush()
	s.relieve()
	if c.ids.last() != maxWindow {
		c.leaveIfDone()
	}
}

// answer finishes a call on a goroutine of its own.
func (s *Server) answer(x *Call) {
	c := x.conn
	asks, ended := true, (*refusal)(nil)
	if !x.begun {
		asks, ended = s.begin(x, s.o.Service.Now())
	}
	if asks {
		ended = s.ask(x)
	}
	b := bundles.Get().(*bundle)
	b.finish(x, ended)
	s.send(c, b)
	bundles.Put(b)
}

var bundles = sync.Pool{New: func() any { return new(bundle) }}

// askers are the goroutines that wait for a store. One that has nothing to do is kept for the next call, since a new
// goroutine has to grow its stack under every call.
type askers struct {
	do   func(*Call)
	most int

	mu      sync.Mutex
	idle    []chan *Call
	running int
	queue   []*Call // while most are running
}

// start runs do(x) on a goroutine.
func (a *askers) start(x *Call) {
	a.mu.Lock()
	if n := len(a.idle); n > 0 {
		next := a.idle[n-1]
		a.idle = a.idle[:n-1]
		a.mu.Unlock()
		next <- x
		return
	}
	if a.running == a.most {
		a.queue = append(a.queue, x)
		a.mu.Unlock()
		return
	}
	a.running++
	a.mu.Unlock()
	go a.run(x)
}

func (a *askers) run(x *Call) {
	next := make(chan *Call, 1)
	for x != nil {
		a.do(x)
		a.mu.Lock()
		switch {
		case len(a.queue) > 0:
			x, a.queue[0] = a.queue[0], nil
			a.queue = a.queue[1:]
			a.mu.Unlock()
		case len(a.idle) < keptAskers:
			a.idle = append(a.idle, next)
			a.mu.Unlock()
			x = <-next
		default:
			a.running--
			a.mu.Unlock()
			return
		}
	}
}

const (
	keptAskers = 512
	mostAskers = 8192
)

// close ends the idle goroutines.
func (a *askers) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, next := range a.idle {
		next <- nil
	}
	a.idle = nil
}

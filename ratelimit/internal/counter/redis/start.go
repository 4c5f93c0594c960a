package redis

import (
	"context"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

// resumer carries out what a server could not execute the first time.
type resumer interface {
	resume(ctx context.Context, req *counter.Request, undone *call) error
}

// resume implements resumer.
func (s *Server) resume(ctx context.Context, req *counter.Request, undone *call) error {
	return s.addLater(ctx, req, undone)
}

// Async implements counter.AsyncStore.
func (s *Server) Async(*counter.Request) counter.Async { return s }

// Start implements counter.Async.
func (s *Server) Start(calls []*counter.Pending) []*counter.Pending { return s.start(calls, s) }

func (s *Server) start(calls []*counter.Pending, resume resumer) []*counter.Pending {
	now := s.clock()
	open := s.breaker.IsOpen()
	for _, st := range calls {
		st.Err, st.Own = nil, nil
		stay := s.o.Settings.Timeout
		if !st.Deadline.IsZero() {
			stay = min(stay, st.Deadline.Sub(s.begun)-time.Duration(now)-link.LeaveBefore)
		}
		if open || stay <= patient {
			continue
		}
		c := s.calls.Get().(*call)
		c.fill(st.Req, nil, s.hash)
		c.started, c.arrived, c.stay, c.leave = st, now, stay, now+int64(stay-watchTick)
		c.resume, st.Own = resume, c
	}
	return s.enqueueAll(calls, now, open)
}

// enqueueAll puts calls into the queue and returns those that it does not. Once the lock is given up, the others are
// the store's.
func (s *Server) enqueueAll(calls []*counter.Pending, now int64, open bool) (refused []*counter.Pending) {
	refused = calls[:0]
	s.mu.Lock()
	defer s.mu.Unlock()
	open = open || s.breaker.IsOpen() // opened answers only what it finds
	for _, st := range calls {
		switch {
		case s.closed:
			st.Err = link.ErrClosed
		case open:
			st.Err = counter.ErrOpen
		case st.Own != nil:
			s.queue = append(s.queue, st.Own.(*call))
			continue
		}
		if c, ok := st.Own.(*call); ok {
			c.started = nil
			s.calls.Put(c)
		}
		refused = append(refused, st)
	}
	if len(s.queue) > 0 {
		s.dispatchDue(now)
	}
	return refused
}

// end takes the answer of a call that was started and that its batch has claimed. It is complete, unless the server has
// to be called again: then a separate goroutine completes it.
func (s *Server) end(c *call) (done *counter.Pending) {
	st := c.started
	c.started = nil
	st.Err = c.err
	if c.err == nil {
		c.deliver(st.Req)
		if c.undone > 0 {
			go func() {
				ctx := context.Background()
				if !st.Deadline.IsZero() {
					var cancel context.CancelFunc
					ctx, cancel = context.WithDeadline(ctx, st.Deadline)
					defer cancel()
				}
				st.Err = c.resume.resume(ctx, st.Req, c)
				st.Owner.Complete([]*counter.Pending{st})
			}()
			return nil
		}
	}
	s.recycle(c)
	return st
}

// complete notifies the owners, a run of requests of one owner at a time. No lock is held.
func complete(done []*counter.Pending) {
	for len(done) > 0 {
		n := 1
		for n < len(done) && done[n].Owner == done[0].Owner {
			n++
		}
		done[0].Owner.Complete(done[:n])
		done = done[n:]
	}
}

// cancel answers a call whose batch is not back yet. One that was started is completed by settle. s.mu is held.
func (s *Server) cancel(c *call, err error) {
	if !c.claim(canceled) {
		return
	}
	c.err = err
	if st := c.started; st != nil {
		c.started = nil
		st.Err = err
		s.canceled = append(s.canceled, st)
		return
	}
	c.ready <- struct{}{}
}

// settle completes the calls that were canceled. s.mu is not held.
func (s *Server) settle() {
	s.mu.Lock()
	done := s.canceled
	s.canceled = nil
	s.mu.Unlock()
	complete(done)
}

// Async implements counter.AsyncStore: a node takes a request whose counters it has all.
func (c *Cluster) Async(req *counter.Request) counter.Async {
	if len(req.Hits) == 0 || req.Stop == counter.StopAll {
		return nil
	}
	if n := c.sole(req); n != nil {
		return n
	}
	return nil
}

// Start implements counter.Async.
func (n *clusterNode) Start(calls []*counter.Pending) []*counter.Pending {
	refused := n.server.start(calls, n)
	for _, st := range refused {
		if st.Err == link.ErrClosed { // the node has just been given up: Add finds the others
			st.Err = nil
		}
	}
	return refused
}

// resume implements resumer.
func (n *clusterNode) resume(ctx context.Context, req *counter.Request, undone *call) error {
	return n.cluster.addElsewhere(ctx, req, n, undone)
}

// Async implements counter.AsyncStore.
func (c *connecting) Async(req *counter.Request) counter.Async {
	if s, ok := c.present().(counter.AsyncStore); ok {
		return s.Async(req)
	}
	return nil
}

package redis

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

// minSpacing is the least time, in ns, between the starts of two batches if one of them has no replies yet. It keeps
// batches from becoming so small that throughput suffers. A server nearby replies sooner than that.
const minSpacing = int64(500 * time.Microsecond)

// spacing returns how long after the last batch the next one may start on another connection, in ns: normally half of
// the average round trip. So there are usually two batches on their way, and hits wait for half a round trip at most.
// When a server suddenly becomes slow, more batches are on their way, up to PoolSize. s.mu is held.
func (s *Server) spacing() int64 {
	return max(minSpacing, s.trip/2, 2*int64(s.o.Settings.PipelineWindow))
}

// pipeline is one connection and the goroutine that sends batches over it, one at a time.
type pipeline struct {
	store    *Server
	link     connection
	overflow bool // opened because of the setting Create; ends when it is idle
	replaced bool // given up by replaceStuck; guarded by store.mu
	batch    batch

	work chan bool // true: a batch may be waiting; false: send a PING
	// used and rested are when the pipeline last took a batch, and when it last became idle, on the store's clock;
	// guarded by store.mu.
	used, rested int64
	done         []*counter.Pending // requests of Server.Start whose batch has its replies; only the goroutine uses it
	took         int64              // round trip of the last batch, until take uses it; only the goroutine uses it

	mu    sync.Mutex
	out   []*call // the calls that were sent and have no replies yet, for the breaker; nil while replies are delivered
	since int64   // when these calls were sent, on the store's clock
	// watched measures how long the calls in out have had no replies; only the watchdog uses it.
	watched link.OutFor
}

// newPipeline starts a pipeline that uses the connection in via. s.mu is held.
func (s *Server) newPipeline(via connection, overflow bool) *pipeline {
	l := &pipeline{store: s, link: via, overflow: overflow, work: make(chan bool, 1), used: s.clock()}
	s.pipelines = append(s.pipelines, l)
	s.wg.Go(l.run)
	return l
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

// enqueueAll puts calls into the queue, and returns those that it refuses. Once it has released the lock, the queued
// calls belong to the store. open says that the breaker is open; now is the time on the store's clock.
func (s *Server) enqueueAll(calls []*counter.Pending, now int64, open bool) (refused []*counter.Pending) {
	refused = calls[:0]
	s.mu.Lock()
	defer s.mu.Unlock()
	open = open || s.breaker.IsOpen() // opened, which ends the queued calls, may have run already
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

// enqueue puts a call into the queue, and starts a batch if one is due.
func (s *Server) enqueue(c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return link.ErrClosed
	case s.breaker.IsOpen(): // it may have opened since the caller has checked
		return counter.ErrOpen
	}
	s.queue = append(s.queue, c)
	s.dispatchDue(c.arrived)
	return nil
}

// dispatchDue starts a batch if one is due: if no batch is on its way, or spacing has passed, or the queue is long.
// s.mu is held.
func (s *Server) dispatchDue(now int64) {
	if s.busy == 0 || now-s.dispatched >= s.spacing() || len(s.queue) >= maxBatchHits {
		s.dispatch(now)
	}
}

// dispatch starts a batch: it wakes an idle pipeline, or a new one if there are fewer than PoolSize. It returns false
// if all pipelines are busy. s.mu is held.
func (s *Server) dispatch(now int64) bool {
	var l *pipeline
	switch n := len(s.idle); {
	case n > 0:
		l = s.idle[n-1]
		s.idle = s.idle[:n-1]
	case len(s.pipelines) < s.o.Settings.PoolSize:
		l = s.newPipeline(s.newLink(s.o.Settings.Timeout), false)
	default:
		return false
	}
	s.send(l, true, now)
	return true
}

// send wakes an idle pipeline, for a batch or for a PING. s.mu is held.
func (s *Server) send(l *pipeline, batch bool, now int64) {
	s.busy++
	s.dispatched = now
	l.work <- batch
	if s.asleep {
		s.asleep = false
		kick(s.wake)
	}
}

// run is the pipeline's goroutine. It sends batches and PINGs until the pipeline or the store is closed.
func (l *pipeline) run() {
	s := l.store
	defer l.link.close()
	for {
		select {
		case <-s.ctx.Done():
			return
		case batch, ok := <-l.work:
			if !ok {
				return // an overflow pipeline that is no longer needed, or a pipeline that was replaced
			}
			if !batch {
				l.ping()
			}
		}
		for l.take() {
			l.flush()
		}
	}
}

// take moves calls from the queue into the batch. If there are none, it returns false, and the pipeline is idle.
func (l *pipeline) take() bool {
	s := l.store
	if s.o.Settings.PipelineWindow > 0 {
		l.linger()
	}
	// Let goroutines that are ready to run queue their hits first: the goroutines of connections that have requests to
	// read, and then the handlers that these goroutines wake. Their hits then join this batch. With little load no
	// goroutine is ready. With 256 calls in flight, batches grow from 14 to 70 hits.
	runtime.Gosched()
	runtime.Gosched()
	now := s.clock()
	s.mu.Lock()
	defer func() {
		closed := s.closed
		s.mu.Unlock()
		if closed {
			s.settle()
		}
	}()
	if l.replaced {
		return false
	}
	if took := l.took; took > 0 {
		s.trip += (took - s.trip) / 8
		l.took = 0
	}
	if len(s.queue) == 0 || s.closed {
		for _, c := range s.queue {
			s.cancel(c, link.ErrClosed)
		}
		s.queue = s.queue[:0]
		s.busy--
		l.rested = now
		s.idle = append(s.idle, l)
		return false
	}
	l.batch.calls, s.queue = inTurns(l.batch.calls[:0], s.queue)
	s.dispatched, l.used = now, now
	l.mu.Lock()
	l.out, l.since = l.batch.calls, now
	l.mu.Unlock()
	return true
}

// linger waits until the first call in the queue has waited for PipelineWindow.
func (l *pipeline) linger() {
	s := l.store
	s.mu.Lock()
	first := int64(-1)
	if len(s.queue) > 0 {
		first = s.queue[0].arrived
	}
	s.mu.Unlock()
	if first < 0 {
		return
	}
	select {
	case <-time.After(s.o.Settings.PipelineWindow - time.Duration(s.clock()-first)):
	case <-s.ctx.Done():
	}
}

// flush builds the batch, sends it, and delivers the answers to the calls.
func (l *pipeline) flush() {
	s, b := l.store, &l.batch
	l.mu.Lock() // build drops calls from the list, which the watchdog reads
	b.build(&s.seen, s.o.JitterMax, s.free)
	l.out = b.calls
	l.mu.Unlock()

	failure := l.link.send(b)
	err := failure
	switch {
	case err == nil && b.refusal == "":
		l.took = s.clock() - l.since // l.since is read without l.mu, since only this goroutine writes it
		s.breaker.Answered()
		s.remember(b)
	case err == nil:
		s.remember(b)
		l.refused(b.refusal)
	case errors.Is(err, errUnsent):
		l.failed(err)
		b.unsent()
		err = nil
	default:
		err = link.Failure(err)
	}

	if err == nil && len(b.meters) > 0 {
		b.replay()
	}
	l.mu.Lock()
	l.out = nil
	l.mu.Unlock()
	for i, c := range b.calls {
		b.calls[i] = nil
		if !c.claim(answered) {
			s.free(c)
			continue
		}
		if c.err = err; err == nil {
			b.settle(c)
		}
		if c.started == nil {
			c.ready <- struct{}{}
		} else if st := s.end(c); st != nil {
			l.done = append(l.done, st)
		}
	}
	complete(l.done)
	clear(l.done)
	l.done = l.done[:0]
	if err != nil {
		l.lost(failure)
	}
}

// remember records the keys of the batch that are now known to have an expiry.
func (s *Server) remember(b *batch) {
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	for i := range b.ops {
		if o := &b.ops[i]; !o.seen && o.kind == opCount && o.n > 0 && o.err == nil && o.notExecuted == nil {
			s.seen.add(o.hash)
		}
	}
}

// end takes the answers of a call that came by Start, after claim has returned true for it. It returns the Pending to
// be completed. If the server has not executed some hits, it returns nil, and a separate goroutine sends these hits
// again and completes the Pending.
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

// complete completes requests: it notifies their owners, with one call for consecutive requests of the same owner. No
// lock is held.
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

// free recycles a call whose caller has stopped waiting. A canceled call is left to the garbage collector, since its
// caller may still have to read the error.
func (s *Server) free(c *call) {
	if c.state.Load() == left {
		s.recycle(c)
	}
}

package redis

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

// minSpacing is the least time between two batches that set out while one of them is still under way, so
// that smaller batches cost no throughput. A store nearby has answered before.
const minSpacing = int64(500 * time.Microsecond)

// spacing is how long after the last batch the next one may start on another connection: half a round trip, so that
// usually two are under way and hits wait for half of one at most. A store that slows down suddenly gets more of them,
// up to PoolSize. s.mu is held.
func (s *Server) spacing() int64 {
	return max(minSpacing, s.trip/2, 2*int64(s.o.Settings.PipelineWindow))
}

// pipeline is one connection and the goroutine that flushes over it, one batch at a time.
type pipeline struct {
	store    *Server
	link     connection
	overflow bool // opened by Create; ends when idle
	replaced bool // given up by replaceStuck; guarded by store.mu
	batch    batch

	work chan bool // true: a batch may be waiting; false: PING
	// When it last took a batch, and when it last went idle; guarded by store.mu.
	used, rested int64
	done         []*counter.Pending // of the batch that has come back; of the goroutine
	took         int64              // how long the last batch was out, until take has noted it; of the goroutine

	mu    sync.Mutex
	out   []*call // in the store now, for the breaker; nil when their answers are being handed out
	since int64   // when they set out
	// watched is how long they have been out; the watchdog's.
	watched link.OutFor
}

// newPipeline starts a pipeline; s.mu is held.
func (s *Server) newPipeline(via connection, overflow bool) *pipeline {
	l := &pipeline{store: s, link: via, overflow: overflow, work: make(chan bool, 1), used: s.clock()}
	s.pipelines = append(s.pipelines, l)
	s.wg.Go(l.run)
	return l
}

// enqueue puts a call into the queue and sees to it that a pipeline will take it.
func (s *Server) enqueue(c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return link.ErrClosed
	case s.breaker.IsOpen(): // since the caller checked; opened answers only the calls it finds
		return counter.ErrOpen
	}
	s.queue = append(s.queue, c)
	s.dispatchDue(c.arrived)
	return nil
}

// dispatchDue is dispatch if a batch is due; s.mu is held.
func (s *Server) dispatchDue(now int64) {
	if s.busy == 0 || now-s.dispatched >= s.spacing() || len(s.queue) >= maxBatchHits {
		s.dispatch(now)
	}
}

// dispatch sends an idle pipeline for the queue, or a new one below PoolSize; s.mu is held. False: all are
// in the store.
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

// send gives an idle pipeline something to do; s.mu is held.
func (s *Server) send(l *pipeline, batch bool, now int64) {
	s.busy++
	s.dispatched = now
	l.work <- batch
	if s.asleep {
		s.asleep = false
		kick(s.wake)
	}
}

// run flushes whenever there is something to flush.
func (l *pipeline) run() {
	s := l.store
	defer l.link.close()
	for {
		select {
		case <-s.ctx.Done():
			return
		case batch, ok := <-l.work:
			if !ok {
				return // an overflow pipeline that is no longer needed, or one replaced
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

// take moves calls from the queue into the batch. False: there is none; the pipeline is idle.
func (l *pipeline) take() bool {
	s := l.store
	if s.o.Settings.PipelineWindow > 0 {
		l.linger()
	}
	// Let ready goroutines run first: connections that have requests to read, then the handlers that these wake, so
	// that their hits join this batch. With little load none is ready. This makes batches of the 256 calls in flight
	// grow from 14 to 70 hits.
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

// turn is how many requests of one connection go into a batch that has no room for all.
const turn = 64

// inTurns moves calls from the queue to a batch: all, or as many as fit, with at most turn requests of a connection, so
// that one that sends thousands does not hold up the others.
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

// linger waits until the first call in the queue is PipelineWindow old.
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

// flush sends the batch and hands out its answers.
func (l *pipeline) flush() {
	s, b := l.store, &l.batch
	l.mu.Lock() // build drops calls from the list that the breaker reads
	b.build(&s.seen, s.o.JitterMax, s.free)
	l.out = b.calls
	l.mu.Unlock()

	failure := l.link.send(b)
	err := failure
	switch {
	case err == nil && b.refusal == "":
		l.took = s.clock() - l.since // only this goroutine writes since
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

// free takes back a call that its caller no longer waits for. A canceled one is left to the collector:
// its caller may still be about to read why.
func (s *Server) free(c *call) {
	if c.state.Load() == left {
		s.recycle(c)
	}
}

// remember notes the keys that are now known to have an expiry and were not before.
func (s *Server) remember(b *batch) {
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	for i := range b.ops {
		if o := &b.ops[i]; !o.seen && o.kind == opCount && o.n > 0 && o.err == nil && o.notExecuted == nil {
			s.seen.add(o.hash)
		}
	}
}

// pinging stands for a PING among what is out.
var pinging = []*call{}

// ping checks an idle connection, so that a lost store is noticed before a request needs it.
func (l *pipeline) ping() {
	if err := l.check(); err != nil {
		l.lost(err)
	}
}

// check sends a PING.
func (l *pipeline) check() error {
	l.mu.Lock()
	l.since, l.out = l.store.clock(), pinging
	l.mu.Unlock()
	err := l.link.ping()
	l.mu.Lock()
	l.out = nil
	l.mu.Unlock()
	if err == nil {
		l.store.breaker.Answered()
	}
	return err
}

// lost notes that a connection has ended. That alone says little about the server, which may have been configured to
// close it: what counts is whether a new one can be opened at once. A time-out is a failure.
func (l *pipeline) lost(err error) {
	s := l.store
	s.forgetKeys()
	if !errors.Is(err, errUnsent) && !errors.Is(err, os.ErrDeadlineExceeded) && s.ctx.Err() == nil &&
		!s.breaker.IsOpen() {
		if err = l.check(); err == nil {
			return
		}
	}
	l.failed(err)
}

// refused notes that the server answers, but cannot count at present.
func (l *pipeline) refused(code string) {
	if code == "READONLY" || code == "MASTERDOWN" {
		l.link.drop() // the name may lead to another server by now
	}
	l.failed(fmt.Errorf("the server answers %s", code))
}

// failed notes a failure of the server.
func (l *pipeline) failed(err error) {
	s := l.store
	if s.ctx.Err() != nil {
		return // it was us
	}
	s.forgetKeys()
	s.trouble()
	if s.breaker.Failed(time.Duration(s.clock())) {
		s.opened(fmt.Sprintf("%d failures in a row, the last: %v", link.BreakerFailures, err))
	}
}

// forgetKeys forgets which keys have an expiry: the store may come back empty.
func (s *Server) forgetKeys() {
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	s.seen.forget()
}

// opened answers everybody who waits, now that the breaker is open.
func (s *Server) opened(why string) {
	s.log(slog.LevelError, "the key-value store is lost; the failure mode answers until it is back", "why", why)
	if s.breaker.Warns(time.Duration(s.clock())) {
		s.log(slog.LevelWarn, "the key-value store is lost and found over and over", "openings within a minute, more than",
			link.Flaps)
	}
	s.mu.Lock()
	for _, c := range s.queue {
		s.cancel(c, counter.ErrOpen)
	}
	clear(s.queue)
	s.queue = s.queue[:0]
	s.mu.Unlock()
	s.breakOff()
	s.trouble()
}

// breakOff answers the callers whose batches are out and ends the connections these are on. It is
// repeated while the breaker is open, since a pipeline may have been about to dial.
func (s *Server) breakOff() {
	defer s.settle()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.pipelines {
		l.mu.Lock()
		for _, c := range l.out {
			s.cancel(c, counter.ErrOpen)
		}
		if l.out != nil {
			l.link.drop()
		}
		l.mu.Unlock()
	}
}

// relocated breaks off all connections, since the server has moved, and probes the new one at once if the breaker is
// open.
func (s *Server) relocated() {
	s.forgetKeys()
	s.mu.Lock()
	for _, l := range s.pipelines {
		l.link.drop()
	}
	if s.probe != nil {
		s.probe.drop() // it probes the old one
	}
	s.mu.Unlock()
	s.wakeProbe()
}

// wakeProbe makes an open breaker probe at once.
func (s *Server) wakeProbe() {
	s.breaker.ProbeNow()
	kick(s.wake)
}

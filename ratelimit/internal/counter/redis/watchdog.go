package redis

import (
	"log/slog"
	"slices"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

const (
	// watchTick is how often the watchdog runs while hits arrive.
	watchTick = 2 * time.Millisecond
	// watchBeat is the longest time between two runs in which this process counts as running: after a longer time it
	// was stopped.
	watchBeat = 4 * time.Millisecond
	// watchRests is how long no hits arrive before the watchdog sleeps.
	watchRests = 100 * time.Millisecond
	// pingAfter is how long a connection is idle before it is pinged.
	pingAfter = time.Second
	// overflowIdle is how long an overflow connection is idle before it is closed.
	overflowIdle = 30 * time.Second
	// probeTimeout bounds one probe of an open breaker.
	probeTimeout = link.ProbeEvery
	// stuckAfter is how many times KVSTORE_TIMEOUT make a pipeline stuck: connecting and sending may each take one.
	stuckAfter = 2
)

// watch handles what no caller and no pipeline can notice: batches that do not come back, hits that no pipeline takes,
// idle connections, an open breaker. It sleeps while there is nothing to watch.
func (s *Server) watch() {
	timer := time.NewTimer(watchTick)
	defer timer.Stop()
	last := s.clock()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		now := s.clock()
		ran := link.RanFor(time.Duration(now-last), watchBeat)
		last = now
		if s.breaker.Aged(s.oldest(now, ran), time.Duration(now)) {
			s.opened("a batch has been out for " + s.o.Stall.String())
		}
		if s.breaker.IsOpen() {
			s.breakOff()
		}
		if s.breaker.ProbeDue(time.Duration(now)) {
			s.startProbe()
		}
		s.mu.Lock()
		s.expireCallers(now)
		s.replaceStuck(now)
		s.scaleUp(now)
		s.pingIdle(now)
		pause := watchTick
		if s.asleep = s.busy == 0 && len(s.queue) == 0 && now-s.dispatched > int64(watchRests); s.asleep {
			if pause = pingAfter / 4; s.breaker.IsOpen() {
				pause = 5 * watchTick // a probe may be due as soon as the previous one has ended
			}
		}
		s.mu.Unlock()
		s.settle()
		timer.Reset(pause)
	}
}

// oldest returns the age of the oldest batch in the store, counting only the time in which this process ran; ran is
// this time since the previous check. A PING counts from when hits began to wait for it: without waiting hits, a late
// answer to a PING says more about this machine than about the store.
func (s *Server) oldest(now int64, ran time.Duration) (oldest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.pipelines {
		if !l.mu.TryLock() {
			continue // the pipeline is building its batch
		}
		switch {
		case len(l.out) > 0:
			oldest = max(oldest, l.watched.Look(l.since, now, ran))
		case l.out != nil && len(s.queue) > 0:
			oldest = max(oldest, l.watched.Look(max(l.since, s.queue[0].arrived), now, ran))
		}
		l.mu.Unlock()
	}
	return oldest
}

// expireCallers answers the callers whose time is up, wherever their hits are; s.mu is held.
func (s *Server) expireCallers(now int64) {
	waits := s.queue[:0]
	for _, c := range s.queue {
		s.expire(c, now)
		if c.state.Load() == waiting {
			waits = append(waits, c)
		} else {
			s.free(c)
		}
	}
	clear(s.queue[len(waits):]) // while a store hangs, the queue holds only callers that still wait
	s.queue = waits
	for _, l := range s.pipelines {
		if !l.mu.TryLock() {
			continue // a batch is being built: the next tick is soon enough
		}
		for _, c := range l.out {
			s.expire(c, now)
		}
		l.mu.Unlock()
	}
}

func (s *Server) expire(c *call, now int64) {
	switch {
	case c.ctx == nil && c.started == nil:
	case c.leave <= now:
		s.cancel(c, counter.ErrTimeout)
	case c.ctx != nil && c.ctx.Err() != nil:
		s.cancel(c, link.ContextError(c.ctx))
	}
}

// scaleUp opens another connection for hits that have waited too long for a batch; s.mu is held.
func (s *Server) scaleUp(now int64) {
	if len(s.queue) == 0 {
		return
	}
	age := now - s.queue[0].arrived
	if age < minSpacing+int64(s.o.Settings.PipelineWindow) || s.dispatch(now) || age < int64(s.o.OnEmptyWait) {
		return
	}
	switch s.o.OnEmpty {
	case Create:
		if len(s.pipelines) < 2*s.o.Settings.PoolSize {
			s.send(s.newPipeline(s.newLink(s.o.Settings.Timeout), true), true, now)
		}
	case Refuse:
		n := 0
		for n < len(s.queue) && now-s.queue[n].arrived >= int64(s.o.OnEmptyWait) {
			s.cancel(s.queue[n], counter.ErrBusy)
			n++
		}
		s.queue = slices.Delete(s.queue, 0, n)
	case Wait:
	}
}

// replaceStuck gives up pipelines that have not come back although all their time-outs have passed, and lets new
// pipelines take their places. A pipeline that does come back ends. s.mu is held.
func (s *Server) replaceStuck(now int64) {
	for i := len(s.pipelines) - 1; i >= 0; i-- {
		l := s.pipelines[i]
		if !l.mu.TryLock() {
			continue
		}
		if l.out != nil && now-l.since > int64(s.o.Settings.Timeout)*stuckAfter {
			for _, c := range l.out {
				s.cancel(c, counter.ErrTimeout)
			}
			l.link.drop()
			l.replaced = true
			close(l.work)
			s.busy--
			s.pipelines = slices.Delete(s.pipelines, i, i+1)
		}
		l.mu.Unlock()
	}
}

// pingIdle pings idle connections and closes idle overflow ones; s.mu is held.
func (s *Server) pingIdle(now int64) {
	if s.breaker.IsOpen() {
		return // the probe replaces all PINGs
	}
	after := int64(pingAfter)
	if s.skew.due() {
		after = 0 // no connection is idle for long, so any will do
	}
	kept := s.idle[:0]
	for _, l := range s.idle {
		switch {
		case l.overflow && now-l.used >= int64(overflowIdle):
			close(l.work)
			s.pipelines = slices.DeleteFunc(s.pipelines, func(of *pipeline) bool { return of == l })
		case now-l.rested >= after && !s.closed:
			after = int64(pingAfter)
			s.busy++
			l.work <- false
		default:
			kept = append(kept, l)
		}
	}
	clear(s.idle[len(kept):])
	s.idle = kept
}

// startProbe checks, on a separate connection with a short time-out, whether a lost store is back.
func (s *Server) startProbe() {
	l := s.newLink(min(probeTimeout, s.o.Settings.Timeout))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.probe = l
	s.wg.Go(func() {
		err := l.ping()
		l.close()
		s.mu.Lock()
		s.probe = nil
		s.mu.Unlock()
		s.breaker.Probed(err == nil)
		if err == nil {
			s.log(slog.LevelWarn, "the key-value store answers again")
		}
	})
}

package redis

import (
	"log/slog"
	"slices"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

const (
	// watchTick is how often the watchdog runs while hits come in.
	watchTick = 2 * time.Millisecond
	// watchBeat is the longest time between two runs that counts as this process running: more means that it was
	// stopped.
	watchBeat = 4 * time.Millisecond
	// watchRests after this long without any.
	watchRests = 100 * time.Millisecond
	// pingAfter is how long a connection is idle before it is pinged.
	pingAfter = time.Second
	// overflowIdle is how long an overflow connection is idle before it is closed.
	overflowIdle = 30 * time.Second
	// probeTimeout bounds one probe of an open breaker.
	probeTimeout = link.ProbeEvery
	// stuckAfter is how many times KVSTORE_TIMEOUT make a pipeline stuck: connecting and sending have one each.
	stuckAfter = 2
)

// watch watches over what no caller and no pipeline can see: batches that do not come back, hits that
// no pipeline takes, connections that rest, an open breaker. It sleeps while there is nothing to watch.
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
				pause = 5 * watchTick // a probe may be due as soon as the one before is back
			}
		}
		s.mu.Unlock()
		s.settle()
		timer.Reset(pause)
	}
}

// oldest is the age of the oldest batch that is out, as far as this process ran meanwhile; ran is how much of the time
// since the previous check that was. A PING counts from when hits began to wait behind it: alone, a late answer to it
// says more about this machine than about the store.
func (s *Server) oldest(now int64, ran time.Duration) (oldest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.pipelines {
		if !l.mu.TryLock() {
			continue // it is on the move
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
	clear(s.queue[len(waits):]) // while a store stands still the queue holds no more than those who wait
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
		rest := copy(s.queue, s.queue[n:])
		clear(s.queue[rest:])
		s.queue = s.queue[:rest]
	case Wait:
	}
}

// replaceStuck gives up pipelines that are not back though every wait of theirs has had its time: another one takes
// their place. One that does come back ends. s.mu is held.
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

// pingIdle pings idle connections and ends overflow ones; s.mu is held.
func (s *Server) pingIdle(now int64) {
	if s.breaker.IsOpen() {
		return // the one probe stands for all
	}
	after := int64(pingAfter)
	if s.skew.due() {
		after = 0 // one that is hardly ever idle will do
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

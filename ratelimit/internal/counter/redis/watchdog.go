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
	// watchBeat is the regular time between two runs of the watchdog, for link.RanFor: much longer times show that this
	// process was not running.
	watchBeat = 4 * time.Millisecond
	// watchRests is how long no hits must arrive before the watchdog runs less often.
	watchRests = 100 * time.Millisecond
	// pingAfter is how long a connection must be idle before it is pinged.
	pingAfter = time.Second
	// overflowIdle is how long an overflow connection must be idle before it is closed.
	overflowIdle = 30 * time.Second
	// probeTimeout bounds one probe of an open breaker.
	probeTimeout = link.ProbeEvery
	// stuckAfter is after how many times KVSTORE_TIMEOUT a pipeline counts as stuck. Connecting may take one
	// KVSTORE_TIMEOUT, and sending another.
	stuckAfter = 2
)

// watch is the watchdog. It handles what neither a caller nor a pipeline can notice: batches that get no replies, hits
// that no pipeline takes, idle connections, and an open breaker. While there is nothing to watch, it runs less often.
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

// oldest returns the age of the oldest batch without replies, counting only time in which this process ran; ran is how
// long the process ran since the previous call of oldest. A PING counts only from the time when hits began to wait for
// its pipeline: while no hits wait, a late reply to a PING says more about this machine than about the server.
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

// expireCallers ends the calls whose time is over, whether their hits are in the queue or in a batch. s.mu is held.
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
	clear(s.queue[len(waits):]) // so while a server hangs, the queue has only calls whose callers still wait
	s.queue = waits
	for _, l := range s.pipelines {
		if !l.mu.TryLock() {
			continue // the pipeline is building its batch; the next tick is soon enough
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

// scaleUp starts a batch for hits that have waited too long. If all pipelines are busy, it does what the setting
// OnEmpty says. s.mu is held.
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

// replaceStuck gives up pipelines that still wait for their server although all their time-outs are over, so that new
// pipelines take their places. If the server of such a pipeline answers after all, the pipeline ends. s.mu is held.
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

// pingIdle sends a PING over each idle connection, and closes idle overflow connections. s.mu is held.
func (s *Server) pingIdle(now int64) {
	if s.breaker.IsOpen() {
		return // while the breaker is open, probes take the place of PINGs
	}
	after := int64(pingAfter)
	if s.skew.due() {
		after = 0 // a clock is to be read: ping any connection, since none may be idle for long
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

// startProbe checks whether a lost server answers again, over a separate connection with a short time-out.
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

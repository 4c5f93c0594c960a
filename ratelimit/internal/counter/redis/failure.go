package redis

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

// pinging is the value of pipeline.out during a PING.
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

// lost notes that a connection has ended. The end alone says little about the server, which may be configured to close
// connections: the server has failed if no new connection can be opened at once. A time-out is a failure.
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

// refused notes that the server answers but cannot count at present.
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
		return // the store was closed
	}
	s.forgetKeys()
	s.trouble()
	if s.breaker.Failed(time.Duration(s.clock())) {
		s.opened(fmt.Sprintf("%d failures in a row, the last: %v", link.BreakerFailures, err))
	}
}

// forgetKeys forgets which keys have an expiry: the server may have lost its keys.
func (s *Server) forgetKeys() {
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	s.seen.forget()
}

// opened answers all waiting calls after the breaker has opened.
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

// breakOff answers the callers whose batches are in the store and drops all connections: an idle one would be counted as
// open until the next PING, which is not sent while the breaker is open. breakOff is repeated while the breaker is open,
// since a pipeline may have been about to dial.
func (s *Server) breakOff() {
	defer s.settle()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.pipelines {
		l.mu.Lock()
		for _, c := range l.out {
			s.cancel(c, counter.ErrOpen)
		}
		l.link.drop()
		l.mu.Unlock()
	}
}

// cancel answers a call whose batch is not back yet. A call that was started is completed by settle. s.mu is held.
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

// settle completes the started calls that were canceled. s.mu is not held.
func (s *Server) settle() {
	s.mu.Lock()
	done := s.canceled
	s.canceled = nil
	s.mu.Unlock()
	complete(done)
}

// relocated drops all connections, since the server has moved, and probes the new server at once if the breaker is
// open.
func (s *Server) relocated() {
	s.forgetKeys()
	s.mu.Lock()
	for _, l := range s.pipelines {
		l.link.drop()
	}
	if s.probe != nil {
		s.probe.drop() // it probes the old server
	}
	s.mu.Unlock()
	s.wakeProbe()
}

// wakeProbe makes an open breaker probe at once.
func (s *Server) wakeProbe() {
	s.breaker.ProbeNow()
	kick(s.wake)
}

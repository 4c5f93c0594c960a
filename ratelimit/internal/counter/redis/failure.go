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

// pinging is the value of pipeline.out during a PING, which carries no calls.
var pinging = []*call{}

// ping checks an idle connection, so that a lost server is noticed before a request needs the connection.
func (l *pipeline) ping() {
	if err := l.check(); err != nil {
		l.lost(err)
	}
}

// check sends a PING and waits for the reply.
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

// lost handles the end of a connection. The end alone says little about the server, which may be configured to close
// connections; so lost tries at once to open a new one, and only if that fails has the server failed. A time-out counts
// as a failure of the server without another try.
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

// refused handles an error reply by which the server says that it cannot count at present. code is its first word.
func (l *pipeline) refused(code string) {
	if code == "READONLY" || code == "MASTERDOWN" {
		l.link.drop() // the host name may lead to another server by now
	}
	l.failed(fmt.Errorf("the server answers %s", code))
}

// failed records a failure of the server. If the breaker opens because of it, failed answers all waiting calls.
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

// forgetKeys forgets which keys have an expiry, since the server may have lost its data.
func (s *Server) forgetKeys() {
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	s.seen.forget()
}

// opened is called when the breaker has opened. It ends all waiting calls with an error.
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

// breakOff ends the calls whose batches were sent and have no replies yet, and drops all connections. Idle connections
// are dropped too: while the breaker is open, no PINGs would be sent that show whether they are still open. The
// watchdog repeats breakOff while the breaker is open, since a pipeline may just have been about to dial.
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

// cancel ends a call with an error, before its batch has replies. If the call came by Start, the next settle completes
// it. s.mu is held.
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

// settle completes the calls from Start that were canceled. s.mu is not held.
func (s *Server) settle() {
	s.mu.Lock()
	done := s.canceled
	s.canceled = nil
	s.mu.Unlock()
	complete(done)
}

// relocated is called when the server's address has changed, such as after a failover. It drops all connections. If the
// breaker is open, it probes the new server at once.
func (s *Server) relocated() {
	s.forgetKeys()
	s.mu.Lock()
	for _, l := range s.pipelines {
		l.link.drop()
	}
	if s.probe != nil {
		s.probe.drop() // the probe's connection leads to the old server
	}
	s.mu.Unlock()
	s.wakeProbe()
}

// wakeProbe makes the watchdog probe at once if the breaker is open.
func (s *Server) wakeProbe() {
	s.breaker.ProbeNow()
	kick(s.wake)
}

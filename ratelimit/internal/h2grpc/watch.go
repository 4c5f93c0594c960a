package h2grpc

import (
	"time"
)

const (
	// watchEvery is how often connections are checked, unless a setting needs it more often.
	watchEvery = 250 * time.Millisecond
	// ackPatience is how long a peer has to acknowledge SETTINGS and the ping between two GOAWAYs.
	ackPatience = 5 * time.Second
	// requestPatience is how long the rest of a request may take.
	requestPatience = time.Minute
)

// watch keeps the time for all connections: their age, keepalive, and what a peer takes too long for. It ends when
// there is no connection.
func (s *Server) watch() {
	every := watchEvery
	for _, d := range []time.Duration{s.o.MaxAge, s.o.MaxAgeGrace, s.o.KeepaliveTime, s.o.KeepaliveTimeout} {
		if d > 0 {
			every = max(5*time.Millisecond, min(every, d/8))
		}
	}
	var conns []*conn
	for {
		time.Sleep(every)
		s.mu.Lock()
		if len(s.conns) == 0 {
			s.ticking = false
			s.mu.Unlock()
			return
		}
		conns = conns[:0]
		for c := range s.conns {
			conns = append(conns, c)
		}
		s.mu.Unlock()
		now := time.Now()
		for _, c := range conns {
			s.tick(c, now)
		}
		clear(conns)
	}
}

// tick does what is due on a connection.
func (s *Server) tick(c *conn, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.over:
		return
	case !c.settingsAck.Load() && now.Sub(c.started) > greeting+ackPatience:
		c.over = true
		s.refused(reasonSettings)
		go c.endWith(codeSettingsTimeout, "SETTINGS were not acknowledged")
		return
	case c.draining.IsZero() && c.age > 0 && now.Sub(c.started) > c.age:
		c.beginDrain(now)
	case !c.draining.IsZero() && !c.leaving && (c.drained.Load() || now.Sub(c.draining) > ackPatience):
		c.leaving = true
		last := c.ids.stop()
		c.lastID.Store(last)
		c.out.add(func(b []byte) []byte { return appendGoAway(b, last, codeNo, c.why) })
		c.out.flush()
	case c.leaving && c.age > 0 && s.o.MaxAgeGrace > 0 && now.Sub(c.draining) > s.o.MaxAgeGrace:
		c.over = true
		go c.close()
		return
	}
	s.keepalive(c, now)
	c.out.expire(now, s)
	if c.leaving {
		c.leaveIfDone()
	}
}

// keepalive pings a peer that has sent nothing, and closes the connection if no answer comes.
func (s *Server) keepalive(c *conn, now time.Time) {
	last := time.Unix(0, c.lastRead.Load())
	if last.Before(c.started) {
		last = c.started
	}
	switch {
	case c.pinged.IsZero() && now.Sub(last) > s.o.KeepaliveTime:
		c.pinged = now
		c.out.add(func(b []byte) []byte { return appendPing(b, 0, keepalivePing) })
		c.out.flush()
	case c.pinged.IsZero():
	case last.After(c.pinged):
		c.pinged = time.Time{}
	case now.Sub(c.pinged) > s.o.KeepaliveTimeout:
		c.over = true
		s.refused(reasonKeepalive)
		go c.close()
	}
}

// expire resets the streams whose requests were not completed in time.
func (o *outbox) expire(now time.Time, s *Server) {
	var late []uint32
	o.mu.Lock()
	for id, st := range o.streams {
		if st.open && st.exchange == nil && now.Sub(st.began) > requestPatience {
			late = append(late, id)
		}
	}
	o.mu.Unlock()
	for _, id := range late {
		s.refused(reasonUnfinished)
		o.reset(id, codeCancel)
	}
	if len(late) > 0 {
		o.flush()
	}
}

// drain sends the peer GOAWAY.
func (c *conn) drain(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.why = "graceful_stop"
	if c.draining.IsZero() {
		c.beginDrain(now)
	}
}

// beginDrain is the first of two GOAWAYs: it excludes no stream yet, since some may be on their way. The second comes
// when the peer has answered the ping behind it. The lock is held.
func (c *conn) beginDrain(now time.Time) {
	if c.draining = now; c.why == "" {
		c.why = "max_age"
	}
	c.out.add(func(b []byte) []byte {
		return appendPing(appendGoAway(b, maxWindow, codeNo, c.why), 0, drainPing)
	})
	c.out.flush()
}

// endWith ends the connection from outside its reader.
func (c *conn) endWith(code errCode, debug string) {
	c.out.mu.Lock()
	if !c.out.closed {
		c.out.grab()
		c.out.buf = appendGoAway(c.out.buf, min(c.ids.opened(), c.lastID.Load()), code, debug)
		c.out.ending = true
	}
	c.out.mu.Unlock()
	c.out.flush()
}

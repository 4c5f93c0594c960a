package h2grpc

import (
	"maps"
	"slices"
	"time"

	"golang.org/x/net/http2"
)

const (
	// watchEvery is how often connections are checked, unless a setting requires it more often.
	watchEvery = 250 * time.Millisecond
	// ackPatience is how long a client may take to acknowledge SETTINGS, and to answer the ping between the two
	// GOAWAYs.
	ackPatience = 5 * time.Second
	// requestPatience is how long a client may take to complete a request after its HEADERS.
	requestPatience = time.Minute
)

// watch checks the times of all connections: their age, keepalive, and how long clients take. It ends when there is no
// connection left, and is started again with the next connection.
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
		conns = slices.AppendSeq(conns[:0], maps.Keys(s.conns))
		s.mu.Unlock()
		now := time.Now()
		for _, c := range conns {
			s.tick(c, now)
		}
		clear(conns)
	}
}

// tick does the checks and steps that are due on one connection at the time now.
func (s *Server) tick(c *conn, now time.Time) {
	c.end.mu.Lock()
	defer c.end.mu.Unlock()
	switch {
	case c.end.over:
		return
	case !c.settingsAck.Load() && now.Sub(c.started) > greeting+ackPatience:
		c.end.over = true
		s.refused(reasonSettings)
		go c.endWith(http2.ErrCodeSettingsTimeout, "SETTINGS were not acknowledged")
		return
	case c.end.draining.IsZero() && c.age > 0 && now.Sub(c.started) > c.age:
		c.beginDrain(now)
	case !c.end.draining.IsZero() && !c.end.leaving && (c.drained.Load() || now.Sub(c.end.draining) > ackPatience):
		c.end.leaving = true
		last := c.ids.stop()
		c.out.add(func(b []byte) []byte { return appendGoAway(b, last, http2.ErrCodeNo, c.end.why) })
		c.out.flush()
	case c.end.leaving && c.age > 0 && s.o.MaxAgeGrace > 0 && now.Sub(c.end.draining) > s.o.MaxAgeGrace:
		c.end.over = true
		go c.close()
		return
	}
	s.keepalive(c, now)
	if c.out.expire(now, s) {
		c.end.over = true
		s.refused(reasonHeaders)
		go c.endWith(http2.ErrCodeEnhanceYourCalm, "the header block was not finished in time")
		return
	}
	if c.end.leaving {
		c.leaveIfDone()
	}
}

// keepalive pings a client that has sent nothing for KeepaliveTime, and closes the connection if no answer comes in
// time.
func (s *Server) keepalive(c *conn, now time.Time) {
	last := time.Unix(0, c.lastRead.Load())
	if last.Before(c.started) {
		last = c.started
	}
	switch {
	case c.end.pinged.IsZero() && now.Sub(last) > s.o.KeepaliveTime:
		c.end.pinged = now
		c.out.add(func(b []byte) []byte { return appendPing(b, 0, keepalivePing) })
		c.out.flush()
	case c.end.pinged.IsZero():
	case last.After(c.end.pinged):
		c.end.pinged = time.Time{}
	case now.Sub(c.end.pinged) > s.o.KeepaliveTimeout:
		c.end.over = true
		s.refused(reasonKeepalive)
		go c.close()
	}
}

// expire resets the streams whose requests were not completed in time, or whose answers have waited too long for flow
// control. It reports whether a header block was not completed in time.
func (o *sendQueue) expire(now time.Time, s *Server) (block bool) {
	late := map[uint32]reason{}
	o.mu.Lock()
	for id, st := range o.streams {
		switch {
		case st.open && now.Sub(st.began) > requestPatience:
			late[id] = reasonUnfinished
		case len(st.pending) > 0 && now.Sub(st.stalled) > o.patience:
			late[id] = reasonNotReading
		}
	}
	block = o.block != nil && now.Sub(o.opened) > greeting
	o.mu.Unlock()
	for id, why := range late {
		s.refused(why)
		o.reset(id, http2.ErrCodeCancel)
	}
	if len(late) > 0 {
		o.flush()
	}
	return block
}

// drain begins to end the connection because the server is shutting down.
func (c *conn) drain(now time.Time) {
	c.end.mu.Lock()
	defer c.end.mu.Unlock()
	c.end.why = "graceful_stop"
	if c.end.draining.IsZero() {
		c.beginDrain(now)
	}
}

// beginDrain sends the first of two GOAWAYs, which still allows all streams, since some may be on their way, and a
// ping. The second GOAWAY is sent when the client has answered the ping, after which no such stream can arrive.
// c.end.mu is held.
func (c *conn) beginDrain(now time.Time) {
	if c.end.draining = now; c.end.why == "" {
		c.end.why = "max_age"
	}
	c.out.add(func(b []byte) []byte {
		return appendPing(appendGoAway(b, maxWindow, http2.ErrCodeNo, c.end.why), 0, drainPing)
	})
	c.out.flush()
}

package h2grpc

import (
	"google.golang.org/grpc/codes"

	"golang.org/x/net/http2"
)

// relieve makes room while the account is over its limit. The connection that holds most gives way, even if another one
// needs the memory. relieve returns false where no connection holds anything.
func (s *Server) relieve() bool {
	if !s.account.over() {
		return true
	}
	s.account.mu.Lock()
	defer s.account.mu.Unlock()
	for s.account.over() {
		var most *conn
		s.mu.Lock()
		for c := range s.conns {
			if n := c.out.held.Load(); n > 0 && (most == nil || n > most.out.held.Load()) {
				most = c
			}
		}
		s.mu.Unlock()
		if most == nil {
			return false
		}
		most.giveWay()
		s.refused(reasonBuffered)
	}
	return true
}

// giveWay ends what holds most memory on the connection: an unfinished call is refused; an answer that waits for a
// window is dropped with its stream; an unfinished header block ends the connection, since later blocks depend on it.
func (c *conn) giveWay() {
	o := c.out
	o.mu.Lock()
	var s *stream
	for _, each := range o.streams {
		if s == nil || each.held > s.held {
			s = each
		}
	}
	switch {
	case o.closed, o.held.Load() == 0: // the connection has ended meanwhile
	case s == nil || s.held < cap(o.block):
		o.goAway(c.lastStream(), http2.ErrCodeEnhanceYourCalm, "the header block is not complete, and memory is short")
		o.holdBlock(nil)
	case s.pending != nil:
		o.put(func(b []byte) []byte { return appendReset(b, s.id, http2.ErrCodeEnhanceYourCalm) })
		o.cut(s)
	default:
		o.grab()
		o.refuse(&answer{stream: s, early: true,
			refusal: s.refusal(codes.ResourceExhausted, "too many unfinished messages")})
	}
	o.mu.Unlock()
	o.flush()
}

package h2grpc

import "time"

// Buffered is how many bytes are accounted for that peers make the server keep.
func (s *Server) Buffered() int64 { return s.account.used.Load() }

// Watches is how many health watches are open.
func (s *Server) Watches() int { return int(s.watches.Load()) }

// Conns is how many connections there are.
func (s *Server) Conns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns) + len(s.silent)
}

// TickAt runs the periodic checks of all connections as of now.
func (s *Server) TickAt(now time.Time) {
	s.mu.Lock()
	var conns []*conn
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		s.tick(c, now)
	}
}

// Held is what the server keeps of all connections' streams and answers.
func (s *Server) Held() (streams, blocked, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.out.mu.Lock()
		streams += len(c.out.streams)
		blocked += len(c.out.blocked)
		bytes += len(c.out.buf) + c.out.waiting
		for _, st := range c.out.blocked {
			bytes += len(st.pending)
		}
		c.out.mu.Unlock()
	}
	return streams, blocked, bytes
}

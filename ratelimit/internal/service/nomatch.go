package service

import (
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
)

// countUnmatched prepares the counters of the domains of r. They come into force before r does, so that each of its
// domains has one.
func (s *Service) countUnmatched(r *limits.Rules) {
	names := make([]string, 0, len(r.Domains()))
	for _, d := range r.Domains() {
		names = append(names, d.Name)
	}
	counters := s.o.Stats.NoMatch(names)
	s.noMatch.Store(&counters)
}

// unmatched counts a descriptor for which Find has no rule, unless an entry without rate_limit takes it on purpose.
func (s *Service) unmatched(d *limits.Domain, entries []rls.Entry) {
	if !d.Outcome(entries).Unmatched() {
		return
	}
	if c := (*s.noMatch.Load())[d.Name]; c != nil { // nil: a reload has just removed the domain
		c.Inc()
	}
}

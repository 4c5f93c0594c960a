package service

import (
	"slices"

	"gatehouse/ratelimit/internal/limits"
)

// countUnmatched prepares counters for the domains of r. They come into force before r does, so that each of r's
// domains has a counter.
func (s *Service) countUnmatched(r *limits.Rules) {
	names := make([]string, 0, len(r.Domains()))
	for _, d := range r.Domains() {
		names = append(names, d.Name)
	}
	counters := s.o.Stats.NoMatch(names)
	s.noMatch.Store(&counters)
}

// countForgotten counts the descriptors of a request that no entry of the configuration takes.
func (s *Service) countForgotten(c *Call, domain *limits.Domain) {
	decided := slices.ContainsFunc(c.rules, func(r *limits.Rule) bool { return r != nil })
	for i, rule := range c.rules {
		d := &c.Request.Descriptors[i]
		if rule != nil || d.HasLimit || !domain.Forgotten(d.Entries, decided) {
			continue
		}
		if counter := (*s.noMatch.Load())[domain.Name]; counter != nil { // nil: a reload has just removed the domain
			counter.Inc()
		}
	}
}

package service

import "gatehouse/ratelimit/internal/observe"

// watched reports whether decided and refused requests go to the log of requests or to an operator. It is inlined:
// where it is false, a request pays for two pointer reads.
func (s *Service) watched() bool { return s.sampler != nil || s.observer.Watching() != nil }

// show passes a request to the log of requests and to the operators that watch.
func (s *Service) show(c *Call, err error) {
	rules := s.rules.Load()
	if s.sampler != nil {
		s.sampler.note(c, rules, err)
	}
	if w := s.observer.Watching(); w != nil && err == nil {
		d := observe.Decision{At: c.At, Done: c.Done, Request: &c.Request, Response: &c.Response, Set: rules, Domain: c.domain,
			Rules: c.rules}
		if w.Counting() {
			c.shown = c.counterKeys(c.shown[:0])
			d.Keys = c.shown
		}
		c.scratch = w.Note(&d, c.scratch)
	}
}

// counterKeys appends for each descriptor the key of a counter if the descriptor needed the store, nil otherwise.
func (c *Call) counterKeys(dst [][]byte) [][]byte {
	for range c.rules {
		dst = append(dst, nil)
	}
	for i := range c.plan {
		if p := &c.plan[i]; p.hit >= 0 {
			dst[p.descriptor] = c.batch.Hits[p.hit].Key
		}
	}
	return dst
}

// Recent returns the last refused and the last unmatched descriptors of a domain; of all domains for "". An unmatched
// descriptor has the nearest key of the rules in force. ok is false when nothing is kept.
func (s *Service) Recent(domain string) (refused, unmatched observe.RecentList, ok bool) {
	recent := s.observer.Recent()
	if recent == nil {
		return refused, unmatched, false
	}
	refused, unmatched = recent.Refused(domain), recent.Unmatched(domain)
	rules := s.rules.Load()
	for i := range unmatched.Descriptors {
		r := &unmatched.Descriptors[i]
		d := rules.Domain(r.Domain)
		if d == nil || r.Cut {
			continue
		}
		r.NearestKey = d.NearestKey(r.Entries)
	}
	return refused, unmatched, true
}

package service

import (
	"gatehouse/ratelimit/internal/observe"
	"gatehouse/ratelimit/internal/rls"
)

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
		entries := make([]rls.Entry, len(r.Entries))
		for j, e := range r.Entries {
			entries[j] = rls.Entry(e)
		}
		r.NearestKey = d.NearestKey(entries)
	}
	return refused, unmatched, true
}

package service

import (
	"math"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
)

// check refuses malformed requests, before any store is called. The order of the checks and the texts of the first
// three are those of the replaced service.
func (s *Service) check(rules *limits.Rules, r *rls.Request) error {
	switch {
	case r.Domain == "":
		return errNoDomain
	case len(r.Descriptors) == 0:
		return errNoDescriptors
	case rules == nil:
		return ErrNoRules
	case len(r.Domain) > s.o.Caps.TextBytes:
		return invalid(DomainTooLong, "rate limit domain has %d bytes, at most %d are allowed", len(r.Domain),
			s.o.Caps.TextBytes)
	case len(r.Descriptors) > s.o.Caps.Descriptors:
		return invalid(TooManyDescriptors, "rate limit request has %d descriptors, at most %d are allowed",
			len(r.Descriptors), s.o.Caps.Descriptors)
	}
	for i := range r.Descriptors {
		if err := s.checkDescriptor(i, &r.Descriptors[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) checkDescriptor(i int, d *rls.Descriptor) error {
	if len(d.Entries) > s.o.Caps.Entries {
		return invalid(TooManyEntries, "rate limit descriptor %d has %d entries, at most %d are allowed", i,
			len(d.Entries), s.o.Caps.Entries)
	}
	if d.HasLimit && d.Limit.Unit.Seconds() == 0 {
		return invalid(UnknownUnit, "rate limit descriptor %d: limit has unit %d, want 1 (SECOND) to 7 (WEEK)", i,
			d.Limit.Unit)
	}
	if d.HasHits && d.Hits > math.MaxInt64 {
		return invalid(TooManyHits, "rate limit descriptor %d: hits_addend is %d, at most %d is allowed", i, d.Hits,
			math.MaxInt64)
	}
	for j := range d.Entries {
		if e := &d.Entries[j]; len(e.Key) > s.o.Caps.TextBytes || len(e.Value) > s.o.Caps.TextBytes {
			return invalid(TextTooLong,
				"rate limit descriptor %d: entry %d has a key of %d and a value of %d bytes, at most %d each are "+
					"allowed",
				i, j, len(e.Key), len(e.Value), s.o.Caps.TextBytes)
		}
	}
	return nil
}

package service

import (
	"bytes"
	"slices"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/decide"
	"gatehouse/ratelimit/internal/overlimit"
)

// knownOver consults the over-limit cache. For sliding windows and token buckets it fills in the reset. A refund drops
// the cache's entry.
func (s *Service) knownOver(c *Call, p *step, key []byte, refund bool) bool {
	if refund {
		s.o.OverLimit.Delete(key)
		return false
	}
	if p.rule.Algorithm != counter.FixedWindow {
		return s.knownWait(c, p, key)
	}
	// The count in the cache is compared with the limit in force, since overrides share counters.
	seen, ok := s.o.OverLimit.Get(key)
	return ok && counter.Saturate(uint64(seen), p.hits) > uint64(p.rule.PerUnit)
}

// knownWait reports whether not even one hit would pass yet. The store has to answer a request without hits.
func (s *Service) knownWait(c *Call, p *step, key []byte) bool {
	if p.hits == 0 {
		return false
	}
	w, ok := s.o.OverLimit.GetWait(key)
	now := s.age(c)
	if !ok || now >= w.Until || w.Limit != p.rule.PerUnit || uint64(w.Capacity) != decide.Capacity(p.rule) {
		return false
	}
	p.reset = seconds(w.Pass - now)
	return true
}

// rememberOver enters a counter that is over its limit into the over-limit cache.
func (s *Service) rememberOver(c *Call, p *step, h *counter.Hit, now int64) {
	if p.rule.Algorithm != counter.FixedWindow {
		s.rememberWait(c, p, h)
		return
	}
	if p.end <= now {
		return
	}
	seen := h.After
	if s.o.StopWhenOver { // the refused hits were not written
		if seen -= int64(min(p.hits, uint64(seen))); c.hitsBefore(p) {
			return // earlier hits on the same counter were not written either, but After includes them
		}
	}
	s.o.OverLimit.Set(h.Key, seen, int(p.end-now))
}

// hitsBefore reports whether the request has an earlier hit on the counter.
func (c *Call) hitsBefore(p *step) bool {
	key := c.batch.Hits[p.hit].Key
	return slices.ContainsFunc(c.batch.Hits[:p.hit], func(h counter.Hit) bool { return bytes.Equal(h.Key, key) })
}

// rememberWait keeps, in whole seconds rounded down, how long not even one hit passes. The time counts from before the
// store was called.
func (s *Service) rememberWait(c *Call, p *step, h *counter.Hit) {
	wait := h.Wait(1)
	ttl := wait / 1_000_000
	if ttl < 1 {
		return
	}
	asked := s.age(c)
	s.o.OverLimit.SetWait(h.Key, overlimit.Wait{Until: asked + ttl*1_000_000, Pass: asked + wait, Limit: p.rule.PerUnit,
		Capacity: uint32(decide.Capacity(p.rule))}, int(ttl)+1)
}

// age returns how old the service was when the request arrived, in µs. Unlike the time of day it does not jump.
func (s *Service) age(c *Call) int64 { return c.At.Sub(s.began).Microseconds() }

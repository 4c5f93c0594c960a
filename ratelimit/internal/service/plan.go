package service

import (
	"bytes"
	"slices"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/decide"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/overlimit"
	"gatehouse/ratelimit/internal/rls"
)

// step is one limit of a descriptor in a call's plan. Most descriptors have one limit; the limits of a list follow each
// other.
type step struct {
	rule       *limits.Rule
	descriptor int
	hit        int // index into batch.Hits, fromCache or withoutStore
	hits       uint64
	// window is the length of the window in seconds; end is when a fixed window ends.
	window, end int64
	// reset is the reset in seconds as far as it is known before the store is called. Fixed windows use end.
	reset int64
}

const (
	fromCache    = -1 // the over-limit cache knows the answer
	withoutStore = -2 // a limit of 0 that counts nothing: see planHits
)

// match finds the limits of each descriptor and drops the replaced ones. A limit that the descriptor brings comes
// before any rule.
func (s *Service) match(c *Call, rules *limits.Rules, domain *limits.Domain) {
	c.rules, c.plan, c.overrides = c.rules[:0], c.plan[:0], c.overrides[:0]
	replaces := false
	for i := range c.Request.Descriptors {
		d := &c.Request.Descriptors[i]
		var rule *limits.Rule
		switch {
		case d.HasLimit:
			rule = c.override(rules, d.Limit)
		case domain == nil:
			s.o.Stats.DomainNotFound(c.Request.Domain).Inc()
		default:
			rule = domain.Find(d.Entries)
		}
		c.rules = append(c.rules, rule)
		if rule == nil {
			continue
		}
		replaces = replaces || rule.Replacing()
		if rule.Unlimited {
			continue
		}
		c.plan = append(c.plan, step{rule: rule, descriptor: i})
		for _, further := range rule.Further {
			replaces = replaces || further.Replacing()
			c.plan = append(c.plan, step{rule: further, descriptor: i})
		}
	}
	if replaces {
		c.dropReplaced()
	}
	if s.o.CountNoMatch && domain != nil {
		s.countForgotten(c, domain)
	}
}

// override makes the rule of a descriptor that brings its own limit. c.rules and c.plan point into c.overrides, so a
// full c.overrides is replaced by an empty one and not copied.
func (c *Call) override(rules *limits.Rules, o rls.Override) *limits.Rule {
	if cap(c.overrides) == len(c.overrides) {
		c.overrides = make([]limits.Rule, 0, max(4, 2*cap(c.overrides), len(c.Request.Descriptors)))
	}
	c.overrides = c.overrides[:len(c.overrides)+1]
	rule := &c.overrides[len(c.overrides)-1]
	rules.Override(rule, o)
	return rule
}

// dropReplaced drops each limit that another matched rule or limit replaces, whether or not the replacing one is itself
// replaced. Unlimited rules replace but are not replaced. Each rule marks all names at once, which keeps 256 lists of
// 10,000 names far below a millisecond.
func (c *Call) dropReplaced() {
	var fewIDs [16]uint32
	var fewMarks [16]bool
	ids, replaced := fewIDs[:0], fewMarks[:]
	for i := range c.plan {
		ids = append(ids, c.plan[i].rule.ID) // 0 without a name; no name has 0
	}
	if len(ids) > len(replaced) {
		replaced = make([]bool, len(ids))
	}
	for i := range c.plan {
		c.plan[i].rule.MarkReplaced(ids, replaced)
	}
	for i, rule := range c.rules {
		if rule == nil {
			continue
		}
		if rule.Unlimited {
			rule.MarkReplaced(ids, replaced)
			continue
		}
		c.rules[i] = nil // until one of its limits is kept
	}
	kept := c.plan[:0]
	for i, p := range c.plan {
		if replaced[i] {
			continue
		}
		kept = append(kept, p)
		if c.rules[p.descriptor] == nil {
			c.rules[p.descriptor] = p.rule
		}
	}
	c.plan = kept
}

// planHits builds the counter keys, and the batch of the hits whose answer needs the store.
func (s *Service) planHits(c *Call, rules *limits.Rules, now int64) {
	c.keys, c.batch.Hits, c.batch.Stop = c.keys[:0], c.batch.Hits[:0], counter.StopWhen(s.o.StopWhenOver)
	c.held = false
	for i := range c.plan {
		p := &c.plan[i]
		rule, d := p.rule, &c.Request.Descriptors[p.descriptor]
		p.hits = c.Request.Hits(d)
		start := int64(0)
		if rule.Algorithm == counter.FixedWindow {
			start, p.end = rule.Span(now)
			p.window = p.end - start
		} else {
			p.window, p.reset = rule.Window, rule.Window
		}
		if rule.PerUnit == 0 && rule.Algorithm != counter.FixedWindow { // the counter has only admitted hits: none
			p.hit = withoutStore
			c.held = c.held || s.o.StopWhenOver && !rule.Shadow && !d.Negative && p.hits > 0
			continue
		}
		from := len(c.keys)
		c.keys = rules.AppendKey(c.keys, rule, c.Request.Domain, d.Entries, start)
		key := c.keys[from:len(c.keys):len(c.keys)] // keeps pointing to the old array when c.keys grows
		if s.o.OverLimit != nil && s.knownOver(c, p, key, d.Negative) {
			p.hit = fromCache
			c.held = c.held || s.o.StopWhenOver && !rule.Shadow
			continue
		}
		p.hit = len(c.batch.Hits)
		c.batch.Hits = append(c.batch.Hits, counter.Hit{})
		h := &c.batch.Hits[p.hit] // filled in place: a Hit is large
		h.Key, h.N, h.Refund, h.Shadow, h.PerSecond = key, p.hits, d.Negative, rule.Shadow, rule.Unit == rls.Second
		h.Algorithm, h.Limit, h.Burst = rule.Algorithm, uint64(rule.PerUnit), uint64(rule.Burst)
		h.Window, h.End = p.window, p.end
	}
	if c.held {
		c.batch.Stop = counter.StopNone
		for i := range c.batch.Hits {
			h := &c.batch.Hits[i]
			h.BringDown, h.N = h.BringsDown(), 0
		}
	}
}

// settleHeld works out the outcome that the hits would have had if they had not only looked.
func (c *Call) settleHeld() {
	c.looks = append(c.looks[:0], c.batch.Hits...)
	for i := range c.plan {
		if p := &c.plan[i]; p.hit >= 0 {
			c.batch.Hits[p.hit].N = p.hits
		}
	}
	counter.JudgeStop(c.batch.Hits, c.looks, true)
}

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
		seen -= int64(min(p.hits, uint64(seen)))
		if slices.ContainsFunc(c.batch.Hits[:p.hit], func(e counter.Hit) bool { return bytes.Equal(e.Key, h.Key) }) {
			return // earlier hits on the same counter were not written either, but After includes them
		}
	}
	s.o.OverLimit.Set(h.Key, seen, int(p.end-now))
}

// rememberWait keeps, in whole seconds rounded down, how long not even one hit passes. The time counts from before the
// store was called.
func (s *Service) rememberWait(c *Call, p *step, h *counter.Hit) {
	wait := h.Wait(&h.State, 1)
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

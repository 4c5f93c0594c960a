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

// step is one limit of one descriptor in the plan for a call. Most descriptors have one limit; if a rule has a list of
// limits, their steps follow each other.
type step struct {
	rule       *limits.Rule
	descriptor int
	hit        int // index of this step's hit in batch.Hits, or fromCache or withoutStore
	hits       uint64
	// window is the length of the window in seconds; end is when a fixed window ends, in Unix seconds.
	window, end int64
	// reset is the reset, in seconds, of a sliding window or a token bucket, if it is known before the store is called.
	reset int64
}

const (
	fromCache    = -1 // the over-limit cache knows that the counter is over
	withoutStore = -2 // the limit is 0 and needs no counter: see planHits
)

// match finds the rule of each descriptor, plans a step for each of its limits, and drops limits that other rules
// replace. A limit that the descriptor itself contains takes precedence over the configured rules.
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

// override makes a rule of the limit o that a descriptor contains. c.rules and c.plan hold pointers into c.overrides,
// so when c.overrides is full, override begins a new slice instead of copying the old one.
func (c *Call) override(rules *limits.Rules, o rls.Override) *limits.Rule {
	if cap(c.overrides) == len(c.overrides) {
		c.overrides = make([]limits.Rule, 0, max(4, 2*cap(c.overrides), len(c.Request.Descriptors)))
	}
	c.overrides = c.overrides[:len(c.overrides)+1]
	rule := &c.overrides[len(c.overrides)-1]
	rules.Override(rule, o)
	return rule
}

// dropReplaced drops each limit that another matched rule or limit of the request replaces (the attribute "replaces"),
// even if the replacing limit is itself replaced. An unlimited rule can replace limits but is never replaced. Each rule
// marks all limits that it names in one pass, so that even 256 descriptors whose rules each name 10,000 limits take far
// less than a millisecond.
func (c *Call) dropReplaced() {
	var fewIDs [16]uint32
	var fewMarks [16]bool
	ids, replaced := fewIDs[:0], fewMarks[:]
	for i := range c.plan {
		ids = append(ids, c.plan[i].rule.ID) // 0 for a rule without a name; no name has the number 0
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
		c.rules[i] = nil // set again below if one of its limits is kept
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

// planHits builds the counter keys and the batch of hits for the store. Hits whose outcome is known without the store
// are not in the batch. now is the request's time in Unix seconds.
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
		if rule.PerUnit == 0 && rule.Algorithm != counter.FixedWindow { // counts only admitted hits: none
			p.hit = withoutStore
			c.held = c.held || s.o.StopWhenOver && !rule.Shadow && !d.Negative && p.hits > 0
			continue
		}
		from := len(c.keys)
		c.keys = rules.AppendKey(c.keys, rule, c.Request.Domain, d.Entries, start)
		key := c.keys[from:len(c.keys):len(c.keys)] // stays valid when c.keys grows: key keeps the old array
		if s.o.OverLimit != nil && s.knownOver(c, p, key, d.Negative) {
			p.hit = fromCache
			c.held = c.held || s.o.StopWhenOver && !rule.Shadow
			continue
		}
		p.hit = len(c.batch.Hits)
		c.batch.Hits = append(c.batch.Hits, counter.Hit{})
		h := &c.batch.Hits[p.hit] // filled in place, since a Hit is large to copy
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

// settleHeld works out the answers of hits that only read their counters because, under the option
// Settings.StopWhenOver, another hit was known to exceed its limit. The answers are the same as if the store had been
// called to count the hits.
func (c *Call) settleHeld() {
	c.looks = append(c.looks[:0], c.batch.Hits...)
	for i := range c.plan {
		if p := &c.plan[i]; p.hit >= 0 {
			c.batch.Hits[p.hit].N = p.hits
		}
	}
	counter.JudgeStop(c.batch.Hits, c.looks, true)
}

// countUnmatched makes the counters of unmatched descriptors for the domains of r. SetRules calls it before r comes
// into force, so that each domain has its counter when a request needs it.
func (s *Service) countUnmatched(r *limits.Rules) {
	names := make([]string, 0, len(r.Domains()))
	for _, d := range r.Domains() {
		names = append(names, d.Name)
	}
	counters := s.o.Stats.NoMatch(names)
	s.noMatch.Store(&counters)
}

// countForgotten counts the descriptors for which the configuration has no answer: no rule decides them, and no entry
// exempts their values (Domain.Forgotten).
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

// knownOver reports whether the over-limit cache shows that the hits of step p exceed the limit. For a sliding window
// or a token bucket, it then also fills in the reset. A refund lowers the counter, so it deletes the entry instead.
func (s *Service) knownOver(c *Call, p *step, key []byte, refund bool) bool {
	if refund {
		s.o.OverLimit.Delete(key)
		return false
	}
	if p.rule.Algorithm != counter.FixedWindow {
		return s.knownWait(c, p, key)
	}
	// The cache has a count and not a verdict, since descriptors that contain limits of their own share counters with
	// others.
	seen, ok := s.o.OverLimit.Get(key)
	return ok && counter.Saturate(uint64(seen), p.hits) > uint64(p.rule.PerUnit)
}

// knownWait is knownOver for a sliding window or a token bucket: it reports whether, according to the cache, the
// counter still admits not even one hit. For a request without hits it returns false, since only the store knows the
// counter's state.
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
	if s.o.StopWhenOver { // the refused hits were not written, so the counter is lower than After
		seen -= int64(min(p.hits, uint64(seen)))
		if slices.ContainsFunc(c.batch.Hits[:p.hit], func(e counter.Hit) bool { return bytes.Equal(e.Key, h.Key) }) {
			return // earlier hits on the same counter were not written either, and After includes them
		}
	}
	s.o.OverLimit.Set(h.Key, seen, int(p.end-now))
}

// rememberWait enters a sliding window or a token bucket into the over-limit cache, for the time in which not even one
// hit will pass, in whole seconds rounded down. The time is counted from the request's arrival, before the store was
// called.
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

// age returns how long the service had been running when the request arrived, in µs. It is based on the monotonic
// clock, so it does not jump when the time of day is changed.
func (s *Service) age(c *Call) int64 { return c.At.Sub(s.began).Microseconds() }

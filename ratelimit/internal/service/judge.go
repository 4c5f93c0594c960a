package service

import (
	"slices"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/decide"
	"gatehouse/ratelimit/internal/rls"
)

// judge turns totals into statuses and statistics. After a failure of the store there are none, or some of them; the
// hits are counted all the same: they were requested, whether or not a store counted them.
func (s *Service) judge(c *Call, now int64, f *failure) {
	s.judgeUnlimited(c)
	if f != nil {
		c.unanswered = append(c.unanswered, make([]bool, len(c.rules))...)
	}
	for rest := c.plan; len(rest) > 0; {
		var list []step
		// Of a list (rate_limits), replaces may have left one limit.
		if list, rest = cutDescriptor(rest); f != nil || len(list) > 1 || list[0].rule.Listed() {
			s.judgeList(c, list, now, f)
			continue
		}
		p := &list[0]
		st := &c.Response.Statuses[p.descriptor]
		var o decide.Outcome
		s.outcome(&o, c, p, now)
		delta := decide.Judge(o, s.o.GlobalShadow, st)
		s.count(c, p.descriptor, &delta)
		if s.o.DraftHeaders {
			c.describe(p, st, true)
		}
	}
}

// judgeUnlimited fills in the statuses of the descriptors that no counter decides.
func (s *Service) judgeUnlimited(c *Call) {
	c.Response.Statuses = slices.Grow(c.Response.Statuses[:0], len(c.rules))[:len(c.rules)]
	for i, rule := range c.rules {
		c.Response.Statuses[i] = rls.Status{Code: rls.OK}
		if rule == nil || !rule.Unlimited {
			continue
		}
		c.Response.Statuses[i] = decide.Unlimited()
		if d := &c.Request.Descriptors[i]; !d.Negative {
			hits := c.Request.Hits(d)
			s.count(c, i, &decide.Delta{Total: hits, Within: hits})
		}
	}
}

// outcome fills in the outcome of a limit's hits.
func (s *Service) outcome(o *decide.Outcome, c *Call, p *step, now int64) {
	p.unanswered(o, c, now)
	switch p.hit {
	case withoutStore:
		if !o.Refund {
			o.After = p.hits
		}
	case fromCache:
		o.Known = true
	default:
		s.answered(o, c, p, now)
	}
}

// unanswered fills in the outcome of a limit's hits as far as it is known without the store.
func (p *step) unanswered(o *decide.Outcome, c *Call, now int64) {
	o.Rule, o.Hits, o.Refund, o.Reset = p.rule, p.hits, c.Request.Descriptors[p.descriptor].Negative, p.reset
	if p.rule.Algorithm == counter.FixedWindow {
		o.Reset = max(1, p.end-now)
	}
}

// answered adds the store's answer, and remembers a counter that is over its limit.
func (s *Service) answered(o *decide.Outcome, c *Call, p *step, now int64) {
	h := &c.batch.Hits[p.hit]
	o.Spared, o.After = h.Spared, uint64(h.After)
	if !c.held && s.o.OverLimit != nil && o.Over() && !o.Spared && !o.Refund {
		s.rememberOver(c, p, h, now)
	}
	if p.rule.Algorithm != counter.FixedWindow {
		o.Reset = resetOf(h, o)
	}
}

// resetOf returns the reset of a sliding window or a token bucket: the time until the counter is empty or, when it is
// over, until the same hits pass.
func resetOf(h *counter.Hit, o *decide.Outcome) int64 {
	switch {
	case !o.Over():
		return seconds(h.TimeToEmpty(&h.State))
	case o.Refund: // a refund is answered like a request without hits
		return seconds(h.Wait(&h.State, 0))
	}
	return seconds(h.Wait(&h.State, o.Hits))
}

// seconds converts µs to whole seconds, rounded up, at least 1.
func seconds(micros int64) int64 { return max(1, (micros+999_999)/1_000_000) }

// count adds a descriptor's statistics to its rule, or to the statistics that the rule keeps per value at runtime.
func (s *Service) count(c *Call, descriptor int, d *decide.Delta) {
	rule := c.rules[descriptor]
	handle := rule.Stats
	if handle == nil {
		c.scratch = rule.AppendMetricKey(c.scratch[:0], c.Request.Domain, c.Request.Descriptors[descriptor].Entries)
		handle = s.o.Stats.DynamicRule(c.scratch)
	}
	d.AddTo(handle)
}

// denyAll answers for an unknown domain under UNKNOWN_DOMAIN=deny.
func (s *Service) denyAll(c *Call) {
	c.Response.Statuses = slices.Grow(c.Response.Statuses[:0], len(c.Request.Descriptors))
	c.rules, c.plan = c.rules[:0], c.plan[:0]
	for i := range c.Request.Descriptors {
		if !c.Request.Descriptors[i].HasLimit {
			s.o.Stats.DomainNotFound(c.Request.Domain).Inc()
		}
		c.Response.Statuses = append(c.Response.Statuses, rls.Status{Code: rls.OverLimit})
		c.rules = append(c.rules, nil)
	}
	s.finish(c)
}

// cutDescriptor splits off the limits of one descriptor.
func cutDescriptor(plan []step) (list, rest []step) {
	n := 1
	for n < len(plan) && plan[n].descriptor == plan[0].descriptor {
		n++
	}
	return plan[:n], plan[n:]
}

// judgeList judges the limits of one descriptor. The tightest gives the descriptor its status and its statistics. After a
// failure of the store, the limits that have an answer decide if one of them refuses, or if all have an answer. Otherwise
// the failure mode decides, for the first limit that is not in shadow mode.
func (s *Service) judgeList(c *Call, list []step, now int64, f *failure) {
	descriptor := list[0].descriptor
	var tightest decide.Verdict
	first, judged, missing := &list[0], false, false
	for i := range list {
		p := &list[i]
		if first.rule.Shadow && !p.rule.Shadow {
			first = p
		}
		v, known := s.verdict(c, p, now, f)
		if p.rule.Listed() {
			s.countLimit(c, p, &v.Delta)
		}
		if s.o.DraftHeaders {
			c.describe(p, &v.Status, known)
		}
		if !known {
			missing = true
			continue
		}
		if !judged || v.TighterThan(&tightest) {
			tightest, judged, c.rules[descriptor] = v, true, p.rule
		}
	}
	if missing && !(judged && tightest.Refuses()) {
		tightest = s.failed(c, first, now, f)
		c.rules[descriptor], c.unanswered[descriptor] = first.rule, true
	}
	c.Response.Statuses[descriptor] = tightest.Status
	s.count(c, descriptor, &tightest.Delta)
}

// verdict judges one limit. known reports whether this limit has an answer or, as a limit of 0, needs none.
func (s *Service) verdict(c *Call, p *step, now int64, f *failure) (v decide.Verdict, known bool) {
	if f == nil || p.hit < 0 || f.partial && c.batch.Hits[p.hit].Err == nil {
		var o decide.Outcome
		s.outcome(&o, c, p, now)
		return decide.JudgeLimit(o, s.o.GlobalShadow), true
	}
	v = s.failed(c, p, now, f)
	v.Over = p.rule.PerUnit == 0
	return v, v.Over
}

// countLimit adds to the statistics that every limit of a list has of its own.
func (s *Service) countLimit(c *Call, p *step, d *decide.Delta) {
	handle := p.rule.LimitStats()
	if handle == nil {
		c.scratch = p.rule.AppendLimitKey(c.scratch[:0], c.Request.Domain, c.Request.Descriptors[p.descriptor].Entries)
		handle = s.o.Stats.DynamicLimit(c.scratch)
	}
	d.AddToLimit(handle)
}

package service

import (
	"slices"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/decide"
	"gatehouse/ratelimit/internal/rls"
)

// judge turns the totals of the counters into statuses and statistics, at the time now in Unix seconds. f describes a
// failure of the store, and is nil if there was none; after a failure, totals are missing. Hits without a total are
// still added to the statistics, which count requested hits, whether or not a store has counted them.
func (s *Service) judge(c *Call, now int64, f *failure) {
	s.judgeUnlimited(c)
	if f != nil {
		c.unanswered = append(c.unanswered, make([]bool, len(c.rules))...)
	}
	for rest := c.plan; len(rest) > 0; {
		var list []step
		// A rule with a list of limits (rate_limits) is judged as a list even if "replaces" has left only one of them.
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

// judgeUnlimited fills in the statuses of the descriptors that have no rule or an unlimited one.
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

// outcome fills in o, the outcome of the hits at the limit of step p, from the store's answer or, if the store was not
// needed, from the facts that the method unanswered uses.
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

// unanswered fills in the part of an outcome that is known without the store.
func (p *step) unanswered(o *decide.Outcome, c *Call, now int64) {
	o.Rule, o.Hits, o.Refund, o.Reset = p.rule, p.hits, c.Request.Descriptors[p.descriptor].Negative, p.reset
	if p.rule.Algorithm == counter.FixedWindow {
		o.Reset = max(1, p.end-now)
	}
}

// answered adds the store's answer to an outcome. If the counter is over its limit, answered enters it into the
// over-limit cache.
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

// resetOf returns the reset, in seconds, of a sliding window or a token bucket: the time until the counter is empty or,
// if the counter is over its limit, until the same hits would pass.
func resetOf(h *counter.Hit, o *decide.Outcome) int64 {
	switch {
	case !o.Over():
		return seconds(h.TimeToEmpty(&h.State))
	case o.Refund: // a refund gets the answer of a request without hits
		return seconds(h.Wait(&h.State, 0))
	}
	return seconds(h.Wait(&h.State, o.Hits))
}

// seconds converts µs to seconds. It rounds up and returns at least 1.
func seconds(micros int64) int64 { return max(1, (micros+999_999)/1_000_000) }

// count adds d to the statistics of the descriptor's rule. If the names of the rule's statistics contain values of
// requests, it adds d to the statistics for this request's values.
func (s *Service) count(c *Call, descriptor int, d *decide.Delta) {
	rule := c.rules[descriptor]
	handle := rule.Stats
	if handle == nil {
		c.scratch = rule.AppendMetricKey(c.scratch[:0], c.Request.Domain, c.Request.Descriptors[descriptor].Entries)
		handle = s.o.Stats.DynamicRule(c.scratch)
	}
	d.AddTo(handle)
}

// denyAll answers OVER_LIMIT for every descriptor of a domain that is not configured (UNKNOWN_DOMAIN=deny).
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

// cutDescriptor splits the steps of the first descriptor off the plan.
func cutDescriptor(plan []step) (list, rest []step) {
	n := 1
	for n < len(plan) && plan[n].descriptor == plan[0].descriptor {
		n++
	}
	return plan[:n], plan[n:]
}

// judgeList judges the limits of one descriptor. The tightest limit gives the descriptor its status and statistics.
// After a failure of the store, limits may be without an answer. If a limit with an answer refuses the descriptor, or
// all limits have an answer, the limits with an answer decide. Otherwise the configured failure mode decides, applied
// to the first limit that is not in shadow mode.
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

// verdict judges one limit. known is true if the store answered for the limit, or if no answer was needed, as for a
// limit of 0.
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

// countLimit adds d to the statistics that a limit of a list has in addition to the statistics of the descriptor's
// rule.
func (s *Service) countLimit(c *Call, p *step, d *decide.Delta) {
	handle := p.rule.LimitStats()
	if handle == nil {
		c.scratch = p.rule.AppendLimitKey(c.scratch[:0], c.Request.Domain, c.Request.Descriptors[p.descriptor].Entries)
		handle = s.o.Stats.DynamicLimit(c.scratch)
	}
	d.AddToLimit(handle)
}

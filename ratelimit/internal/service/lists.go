package service

import "gatehouse/ratelimit/internal/decide"

// cutDescriptor splits off the limits of one descriptor.
func cutDescriptor(plan []step) (list, rest []step) {
	n := 1
	for n < len(plan) && plan[n].descriptor == plan[0].descriptor {
		n++
	}
	return plan[:n], plan[n:]
}

// isList reports whether the limits of a descriptor are a list (rate_limits), of which replaces may have left one
// limit.
func isList(list []step) bool { return len(list) > 1 || list[0].rule.Listed() }

// judgeList judges the limits of one list. The tightest gives the descriptor its status and its statistics.
func (s *Service) judgeList(c *Call, list []step, now int64) {
	var tightest decide.Verdict
	for i := range list {
		p := &list[i]
		var o decide.Outcome
		s.outcome(&o, c, p, now)
		v := decide.JudgeLimit(o, s.o.GlobalShadow)
		s.judged(c, p, &v, true)
		if i == 0 || v.TighterThan(&tightest) {
			tightest, c.rules[p.descriptor] = v, p.rule
		}
	}
	s.decided(c, list[0].descriptor, &tightest)
}

// judged counts one limit of a list, and describes it in the draft headers.
func (s *Service) judged(c *Call, p *step, v *decide.Verdict, known bool) {
	if p.rule.Listed() {
		s.countLimit(c, p, &v.Delta)
	}
	if s.o.DraftHeaders {
		c.describe(p, &v.Status, known)
	}
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

// decided answers a descriptor with the verdict of its tightest limit.
func (s *Service) decided(c *Call, descriptor int, v *decide.Verdict) {
	c.Response.Statuses[descriptor] = v.Status
	s.count(c, descriptor, &v.Delta)
}

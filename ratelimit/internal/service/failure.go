package service

import (
	"errors"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/decide"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
)

// storeFailed answers a request whose hits the store did not count: by the domain's on_store_failure, else by
// STORE_FAILURE_MODE. The default is an error, so that Envoy's failure_mode_deny decides. Where a limit of 0, the
// over-limit cache, or a hit that did get an answer settles the request, this answer stands in every mode.
func (s *Service) storeFailed(c *Call, domain *limits.Domain, err error) error {
	s.storeError.Inc()
	partial := errors.Is(err, counter.ErrPartial)
	descriptor := 0
	if partial {
		descriptor, err = c.failedHit()
	}
	s.trouble.count(err)
	mode := s.o.OnStoreFailure
	if domain != nil && domain.OnStoreFailure != limits.FailureUnset {
		mode = domain.OnStoreFailure
	}
	s.failure[mode].Inc()
	s.judgeWithoutStore(c, c.Done.Unix(), mode, partial)
	if mode == limits.FailureError && decide.Overall(c.Response.Statuses, c.rules, s.o.GlobalQuota) != rls.OverLimit {
		if key, ok := errors.AsType[*counter.KeyError](err); ok {
			refusal := invalid(BadKey, "rate limit descriptor %d: %s", descriptor, key)
			s.refusals.note(refusal.Reason, refusal.Msg, c.At)
			return refusal
		}
		return storeRefusal(err)
	}
	s.finish(c)
	return nil
}

// failedHit returns the hit that represents an ErrPartial: the first whose key no store would take, since a retry does
// not help, else the first hit that failed.
func (c *Call) failedHit() (descriptor int, err error) {
	for i := range c.plan {
		p := &c.plan[i]
		if p.hit < 0 || c.batch.Hits[p.hit].Err == nil {
			continue
		}
		e := c.batch.Hits[p.hit].Err
		if _, bad := errors.AsType[*counter.KeyError](e); bad {
			return p.descriptor, e
		}
		if err == nil {
			descriptor, err = p.descriptor, e
		}
	}
	return descriptor, err
}

// judgeWithoutStore fills in the statuses without totals, or with some of them (partial), and counts the hits: they
// were requested, whether or not a store counted them.
func (s *Service) judgeWithoutStore(c *Call, now int64, mode limits.FailureMode, partial bool) {
	s.judgeUnlimited(c)
	for range c.rules {
		c.unanswered = append(c.unanswered, false)
	}
	for rest := c.plan; len(rest) > 0; {
		var list []step
		list, rest = cutDescriptor(rest)
		s.judgeListWithoutStore(c, list, now, mode, partial)
	}
}

// judgeListWithoutStore judges the limits of a descriptor that have an answer. If one of these limits refuses, or all
// limits have an answer, that decides. Otherwise the failure mode does, for the first limit that is not in shadow mode.
func (s *Service) judgeListWithoutStore(c *Call, list []step, now int64, mode limits.FailureMode, partial bool) {
	descriptor := list[0].descriptor
	var tightest decide.Verdict
	first, judged, missing := &list[0], false, false
	for i := range list {
		p := &list[i]
		if first.rule.Shadow && !p.rule.Shadow {
			first = p
		}
		v, known := s.verdictWithoutStore(c, p, now, mode, partial)
		s.judged(c, p, &v, known)
		if !known {
			missing = true
			continue
		}
		if !judged || v.TighterThan(&tightest) {
			tightest, judged, c.rules[descriptor] = v, true, p.rule
		}
	}
	if missing && !(judged && tightest.Refuses()) {
		tightest, c.rules[descriptor], c.unanswered[descriptor] = failed(c, first, now, mode, s.o.GlobalShadow),
			first.rule, true
	}
	s.decided(c, descriptor, &tightest)
}

// verdictWithoutStore judges one limit where not all limits have an answer. known reports whether this limit has an
// answer or, as a limit of 0, needs none.
func (s *Service) verdictWithoutStore(c *Call, p *step, now int64, mode limits.FailureMode, partial bool) (
	v decide.Verdict, known bool) {
	if p.hit < 0 || partial && c.batch.Hits[p.hit].Err == nil {
		var o decide.Outcome
		s.outcome(&o, c, p, now)
		return decide.JudgeLimit(o, s.o.GlobalShadow), true
	}
	v = failed(c, p, now, mode, s.o.GlobalShadow)
	v.Over = p.rule.PerUnit == 0
	return v, v.Over
}

// failed judges a limit by the failure mode.
func failed(c *Call, p *step, now int64, mode limits.FailureMode, globalShadow bool) (v decide.Verdict) {
	var o decide.Outcome
	p.unanswered(&o, c, now)
	v.Shadow = p.rule.Shadow
	v.Delta = decide.Failed(o, mode, globalShadow, &v.Status)
	return v
}

package service

import (
	"errors"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/decide"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
)

// storeFailed answers when the store did not: by the domain's on_store_failure, else by
// STORE_FAILURE_MODE. The default is an error, so that Envoy's failure_mode_deny decides. Where a
// limit of 0, the over-limit cache, or a hit that did get an answer settles the request all the same,
// that is the answer in every mode.
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

// failedHit is the hit that represents an ErrPartial: the first whose key no store would take, since a retry does not
// help it, else the first of all.
func (c *Call) failedHit() (descriptor int, err error) {
	for i := range c.plan {
		p := &c.plan[i]
		if p.hit == fromCache || c.batch.Hits[p.hit].Err == nil {
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

// judgeWithoutStore fills in what follows without totals, or with some of them (partial), and counts the hits: they
// were requested, whether or not they were counted in a store.
func (s *Service) judgeWithoutStore(c *Call, now int64, mode limits.FailureMode, partial bool) {
	s.judgeUnlimited(c)
	for range c.rules {
		c.unanswered = append(c.unanswered, false)
	}
	for i := range c.plan {
		p := &c.plan[i]
		rule, st := c.rules[p.descriptor], &c.Response.Statuses[p.descriptor]
		o := decide.Outcome{
			Rule: rule, Hits: p.hits, Refund: c.Request.Descriptors[p.descriptor].Negative,
			Known: p.hit == fromCache, Reset: max(1, p.end-now),
		}
		var delta decide.Delta
		answered := partial && !o.Known && c.batch.Hits[p.hit].Err == nil
		if answered {
			s.outcome(&o, &c.batch.Hits[p.hit], p, now)
		}
		if answered || o.Known {
			delta = decide.Judge(o, s.o.GlobalShadow, st)
		} else {
			delta = decide.Failed(o, mode, s.o.GlobalShadow, st)
			c.unanswered[p.descriptor] = rule.PerUnit > 0 // a limit of 0 needs no answer
		}
		s.count(c, p.descriptor, &delta)
		if s.o.DraftHeaders {
			c.describe(p)
		}
	}
}

package service

import (
	"gatehouse/ratelimit/internal/decide"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
)

// storeFailed answers when the store did not: by the domain's on_store_failure, else by
// STORE_FAILURE_MODE. The default is an error, so that Envoy's failure_mode_deny decides. Where a
// limit of 0 or the over-limit cache settles the request all the same, that is the answer in every mode.
func (s *Service) storeFailed(c *Call, domain *limits.Domain, err error) error {
	s.storeError.Inc()
	s.trouble.count(err)
	mode := s.o.OnStoreFailure
	if domain != nil && domain.OnStoreFailure != limits.FailureUnset {
		mode = domain.OnStoreFailure
	}
	s.failure[mode].Inc()
	c.Done = s.clock()
	s.judgeWithoutStore(c, c.Done.Unix(), mode)
	if mode == limits.FailureError && decide.Overall(c.Response.Statuses, c.rules, s.o.GlobalQuota) != rls.OverLimit {
		return storeRefusal(err)
	}
	s.finish(c)
	return nil
}

// judgeWithoutStore fills in what can be said without totals, and counts the hits: they were asked
// for, whatever became of them (spec 5.5).
func (s *Service) judgeWithoutStore(c *Call, now int64, mode limits.FailureMode) {
	s.judgeUnlimited(c)
	for i := range c.plan {
		p := &c.plan[i]
		rule, st := c.rules[p.descriptor], &c.Response.Statuses[p.descriptor]
		o := decide.Outcome{
			Rule: rule, Hits: p.hits, Refund: c.Request.Descriptors[p.descriptor].Negative,
			Known: p.hit == fromCache, Reset: max(1, p.end-now),
		}
		var delta decide.Delta
		if o.Known {
			delta = decide.Judge(o, s.o.GlobalShadow, st)
		} else {
			delta = decide.Failed(o, mode, s.o.GlobalShadow, st)
		}
		s.count(c, p.descriptor, &delta)
	}
}

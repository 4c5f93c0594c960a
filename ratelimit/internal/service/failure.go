package service

import (
	"errors"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/decide"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
)

// failure describes a call of the store that failed. mode says how limits without an answer are decided. If partial is
// set, some hits of the call did get an answer.
type failure struct {
	mode    limits.FailureMode
	partial bool
}

// storeFailed decides a request for which the store failed with err: by the domain's on_store_failure if it is set,
// otherwise by STORE_FAILURE_MODE. The default mode is an error, so that Envoy's failure_mode_deny decides. If a limit
// of 0, the over-limit cache, or a hit that the store did answer makes the request OVER_LIMIT, that is the answer in
// every mode.
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
	s.judge(c, c.Done.Unix(), &failure{mode, partial})
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

// failedHit returns the descriptor and the error of the hit that stands for an ErrPartial. It is the first hit whose
// key the store cannot hold, since repeating the request cannot succeed; if there is none, it is the first hit that
// failed.
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

// failed decides the limit of step p without the store's answer, as the configured failure mode prescribes.
func (s *Service) failed(c *Call, p *step, now int64, f *failure) (v decide.Verdict) {
	var o decide.Outcome
	p.unanswered(&o, c, now)
	v.Shadow = p.rule.Shadow
	v.Delta = decide.Failed(o, f.mode, s.o.GlobalShadow, &v.Status)
	return v
}

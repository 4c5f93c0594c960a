package service

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/memory"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
)

// someFail is the in-process store, except for keys with a space, which it refuses, and keys of an unavailable node.
type someFail struct{ *memory.Store }

func (s someFail) Add(ctx context.Context, r *counter.Request) error {
	failed := false
	for i := range r.Hits {
		h := &r.Hits[i]
		switch {
		case bytes.Contains(h.Key, []byte(" ")):
			h.Err = &counter.KeyError{Why: "holds a space"}
		case bytes.Contains(h.Key, []byte("away")):
			h.Err = counter.ErrOpen
		default:
			one := counter.Request{Hits: []counter.Hit{*h}, Now: r.Now}
			if err := s.Store.Add(ctx, &one); err != nil {
				return err
			}
			*h = one.Hits[0]
			h.Err = nil
		}
		failed = failed || h.Err != nil
	}
	if failed {
		return counter.ErrPartial
	}
	return nil
}

// Of a request whose hits got an answer in part, these hits are counted and judged, and the others
// follow the failure mode.
func TestPartialFailure(t *testing.T) {
	const rules = `[{key: k, @2}, {key: zero, @0}, {key: free}, {key: shadow, shadow_mode: true, @1}]`
	f := func(mode limits.FailureMode, descriptors string, want ...string) {
		t.Helper()
		r := newRig(t, rules, Options{OnStoreFailure: mode})
		r.SetStore(someFail{r.store.Store})
		for _, w := range want {
			r.expect(t, call("d", descriptors), w)
		}
	}
	// The good one is counted; when it is over, that is the answer in every mode.
	f(limits.FailureError, "(k,a)|(k,a b)",
		"rate limit descriptor 1: the counter key holds a space",
		"rate limit descriptor 1: the counter key holds a space",
		"OVER_LIMIT: OVER_LIMIT 0/2 OK 0/2", "OVER_LIMIT: OVER_LIMIT 0/2 OK 0/2")
	f(limits.FailureAllow, "(k,a b)|(k,a)", "OK: OK 0/2 OK 1/2", "OK: OK 0/2 OK 0/2",
		"OVER_LIMIT: OK 0/2 OVER_LIMIT 0/2")
	f(limits.FailureDeny, "(k,a)|(k,a b)", "OVER_LIMIT: OK 1/2 OVER_LIMIT 0/2", "OVER_LIMIT: OK 0/2 OVER_LIMIT 0/2")

	// The index is that of the descriptor, and a bad key goes before an unavailable node.
	f(limits.FailureError, "(free,x)|(none,x)|(k,away)|(k,a b)",
		"rate limit descriptor 3: the counter key holds a space")
	f(limits.FailureError, "(k,away)|(k,a)", "rate limit store is unavailable")
	f(limits.FailureAllow, "(k,away)|(k,a)", "OK: OK 0/2 OK 1/2")
	f(limits.FailureDeny, "(k,away)|(shadow,a b)|(free,x)", "OVER_LIMIT: OVER_LIMIT 0/2 OK 0/1 OK")
	f(limits.FailureError, "(k,a b)|(zero,x)", "OVER_LIMIT: OK 0/2 OVER_LIMIT 0/0")
}

func TestPartialFailure_statistics(t *testing.T) {
	var log bytes.Buffer
	r := newRig(t, `[{key: k, @2}]`,
		Options{OnStoreFailure: limits.FailureError, Log: slog.New(slog.NewTextHandler(&log, nil))})
	r.SetStore(someFail{r.store.Store})
	r.decide(t, call("d", "(k,a)|(k,a b)"))
	r.decide(t, call("d", "(k,away)|(k,b)"))
	r.wantCounters(t, "ratelimit.service.store_error.", map[string]int64{"bad_key": 1, "breaker_open": 1})
	r.wantCounters(t, "ratelimit.service.store_failure.", map[string]int64{"error": 2})
	r.wantCounters(t, "ratelimit.service.rate_limit.d.k.", map[string]int64{"total_hits": 4, "within_limit": 2})

	c := call("d", "(k,a b)")
	refusal, ok := errors.AsType[*Refusal](r.Decide(t.Context(), c, r.Now()))
	if !ok || refusal.Kind != Invalid {
		t.Errorf("%v, want an Invalid refusal", refusal)
	}
	// It passes at Envoy, so it is counted and logged like every other refusal; an answer by a failure mode is none.
	for range 2 {
		r.Decide(t.Context(), call("d", "(k,a b)"), r.Now())
	}
	r.wantCounters(t, "ratelimit.service.call.should_rate_limit.refused_", map[string]int64{"bad_key": 4})
	if n := strings.Count(log.String(), "reason=bad_key"); n != 1 {
		t.Errorf("%d lines of refused keys, want 1:\n%s", n, &log)
	}
	x, err := r.Explain(t.Context(), "d", []rls.Entry{{Key: "k", Value: "a"}})
	if err != nil || x.Descriptors[0].Counter.Value == nil || *x.Descriptors[0].Counter.Value != 1 {
		t.Errorf("%+v %v", x, err)
	}
}

package service

import (
	"errors"
	"fmt"
	"testing"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/limits"
)

// Begin and Complete say and count what Decide does, whatever the store answers.
func TestBegin_Complete(t *testing.T) {
	const rules = `[{key: k, @2}, {key: free, rate_limit: {unlimited: true}}, {key: none}]`
	requests := []string{"(k,a)", "(k,a)", "(k,a)", "(k,a)|(free,x)", "(none,x)", "(unknown,x)", "(free,x)|(none,y)",
		"(k,b)|(k,b)|(k,b)"}
	for _, mode := range []limits.FailureMode{limits.FailureError, limits.FailureAllow, limits.FailureDeny} {
		for _, fails := range []error{nil, counter.ErrTimeout, counter.ErrOpen} {
			whole, halves := newRig(t, rules, Options{OnStoreFailure: mode}),
				newRig(t, rules, Options{OnStoreFailure: mode})
			halves.awaitStore()
			whole.store.err, halves.store.err = fails, fails
			f := func(domain, text string) {
				want := call(domain, text)
				wantErr := whole.Decide(t.Context(), want, whole.Now())
				got := call(domain, text)
				asks, gotErr := halves.Begin(t.Context(), got, halves.Now())
				if asks {
					store, pending := halves.Pending(got)
					gotErr = halves.Complete(got, store.Add(t.Context(), pending), halves.Now())
				}
				name := fmt.Sprintf("%v, store error %v, %s to %q", mode, fails, text, domain)
				if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
					t.Errorf("%s: %v, want %v", name, gotErr, wantErr)
				}
				if g, w := fmt.Sprintf("%+v", got.Response), fmt.Sprintf("%+v", want.Response); wantErr == nil &&
					g != w {
					t.Errorf("%s:\n%s\nwant\n%s", name, g, w)
				}
			}
			for _, domain := range []string{"d", "elsewhere", ""} {
				for _, text := range requests {
					f(domain, text)
				}
			}
			halves.wantCounters(t, "", whole.counters(""))
		}
	}
}

// A request that needs no store is complete after Begin.
func TestBegin_asks(t *testing.T) {
	r := newRig(t, `[{key: k, @2}, {key: free, rate_limit: {unlimited: true}}]`, Options{})
	r.awaitStore()
	for text, want := range map[string]bool{"(k,a)": true, "(free,a)": false, "(nothing,a)": false,
		"(free,a)|(k,b)": true} {
		if asks, err := r.Begin(t.Context(), call("d", text), r.Now()); asks != want || err != nil {
			t.Errorf("%s: asks %v (%v), want %v", text, asks, err, want)
		}
	}
	if asks, err := r.Begin(t.Context(), call("", "(k,a)"), r.Now()); asks || !errors.Is(err, errNoDomain) {
		t.Errorf("no domain: asks %v, %v", asks, err)
	}
	if r.store.calls != 0 {
		t.Errorf("Begin asked the store %d times", r.store.calls)
	}
}

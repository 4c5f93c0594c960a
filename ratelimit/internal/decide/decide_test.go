package decide

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
)

// rule has the near threshold as the rules precompute it; here for the default ratio of 0.8.
func rule(limit uint32) *limits.Rule {
	ratio := float32(0.8)
	return &limits.Rule{PerUnit: limit, Near: uint32(float32(limit) * ratio), Unit: rls.Minute, Window: 60, Name: "r"}
}

func TestJudge(t *testing.T) {
	f := func(limit uint32, before, hits uint64, code rls.Code, remaining uint32, want Delta) {
		t.Helper()
		want.Total = hits
		var st rls.Status
		got := Judge(Outcome{Rule: rule(limit), Hits: hits, After: before + hits, Reset: 40}, false, &st)
		wantStatus := rls.Status{Code: code, HasLimit: true, PerUnit: limit, Unit: rls.Minute, Name: "r",
			Remaining: remaining, Reset: 40}
		if d := cmp.Diff(wantStatus, st); d != "" {
			t.Errorf("status: want (-), got (+):\n%s", d)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("delta: want (-), got (+):\n%s", d)
		}
	}
	// Limit 10, near threshold 8.
	f(10, 0, 1, rls.OK, 9, Delta{Within: 1})
	f(10, 7, 1, rls.OK, 2, Delta{Within: 1})
	f(10, 8, 1, rls.OK, 1, Delta{Near: 1, Within: 1})
	f(10, 9, 1, rls.OK, 0, Delta{Near: 1, Within: 1})
	f(10, 6, 3, rls.OK, 1, Delta{Near: 1, Within: 3})
	f(10, 8, 2, rls.OK, 0, Delta{Near: 2, Within: 2})
	f(10, 7, 5, rls.OverLimit, 0, Delta{Over: 2, Near: 2})
	f(10, 9, 5, rls.OverLimit, 0, Delta{Over: 4, Near: 1})
	f(10, 0, 20, rls.OverLimit, 0, Delta{Over: 10, Near: 2})
	f(10, 10, 1, rls.OverLimit, 0, Delta{Over: 1})
	f(10, 10, 0, rls.OK, 0, Delta{})
	f(10, 11, 0, rls.OverLimit, 0, Delta{})
	f(0, 0, 3, rls.OverLimit, 0, Delta{Over: 3})
	f(15, 12, 1, rls.OK, 2, Delta{Near: 1, Within: 1})
	// A counter at its ceiling.
	f(10, 1<<63-2, 1, rls.OverLimit, 0, Delta{Over: 1})
}

func TestJudge_modes(t *testing.T) {
	f := func(o Outcome, globalShadow bool, code rls.Code, remaining uint32, want Delta) {
		t.Helper()
		var st rls.Status
		got := Judge(o, globalShadow, &st)
		if st.Code != code || st.Remaining != remaining {
			t.Errorf("%s, remaining %d; want %s, %d", st.Code, st.Remaining, code, remaining)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("delta: want (-), got (+):\n%s", d)
		}
	}
	shadow := rule(10)
	shadow.Shadow = true
	// The over-limit cache knew: nothing near, all over.
	f(Outcome{Rule: rule(10), Hits: 3, Known: true}, false, rls.OverLimit, 0, Delta{Total: 3, Over: 3, OverCached: 3})
	f(Outcome{Rule: shadow, Hits: 3, Known: true}, false, rls.OK, 0, Delta{Total: 3, Over: 3, OverCached: 3, Shadow: 3})
	// A shadow rule counts what it would have refused; under both flags it counts once.
	f(Outcome{Rule: shadow, Hits: 5, After: 12}, false, rls.OK, 0, Delta{Total: 5, Over: 2, Near: 2, Shadow: 2})
	f(Outcome{Rule: shadow, Hits: 5, After: 12}, true, rls.OK, 0, Delta{Total: 5, Over: 2, Near: 2, Shadow: 2})
	f(Outcome{Rule: shadow, Hits: 5, After: 5}, true, rls.OK, 5, Delta{Total: 5, Within: 5})
	// SHADOW_MODE leaves the descriptor's code alone.
	f(Outcome{Rule: rule(10), Hits: 5, After: 12}, true, rls.OverLimit, 0, Delta{Total: 5, Over: 2, Near: 2, Shadow: 2})
	// Spared hits: the present hit is not deducted, and nothing is near.
	f(Outcome{Rule: rule(10), Hits: 1, After: 9, Spared: true}, false, rls.OK, 1, Delta{Total: 1, Within: 1})
	// A refund counts nothing; its code is the counter's.
	f(Outcome{Rule: rule(10), Hits: 4, After: 9, Refund: true}, false, rls.OK, 1, Delta{})
	f(Outcome{Rule: rule(10), Hits: 4, After: 11, Refund: true}, false, rls.OverLimit, 0, Delta{})
	f(Outcome{Rule: shadow, Hits: 4, After: 11, Refund: true}, false, rls.OK, 0, Delta{})
}

func TestFailed(t *testing.T) {
	f := func(o Outcome, mode limits.FailureMode, globalShadow bool, code rls.Code, want Delta) {
		t.Helper()
		var st rls.Status
		got := Failed(o, mode, globalShadow, &st)
		if !st.HasLimit || st.Reset != o.Reset || st.Remaining != 0 || st.Code != code {
			t.Errorf("status %+v, want %s with its limit, reset %d and nothing remaining", st, code, o.Reset)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("delta: want (-), got (+):\n%s", d)
		}
	}
	shadow, blocks := rule(10), rule(0)
	shadow.Shadow = true
	f(Outcome{Rule: rule(10), Hits: 2, Reset: 9}, limits.FailureAllow, false, rls.OK, Delta{Total: 2})
	f(Outcome{Rule: rule(10), Hits: 2, Reset: 9}, limits.FailureDeny, false, rls.OverLimit, Delta{Total: 2})
	f(Outcome{Rule: shadow, Hits: 2, Reset: 9}, limits.FailureDeny, false, rls.OK, Delta{Total: 2})
	f(Outcome{Rule: blocks, Hits: 2, Reset: 9}, limits.FailureAllow, false, rls.OverLimit, Delta{Total: 2, Over: 2})
	f(Outcome{Rule: blocks, Hits: 2, Reset: 9}, limits.FailureError, true, rls.OverLimit,
		Delta{Total: 2, Over: 2, Shadow: 2})
	f(Outcome{Rule: rule(10), Hits: 2, Reset: 9, Refund: true}, limits.FailureDeny, false, rls.OverLimit, Delta{})
}

func TestOverall(t *testing.T) {
	plain, quota, free := rule(1), rule(1), &limits.Rule{Unlimited: true}
	quota.Quota = true
	f := func(globalQuota bool, want rls.Code, codes string, rules ...*limits.Rule) {
		t.Helper()
		statuses := make([]rls.Status, len(codes))
		for i, c := range codes {
			statuses[i].Code = map[rune]rls.Code{'o': rls.OK, 'X': rls.OverLimit}[c]
		}
		if got := Overall(statuses, rules, globalQuota); got != want {
			t.Errorf("%s gives %s, want %s", codes, got, want)
		}
	}
	f(false, rls.OK, "oo", plain, nil)
	f(false, rls.OverLimit, "oX", nil, plain)
	f(false, rls.OK, "Xo", quota, quota)
	f(false, rls.OverLimit, "XX", quota, quota)
	f(false, rls.OverLimit, "Xo", quota, plain)      // the only quota descriptor is over
	f(false, rls.OverLimit, "oX", quota, plain)      // a plain one is over
	f(false, rls.OverLimit, "Xoo", quota, free, nil) // neither unlimited nor unmatched is an alternative
	f(true, rls.OK, "Xo", plain, nil)                // QUOTA_MODE: the unmatched one has quota left
	f(true, rls.OverLimit, "Xo", plain, free)
	f(true, rls.OverLimit, "X", plain)
}

func TestHeaders(t *testing.T) {
	quota := rule(1)
	quota.Quota = true
	names := HeaderNames{"L", "R", "T"}
	limited := func(code rls.Code, perUnit, remaining uint32, reset int64) rls.Status {
		return rls.Status{Code: code, HasLimit: true, PerUnit: perUnit, Remaining: remaining, Reset: reset}
	}
	f := func(want []rls.Header, statuses []rls.Status, rules ...*limits.Rule) {
		t.Helper()
		if d := cmp.Diff(want, Headers(nil, names, statuses, rules, false)); d != "" {
			t.Errorf("want (-), got (+):\n%s", d)
		}
	}
	r := rule(1)
	// The last one over its limit, not the first.
	f([]rls.Header{{Key: "L", Value: "9"}, {Key: "R", Value: "0"}, {Key: "T", Value: "40"}},
		[]rls.Status{limited(rls.OK, 5, 2, 40), limited(rls.OverLimit, 3, 0, 6400), limited(rls.OverLimit, 9, 0, 40)},
		r, r, r)
	// Else the first with the least remaining.
	f([]rls.Header{{Key: "L", Value: "7"}, {Key: "R", Value: "1"}, {Key: "T", Value: "5"}},
		[]rls.Status{limited(rls.OK, 5, 2, 40), limited(rls.OK, 7, 1, 5), limited(rls.OK, 8, 1, 6)}, r, r, r)
	// A quota descriptor over its limit is chosen by its remaining 0, not as over.
	f([]rls.Header{{Key: "L", Value: "3"}, {Key: "R", Value: "0"}, {Key: "T", Value: "5"}},
		[]rls.Status{limited(rls.OverLimit, 3, 0, 5), limited(rls.OverLimit, 4, 0, 6)}, quota, quota)
	// None has a limit: no headers.
	f(nil, []rls.Status{{Code: rls.OK}, Unlimited(), {Code: rls.OverLimit}}, nil, &limits.Rule{Unlimited: true}, nil)
}

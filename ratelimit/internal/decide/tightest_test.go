package decide

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
)

func bucket(limit, burst uint32) *limits.Rule {
	r := rule(limit)
	r.Algorithm, r.Burst, r.Near = counter.TokenBucket, burst, burst*4/5
	return r
}

// A token bucket is judged by its size; its status and its code show the limit.
func TestJudge_capacity(t *testing.T) {
	f := func(r *limits.Rule, after, hits uint64, code rls.Code, remaining uint32, want Delta) {
		t.Helper()
		want.Total = hits
		var st rls.Status
		got := Judge(Outcome{Rule: r, Hits: hits, After: after, Reset: 40}, false, &st)
		wantStatus := rls.Status{Code: code, HasLimit: true, PerUnit: r.PerUnit, Unit: rls.Minute, Name: "r",
			Remaining: remaining, Reset: 40}
		if d := cmp.Diff(wantStatus, st); d != "" {
			t.Errorf("status: want (-), got (+):\n%s", d)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("delta: want (-), got (+):\n%s", d)
		}
	}
	f(bucket(10, 20), 1, 1, rls.OK, 19, Delta{Within: 1})
	f(bucket(10, 20), 18, 4, rls.OK, 2, Delta{Within: 4, Near: 2})
	f(bucket(10, 20), 20, 1, rls.OK, 0, Delta{Within: 1, Near: 1})
	f(bucket(10, 20), 21, 1, rls.OverLimit, 0, Delta{Over: 1})
	f(bucket(10, 20), 24, 6, rls.OverLimit, 0, Delta{Over: 4, Near: 2})
	f(bucket(10, 5), 6, 1, rls.OverLimit, 0, Delta{Over: 1})
	f(bucket(0, 5), 1, 1, rls.OverLimit, 0, Delta{Over: 1}) // a limit of 0 has no burst
	f(bucket(0, 5), 0, 0, rls.OK, 0, Delta{})
}

func TestTightest(t *testing.T) {
	v := func(over, shadow bool, remaining uint32, reset int64) Verdict {
		return Verdict{Over: over, Shadow: shadow, Status: rls.Status{Remaining: remaining, Reset: reset}}
	}
	f := func(want int, list ...Verdict) {
		t.Helper()
		got := 0
		for i := range list {
			if list[i].TighterThan(&list[got]) {
				got = i
			}
		}
		if got != want {
			t.Errorf("%d of %+v decides, want %d", got, list, want)
		}
	}
	// Of those that are over the longest reset, first of equals.
	f(1, v(true, false, 0, 10), v(true, false, 0, 90), v(true, false, 0, 90), v(false, false, 0, 900))
	// Else the least remaining, then the longest reset, then the first.
	f(2, v(false, false, 5, 90), v(false, false, 1, 10), v(false, false, 1, 20), v(false, false, 1, 20))
	// Limits in shadow mode only decide among themselves, by the same order.
	f(1, v(true, true, 0, 90), v(false, false, 7, 1), v(false, true, 0, 90))
	f(2, v(false, true, 0, 90), v(true, true, 0, 10), v(true, true, 0, 20))
	f(1, v(false, true, 3, 90), v(false, true, 2, 10))
	f(0, v(false, true, 3, 90))
}

func TestJudgeLimit(t *testing.T) {
	shadow := rule(10)
	shadow.Shadow = true
	got := JudgeLimit(Outcome{Rule: shadow, Hits: 1, After: 11, Reset: 40}, false)
	if !got.Over || !got.Shadow || got.Refuses() || got.Status.Code != rls.OK || got.Delta.Shadow != 1 {
		t.Errorf("in shadow mode: %+v", got)
	}
	if got := JudgeLimit(Outcome{Rule: rule(10), Hits: 1, Known: true}, false); !got.Refuses() {
		t.Errorf("known from the over-limit cache: %+v", got)
	}
	if got := JudgeLimit(Outcome{Rule: rule(10), Hits: 1, After: 10}, false); got.Over || got.Refuses() {
		t.Errorf("at the limit: %+v", got)
	}
}

package decide

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/sfvtest"
	"gatehouse/shared/must"
)

func TestDraftHeaders(t *testing.T) {
	f := func(policy, limit string, members ...Member) {
		t.Helper()
		want := []rls.Header{{Key: "RateLimit-Policy", Value: policy}, {Key: "RateLimit", Value: limit}}
		if d := cmp.Diff(want, DraftHeaders(nil, members)); d != "" {
			t.Errorf("want (-), got (+):\n%s", d)
		}
	}
	member := func(name string, perUnit uint32, unit rls.Unit, multiplier uint32) Member {
		r := &limits.Rule{Name: name, PerUnit: perUnit, Unit: unit, Multiplier: multiplier,
			Window: unit.Seconds() * int64(multiplier)}
		return Member{Rule: r, Window: r.Window, Remaining: perUnit / 2, Until: 7}
	}
	five := member("", 5, rls.Minute, 1)
	f(`"5-per-minute";q=5;w=60`, `"5-per-minute";r=2;t=7`, five)
	f(`"hourly";q=1000;w=3600, "0-per-5-minute";q=0;w=300`, `"hourly";r=500;t=7, "0-per-5-minute";r=0;t=7`,
		member("hourly", 1000, rls.Hour, 1), member("", 0, rls.Minute, 5))
	// Each name stands once.
	f(`"5-per-minute";q=5;w=60, "5-per-minute#2";q=5;w=60, "5-per-minute#3";q=5;w=60`,
		`"5-per-minute";r=2;t=7, "5-per-minute#2";r=2;t=7, "5-per-minute#3";r=2;t=7`, five, five, five)
	f(`"a#2";q=1;w=1, "a";q=1;w=1, "a#3";q=1;w=1`, `"a#2";r=0;t=7, "a";r=0;t=7, "a#3";r=0;t=7`,
		member("a#2", 1, rls.Second, 1), member("a", 1, rls.Second, 1), member("a", 1, rls.Second, 1))
	// What a string cannot hold does not stand in one.
	f(`"a \"b\\";q=1;w=1, "1-per-second";q=1;w=1`, `"a \"b\\";r=0;t=7, "1-per-second";r=0;t=7`,
		member(`a "b\`, 1, rls.Second, 1), member("é", 1, rls.Second, 1))
	// Nor an integer of more than 15 digits.
	f(`"1-per-4294967295-year";q=1`, `"1-per-4294967295-year";r=0;t=7`, member("", 1, rls.Year, math.MaxUint32))

	// A bucket of another size than its limit says so.
	burst := Member{Rule: bucket(10, 20), Window: 60, Remaining: 19, Until: 1}
	burst.Rule.Name = ""
	f(`"10-per-minute";q=10;w=60;gatehouse-burst=20`, `"10-per-minute";r=19;t=1`, burst)
	burst.Rule.Burst = 10
	f(`"10-per-minute";q=10;w=60`, `"10-per-minute";r=19;t=1`, burst)

	if got := DraftHeaders(nil, nil); got != nil {
		t.Errorf("no member: %v", got)
	}
	many := make([]Member, 40)
	for i := range many {
		many[i] = five
	}
	if list, err := sfvtest.ParseList(DraftHeaders(nil, many)[0].Value); len(list) != MaxMembers || err != nil {
		t.Errorf("%d members: %v", len(list), err)
	}
}

// FuzzDraftHeaders: whatever names and numbers limits have, both fields are lists of strings with parameters, with the
// same names, each once, and the numbers that were given.
func FuzzDraftHeaders(f *testing.F) {
	f.Add("burst\nhourly", uint32(10), int32(1), uint32(1), int64(1), uint32(19), int64(1))
	f.Add("a\na\na#2\n\n", uint32(0), int32(7), uint32(5), int64(300), uint32(0), int64(100))
	f.Add("a\"b\\c\né\x7f\n\xff", uint32(math.MaxUint32), int32(9), uint32(0), int64(math.MaxInt64), uint32(1),
		int64(maxReset))
	f.Fuzz(func(t *testing.T, names string, perUnit uint32, unit int32, multiplier uint32, window int64,
		remaining uint32, until int64) {
		if until < 0 || until > maxReset || window < 1 {
			return // no limit has them
		}
		var members []Member
		for name := range strings.SplitSeq(names, "\n") {
			members = append(members, Member{Window: window, Remaining: remaining, Until: until, Rule: &limits.Rule{
				Name: name, PerUnit: perUnit, Unit: rls.Unit(unit), Multiplier: multiplier, Window: window}})
		}
		headers := DraftHeaders(nil, members)
		policy, err := sfvtest.ParseList(headers[0].Value)
		must.Succeed(t, err)
		limit, err := sfvtest.ParseList(headers[1].Value)
		must.Succeed(t, err)
		if len(policy) != min(len(members), MaxMembers) || len(limit) != len(policy) {
			t.Fatalf("%d and %d members of %d", len(policy), len(limit), len(members))
		}
		seen := map[string]bool{}
		for i := range policy {
			name := policy[i].Name
			if seen[name] || limit[i].Name != name {
				t.Errorf("name %q of %q and %q", name, headers[0].Value, headers[1].Value)
			}
			seen[name] = true
			if given := members[i].Rule.Name; given != "" && !strings.ContainsFunc(given, unprintable) {
				rest, ok := strings.CutPrefix(name, given)
				if _, err := strconv.Atoi(strings.TrimPrefix(rest, "#")); !ok || rest != "" && err != nil {
					t.Errorf("%q is called %q", given, name)
				}
			}
			want := map[string]int64{"q": int64(perUnit), "w": window}
			if window > maxInteger {
				delete(want, "w")
			}
			if d := cmp.Diff(want, policy[i].Params); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(map[string]int64{"r": int64(remaining), "t": until}, limit[i].Params); d != "" {
				t.Error(d)
			}
		}
	})
}

func TestRetryAfter(t *testing.T) {
	plain, quota := rule(1), rule(1)
	quota.Quota = true
	over := func(reset int64) rls.Status { return rls.Status{Code: rls.OverLimit, HasLimit: true, Reset: reset} }
	ok := rls.Status{Code: rls.OK, HasLimit: true, Reset: 1000}
	f := func(want int64, statuses []rls.Status, rules []*limits.Rule, unanswered ...bool) {
		t.Helper()
		if got, ok := RetryAfter(statuses, rules, unanswered, false); got != want || ok != (want > 0) {
			t.Errorf("%d, %v; want %d", got, ok, want)
		}
	}
	f(40, []rls.Status{over(40)}, []*limits.Rule{plain})
	f(90, []rls.Status{over(40), over(90), ok, over(2)}, []*limits.Rule{plain, plain, plain, plain})
	// Descriptors in quota mode are alternatives: the first to come back will do, unless another refuses as well.
	f(40, []rls.Status{over(90), over(40)}, []*limits.Rule{quota, quota})
	f(50, []rls.Status{over(90), over(40), over(50)}, []*limits.Rule{quota, quota, plain})
	// What a failure mode has answered is not known to come back at any time.
	f(0, []rls.Status{over(40)}, []*limits.Rule{plain}, true)
	f(40, []rls.Status{over(90), over(40)}, []*limits.Rule{plain, plain}, true, false)
	f(90, []rls.Status{over(90), over(40)}, []*limits.Rule{quota, quota}, false, true)
	f(0, []rls.Status{over(90), over(40)}, []*limits.Rule{quota, plain}, false, true)
	// An unknown domain has no limit.
	f(0, []rls.Status{{Code: rls.OverLimit}}, []*limits.Rule{nil})
	if got, _ := RetryAfter([]rls.Status{over(9), over(3)}, []*limits.Rule{plain, plain}, nil, true); got != 3 {
		t.Errorf("QUOTA_MODE: %d, want 3", got)
	}
}

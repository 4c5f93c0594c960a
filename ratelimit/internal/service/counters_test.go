package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/memory"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/overlimit"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/shared/must"
)

// algorithmRules has each algorithm, alone and in a list.
const algorithmRules = `[
	{key: fixed, @10},
	{key: sliding, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: sliding_window}},
	{key: bucket, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: token_bucket}},
	{key: none, rate_limit: {unit: minute, requests_per_unit: 0, algorithm: token_bucket}},
	{key: month, rate_limit: {unit: month, requests_per_unit: 100, calendar: Europe/Berlin}},
	{key: list, rate_limits: [{unit: second, requests_per_unit: 2, algorithm: token_bucket, burst: 4}, {unit: minute, requests_per_unit: 5},
		{unit: hour, requests_per_unit: 1, algorithm: sliding_window, shadow_mode: true}]},
	{key: open, rate_limit: {unlimited: true}}]`

// algorithmRig has a store whose clock is the service's.
func algorithmRig(t *testing.T, o Options) *rig {
	t.Helper()
	r := newRig(t, algorithmRules, o)
	r.store.Store = memory.New(memory.Options{Clock: func() int64 { return r.now * 1_000_000 }})
	return r
}

func descriptorOf(t *testing.T, text string) *rls.Descriptor {
	t.Helper()
	return &call("d", text).Request.Descriptors[0]
}

func TestCounters(t *testing.T) {
	r := algorithmRig(t, Options{})
	f := func(descriptor string, want ...LimitCounter) {
		t.Helper()
		got, err := r.Counters(t.Context(), "d", descriptorOf(t, descriptor))
		must.Succeed(t, err)
		if d := cmp.Diff(&CounterReport{Domain: "d", Limits: want}, got); d != "" {
			t.Errorf("%s, want (-), got (+):\n%s", descriptor, d)
		}
	}
	hits := func(descriptor string, n uint32) {
		t.Helper()
		c := call("d", descriptor)
		c.Request.HitsAddend = n
		r.decide(t, c)
	}
	fixed := LimitCounter{Rule: "d.fixed", File: "rules.yaml:3:3", Key: "d_fixed_v_1699999980",
		LimitView: limits.LimitView{Unit: "MINUTE", Algorithm: "fixed_window"},
		Limit:     10, Remaining: 10, Reset: 40}
	f("(fixed,v)", fixed)
	hits("(fixed,v)", 8)
	fixed.Used, fixed.Remaining = 8, 2
	f("(fixed,v)", fixed)
	hits("(fixed,v)", 8)
	fixed.Used, fixed.Remaining = 16, 0
	f("(fixed,v)", fixed)

	bucket := LimitCounter{Rule: "d.bucket", File: "rules.yaml:5:3", Key: "d_bucket_v_~bm1",
		LimitView: limits.LimitView{Unit: "MINUTE", Algorithm: "token_bucket"},
		Limit:     10,
		Burst:     10, Remaining: 10, Reset: 1}
	f("(bucket,v)", bucket)
	hits("(bucket,v)", 8)
	bucket.Used, bucket.Remaining, bucket.Reset = 8, 2, 48
	f("(bucket,v)", bucket)

	sliding := LimitCounter{Rule: "d.sliding", File: "rules.yaml:4:3", Key: "d_sliding_v_~rm1",
		LimitView: limits.LimitView{Unit: "MINUTE", Algorithm: "sliding_window"},
		Limit:     10, Used: 10, Reset: 100}
	hits("(sliding,v)", 10)
	f("(sliding,v)", sliding)

	f("(none,v)", LimitCounter{Rule: "d.none", File: "rules.yaml:6:3", Key: "d_none_v_~bm1",
		LimitView: limits.LimitView{Unit: "MINUTE", Algorithm: "token_bucket"},
		Burst:     r.Rules().Domain("d").Find(descriptorOf(t, "(none,v)").Entries).Burst, Reset: 60})
	f("(month,v)", LimitCounter{Rule: "d.month", File: "rules.yaml:7:3", Key: "d_month_v_1698793200~cM1",
		LimitView: limits.LimitView{Unit: "MONTH", Algorithm: "fixed_window"},
		Limit:     100, Remaining: 100, Reset: 1385200})
	hits("(list,v)", 3)
	f("(list,v)",
		LimitCounter{Rule: "d.list", File: "rules.yaml:8:3", Key: "d_list_v_~bs1",
			LimitView: limits.LimitView{Unit: "SECOND", Algorithm: "token_bucket", Place: 1, Of: 3}, Limit: 2,
			Burst: 4,
			Used:  3, Remaining: 1, Reset: 2},
		LimitCounter{Rule: "d.list", File: "rules.yaml:8:3", Key: "d_list_v_1699999980",
			LimitView: limits.LimitView{Unit: "MINUTE", Algorithm: "fixed_window", Place: 2, Of: 3},
			Limit:     5, Used: 3,
			Remaining: 2, Reset: 40},
		LimitCounter{Rule: "d.list", File: "rules.yaml:8:3", Key: "d_list_v_~rh1",
			LimitView: limits.LimitView{Unit: "HOUR", Algorithm: "sliding_window", Place: 3, Of: 3},
			Limit:     1, Remaining: 1,
			Reset: 1})

	own := descriptorOf(t, "(anything,v)")
	own.HasLimit, own.Limit = true, rls.Override{PerUnit: 3, Unit: rls.Hour}
	got, err := r.Counters(t.Context(), "e", own)
	want := &CounterReport{Domain: "e",
		Limits: []LimitCounter{{Key: "e_anything_v_1699999200",
			LimitView: limits.LimitView{Unit: "HOUR", Algorithm: "fixed_window"}, Limit: 3,
			Remaining: 3, Reset: 2800}}}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("an own limit: %v\n%s", err, d)
	}
}

func TestCounters_errors(t *testing.T) {
	r := algorithmRig(t, Options{})
	f := func(descriptor, want string) {
		t.Helper()
		_, err := r.ResetCounters(t.Context(), "d", descriptorOf(t, descriptor))
		if _, ok := errors.AsType[*NoLimitError](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", descriptor, err, want)
		}
	}
	f("(nothing,v)",
		`no counter decides this descriptor: entry 1, ("nothing", "v"): no entry here has the key "nothing"`)
	f("(open,v)", "no counter decides this descriptor: open (rules.yaml:10:3) decides: unlimited")
	r.store.peek = fmt.Errorf("%w: down", counter.ErrUnavailable)
	for _, call := range []func() error{
		func() error { _, err := r.Counters(t.Context(), "d", descriptorOf(t, "(fixed,v)")); return err },
		func() error { _, err := r.ResetCounters(t.Context(), "d", descriptorOf(t, "(fixed,v)")); return err },
	} {
		if refusal, ok := errors.AsType[*Refusal](call()); !ok || refusal.Kind != Unavailable {
			t.Errorf("a store that is down: %v", call())
		}
	}
	r.store.peek = &counter.KeyError{Why: "is too long"}
	_, err := r.Counters(t.Context(), "d", descriptorOf(t, "(fixed,v)"))
	if refusal, ok := errors.AsType[*Refusal](err); !ok || refusal.Kind != Invalid ||
		refusal.Msg != "the counter key is too long" {
		t.Errorf("a key that the store cannot hold: %v", err)
	}
	empty := New(Options{Stats: r.stats})
	if _, err := empty.Counters(t.Context(), "d", descriptorOf(t, "(fixed,v)")); err != ErrNoRules {
		t.Errorf("without rules: %v", err)
	}
	empty.SetRules(r.Rules())
	if _, err := empty.ResetCounters(t.Context(), "d", descriptorOf(t, "(fixed,v)")); err == nil ||
		err.Error() != "rate limit store is unavailable" {
		t.Errorf("without a store: %v", err)
	}
}

// TestResetCounters: what was over passes again, whichever algorithm, and the over-limit cache has forgotten it too.
func TestResetCounters(t *testing.T) {
	r := algorithmRig(t, Options{OverLimit: overlimit.New(1 << 20)})
	for _, key := range []string{"fixed", "sliding", "bucket", "list"} {
		descriptor := "(" + key + ",v)"
		c := call("d", descriptor)
		for range 30 {
			r.decide(t, c)
		}
		if c.Response.Overall != rls.OverLimit {
			t.Fatalf("%s is not over", key)
		}
		calls := r.store.calls
		if r.decide(t, c); key != "list" && r.store.calls != calls {
			t.Errorf("%s: the over-limit cache does not know it", key)
		}
		got, err := r.ResetCounters(t.Context(), "d", descriptorOf(t, descriptor))
		if err != nil || *got.Deleted != len(got.Limits) || got.Limits[0].Used == 0 ||
			got.Note != "other instances may refuse from their over-limit cache until the reset" {
			t.Errorf("%s: %+v %v", key, got, err)
		}
		after, err := r.Counters(t.Context(), "d", descriptorOf(t, descriptor))
		must.Succeed(t, err)
		for _, l := range after.Limits {
			if l.Used != 0 {
				t.Errorf("%s: after the reset %+v", key, l)
			}
		}
		if r.decide(t, c); c.Response.Overall != rls.OK {
			t.Errorf("%s: after the reset it is still over", key)
		}
	}
	got, err := r.ResetCounters(t.Context(), "d", descriptorOf(t, "(none,v)"))
	if err != nil || *got.Deleted != 0 || len(got.Limits) != 1 {
		t.Errorf("a limit of 0 without a counter: %+v %v", got, err)
	}
	plain := algorithmRig(t, Options{})
	for _, descriptor := range []string{"(fixed,v)", "(list,v)", "(bucket,v)"} { // there is none yet
		if got, err := plain.ResetCounters(t.Context(), "d", descriptorOf(t, descriptor)); err != nil || *got.Deleted != 0 {
			t.Errorf("%s without a counter: %+v %v", descriptor, got, err)
		}
	}
	for _, descriptor := range []string{"(fixed,v)", "(list,v)"} {
		plain.decide(t, call("d", descriptor))
	}
	if got, err := plain.ResetCounters(t.Context(), "d", descriptorOf(t, "(fixed,v)")); err != nil || got.Note != "" ||
		*got.Deleted != 1 {
		t.Errorf("without an over-limit cache: %+v %v", got, err)
	}
	// Of a list, the first are deleted when a later one cannot be.
	plain.store.failResets = 2
	got, err = plain.ResetCounters(t.Context(), "d", descriptorOf(t, "(list,v)"))
	if err == nil || *got.Deleted != 1 {
		t.Errorf("a store that fails in between: %+v %v", got, err)
	}
}

// TestExplain_counterNow: explain shows how the counter of each algorithm stands.
func TestExplain_counterNow(t *testing.T) {
	r := algorithmRig(t, Options{})
	f := func(descriptor string, want ...string) *Explanation {
		t.Helper()
		x, err := r.Explain(t.Context(), "d", descriptorOf(t, descriptor).Entries)
		must.Succeed(t, err)
		var got []string
		for line := range strings.SplitSeq(x.Text(), "\n") {
			if text, ok := strings.CutPrefix(line, "counter now: "); ok {
				got = append(got, text)
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s, want (-), got (+):\n%s", descriptor, d)
		}
		return x.Descriptors[0]
	}
	at := func(second int64, descriptor string, n uint32) {
		t.Helper()
		r.now = 1699999980 + second
		c := call("d", descriptor)
		c.Request.HitsAddend = n
		r.decide(t, c)
	}
	asJSON := func(v any) string {
		b, err := json.Marshal(v)
		must.Succeed(t, err)
		return string(b)
	}
	at(20, "(sliding,v)", 10)
	f("(sliding,v)", "10 of 10 used: 10 in this window, 0 in the last one count as 0")
	at(90, "(sliding,v)", 3)
	x := f("(sliding,v)", "8 of 10 used: 3 in this window, 10 in the last one count as 5")
	if got, want := asJSON(x.Counter),
		`{"value":8,"limit":10,"reset":90,"algorithm":"sliding_window","current":3,"previous":10}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	at(38, "(bucket,v)", 8)
	x = f("(bucket,v)", "2 of 10 left, full in 48 s")
	if got, want := asJSON(x.Counter),
		`{"value":8,"limit":10,"reset":48,"algorithm":"token_bucket","full_at":"2023-11-14T22:14:26Z"}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	r.now += 60
	x = f("(bucket,v)", "10 of 10 left, full")
	if got, want := asJSON(x.Counter), `{"value":0,"limit":10,"reset":1,"algorithm":"token_bucket"}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	at(20, "(fixed,v)", 3)
	x = f("(fixed,v)", "3 of 10, window ends in 40 s")
	if got, want := asJSON(x.Counter), `{"value":3,"limit":10,"reset":40}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	at(21, "(list,v)", 3)
	x = f("(list,v)", "1 of 4 left, full in 2 s", "3 of 5, window ends in 39 s",
		"0 of 1 used: 0 in this window, 0 in the last one count as 0")
	if strings.Count(x.Text(), "(decides at present)") != 1 || !x.Limits[0].Tightest {
		t.Errorf("the bucket decides, with least remaining:\n%s", x.Text())
	}
	r.now += 2
	x = f("(list,v)", "4 of 4 left, full", "3 of 5, window ends in 37 s",
		"0 of 1 used: 0 in this window, 0 in the last one count as 0")
	if !x.Limits[1].Tightest {
		t.Errorf("now the minute decides:\n%s", x.Text())
	}
	r.store.peek = counter.ErrTimeout
	x = f("(list,v)", "rate limit store did not answer in time", "rate limit store did not answer in time",
		"rate limit store did not answer in time")
	if strings.Contains(x.Text(), "decides at present") {
		t.Errorf("without the counters nobody knows what decides:\n%s", x.Text())
	}
}

package service

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/observe"
	"gatehouse/ratelimit/internal/overlimit"
	"gatehouse/shared/must"
)

// tapped opens a tap that takes everything. The function returned takes what has come, cut down to what a test names:
// the code, then each descriptor's code with its rule or outcome.
func tapped(t *testing.T, r *rig) func() string {
	t.Helper()
	l, err := r.Observer().Listen(observe.Filter{Sample: 1, Rate: 10_000})
	must.Succeed(t, err)
	t.Cleanup(l.Close)
	return func() string {
		var out []string
		for {
			select {
			case line := <-l.Lines():
				l.Took(line)
				out = append(out, brief(t, line))
			default:
				return strings.Join(out, "; ")
			}
		}
	}
}

func brief(t *testing.T, line []byte) string {
	var e observe.Event
	must.Succeed(t, json.Unmarshal(line, &e))
	text := e.Code + ":"
	for _, d := range e.Descriptors {
		text += " " + d.Code + " " + d.Rule + string(d.Unmatched)
	}
	return text
}

// TestObserve: a tap sees each decision, whichever way it was made, and no refusal.
func TestObserve(t *testing.T) {
	r := newRig(t, `[{key: k, @2}, {key: zero, @0}, {key: r, rate_limit: {unit: hour, requests_per_unit: 9, replaces: [{name: old}]}},
		{key: o, rate_limit: {unit: hour, requests_per_unit: 9, name: old}}]`,
		Options{OverLimit: overlimit.New(1 << 20), OnStoreFailure: limits.FailureAllow})
	events := tapped(t, r)
	f := func(c *Call, want string) {
		t.Helper()
		r.decide(t, c)
		if d := cmp.Diff(want, events()); d != "" {
			t.Errorf("want (-), got (+):\n%s", d)
		}
	}
	f(call("d", "(k,v)"), "OK: OK d.k")
	f(call("d", "(k,v)|(none,v)"), "OK: OK d.k OK no_match")
	f(call("d", "(k,v)"), "OVER_LIMIT: OVER_LIMIT d.k")
	f(call("d", "(k,v)"), "OVER_LIMIT: OVER_LIMIT d.k") // the over-limit cache
	f(call("d", "(none,v)"), "OK: OK no_match")         // no store
	f(call("e", "(k,v)"), "OK: OK unknown_domain")
	f(call("d", "(r,v)|(o,v)"), "OK: OK d.r OK replaced")
	f(call("", "(k,v)"), "")
	r.store.err = counter.ErrUnavailable
	f(call("d", "(k,w)"), "OK: OK d.k")

	// As the gRPC front does where the store answers later.
	r.store.err = nil
	r.awaitStore()
	c := call("d", "(k,x)")
	asks, err := r.Begin(t.Context(), c, r.Now())
	if got := events(); !asks || err != nil || got != "" {
		t.Fatalf("%v %v, and there is %q before the decision", asks, err, got)
	}
	store, batch := r.Pending(c)
	must.Succeed(t, r.Complete(c, store.Add(t.Context(), batch), r.Now()))
	if got := events(); got != "OK: OK d.k" {
		t.Errorf("got %q", got)
	}

	deny := newRig(t, `[{key: k, @2}]`,
		Options{DenyUnknown: true, Observe: observe.Settings{RecentSize: 2, TopKeys: 2}})
	events = tapped(t, deny)
	deny.decide(t, call("d", "(k,v)"))
	deny.decide(t, call("e", "(k,v)"))
	if got, want := events(), "OK: OK d.k; OVER_LIMIT: OVER_LIMIT unknown_domain"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := deny.Observer().Recent().Refused("").Descriptors; len(got) != 1 || got[0].Domain != "e" {
		t.Errorf("recent: %+v", got)
	}
	deny.now += 60
	if _, got := deny.Observer().Top().Read(deny.Now(), ""); len(got) != 1 || got[0].Rule != "d.k" {
		t.Errorf("top: %+v", got)
	}
}

// TestObserve_topKeys counts a descriptor by the counter key that its request was planned with, in one place whichever
// of its limits decides, whether or not the store is called.
func TestObserve_topKeys(t *testing.T) {
	for _, escaped := range []bool{false, true} {
		r := newRig(t, `[{key: k, @9}]`, Options{DenyUnknown: true, OverLimit: overlimit.New(1 << 20),
			Observe: observe.Settings{TopKeys: 5}})
		var o limits.Options
		o.EscapedKeys = escaped
		r.loadWith(t, `[{key: list, rate_limits: [
			{unit: second, requests_per_unit: 1},
			{unit: minute, requests_per_unit: 2, algorithm: sliding_window},
			{unit: hour, requests_per_unit: 1, algorithm: token_bucket}]},
			{key: none, rate_limit: {unit: hour, requests_per_unit: 0, algorithm: token_bucket}}, {key: k, @9}]`, o)
		c := new(Call)
		decide := func(domain, descriptors string) {
			c.Request = call(domain, descriptors).Request
			r.decide(t, c)
		}
		decide("d", "(none,v)")
		for second := range 5 { // the window of the first limit changes, and then the cache knows the others
			r.now = testNow + int64(second)
			decide("d", "(list,v)|(list,v)|(k,v)")
		}
		decide("e", "(list,v)") // one descriptor after three
		r.now = testNow + 60
		_, top := r.Observer().Top().Read(r.Now(), "")
		got := map[string]uint64{}
		for _, k := range top {
			got[k.Entries[0].Key] += k.Hits
		}
		if want := map[string]uint64{"list": 10, "k": 5, "none": 1}; len(top) != 3 || !cmp.Equal(got, want) {
			t.Errorf("escaped %v: %+v", escaped, top)
		}
	}
}

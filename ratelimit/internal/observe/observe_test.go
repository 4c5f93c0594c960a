package observe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

var testNow = time.Unix(1700000000, 123456000).UTC()

// testRules has a limit, one below a level, one that replaces it, a whitelist entry and a shared pattern.
func testRules(t testing.TB) *limits.Rules {
	t.Helper()
	rules, _, err := rulefile.Load(context.Background(), []rulefile.File{{Name: "shop.yaml", Text: []byte(`
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 10, name: per user}}
  - {key: path, value: /login, descriptors: [{key: remote_address, rate_limit: {unit: minute, requests_per_unit: 2}}]}
  - {key: vip, rate_limit: {unit: minute, requests_per_unit: 100, replaces: [{name: per user}]}}
  - {key: free, value: lunch}
  - {key: shared, value: "a*", share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: open, rate_limit: {unlimited: true}}
`)}}, limits.Options{Settings: limits.Settings{NearRatio: 0.8}})
	must.Succeed(t, err)
	return rules
}

// decision decides a request of the short form "user=ann,k=v|path=/x": rules are found, codes are OK.
func decision(t testing.TB, rules *limits.Rules, domain, descriptors string) *Decision {
	t.Helper()
	d := &Decision{At: testNow, Done: testNow, Request: &rls.Request{Domain: domain}, Response: &rls.Response{Overall: rls.OK},
		Set:    rules,
		Domain: rules.Domain(domain)}
	for text := range strings.SplitSeq(descriptors, "|") {
		var in rls.Descriptor
		for pair := range strings.SplitSeq(text, ",") {
			if key, value, ok := strings.Cut(pair, "="); ok {
				in.Entries = append(in.Entries, rls.Entry{Key: key, Value: value})
			}
		}
		var rule *limits.Rule
		status := rls.Status{Code: rls.OK}
		if d.Domain != nil {
			rule = d.Domain.Find(in.Entries)
		}
		if rule != nil && !rule.Unlimited {
			status = rls.Status{Code: rls.OK, HasLimit: true, PerUnit: rule.PerUnit, Unit: rule.Unit, Remaining: 7,
				Reset: 24}
		}
		d.Request.Descriptors = append(d.Request.Descriptors, in)
		d.Rules = append(d.Rules, rule)
		d.Response.Statuses = append(d.Response.Statuses, status)
	}
	return d
}

func (d *Decision) over(i int) *Decision {
	d.Response.Overall, d.Response.Statuses[i].Code, d.Response.Statuses[i].Remaining = rls.OverLimit, rls.OverLimit, 0
	return d
}

func newObserver(s Settings) *Observer {
	o := new(Observer)
	o.Keep(s)
	return o
}

// all is a filter that takes everything.
var all = Filter{Sample: 1, Rate: 10_000}

func listen(t testing.TB, o *Observer, f Filter) *Listener {
	t.Helper()
	l, err := o.Listen(f)
	must.Succeed(t, err)
	t.Cleanup(l.Close)
	return l
}

// lines takes what waits for a listener.
func lines(l *Listener) (out []string) {
	for {
		select {
		case line := <-l.Lines():
			l.Took(line)
			out = append(out, string(line))
		default:
			return out
		}
	}
}

func TestTap_lines(t *testing.T) {
	rules, o := testRules(t), newObserver(Settings{})
	l := listen(t, o, all)
	f := func(d *Decision, want string) {
		t.Helper()
		o.Watching().Note(d, nil)
		got := strings.Join(lines(l), "")
		if diff := cmp.Diff(want+"\n", got); diff != "" {
			t.Errorf("want (-), got (+):\n%s", diff)
		}
		var e Event
		if err := json.Unmarshal([]byte(got), &e); err != nil {
			t.Error(err)
		}
	}
	f(decision(t, rules, "shop", "user=ann").over(0),
		`{"at":"2023-11-14T22:13:20.123456Z","domain":"shop","code":"OVER_LIMIT","hits":1,"sample":1,`+
			`"descriptors":[{"entries":[{"key":"user","value":"ann"}],"code":"OVER_LIMIT","rule":"shop.user","file":"shop.yaml:4:6","limit":10,"remaining":0,"reset":24,"unit":"MINUTE","algorithm":"fixed_window","name":"per user"}]}`)
	f(decision(t, rules, "shop",
		"path=/login,remote_address=<1>|free=lunch|nothing=here|open=1|user=a,b=c|path=/login|"),
		`{"at":"2023-11-14T22:13:20.123456Z","domain":"shop","code":"OK","hits":1,"sample":1,"descriptors":[`+
			`{"entries":[{"key":"path","value":"/login"},{"key":"remote_address","value":"<1>"}],"code":"OK","rule":"shop.path_/login.remote_address","file":"shop.yaml:5:47","limit":2,"remaining":7,"reset":24,"unit":"MINUTE","algorithm":"fixed_window"},`+
			`{"entries":[{"key":"free","value":"lunch"}],"code":"OK","unmatched":"whitelisted"},`+
			`{"entries":[{"key":"nothing","value":"here"}],"code":"OK","unmatched":"no_match"},`+
			`{"entries":[{"key":"open","value":"1"}],"code":"OK","rule":"shop.open","file":"shop.yaml:9:6"},`+
			`{"entries":[{"key":"user","value":"a"},{"key":"b","value":"c"}],"code":"OK","unmatched":"too_deep"},`+
			`{"entries":[{"key":"path","value":"/login"}],"code":"OK","unmatched":"too_shallow"},`+
			`{"entries":[],"code":"OK","unmatched":"no_entries"}]}`)
	f(decision(t, rules, "sh\xffop", "user=ann"),
		`{"at":"2023-11-14T22:13:20.123456Z","domain":"sh\\xffop","code":"OK","hits":1,"sample":1,`+
			`"descriptors":[{"entries":[{"key":"user","value":"ann"}],"code":"OK","unmatched":"unknown_domain"}]}`)

	d := decision(t, rules, "shop", "user=ann|user=bob|vip=1")
	d.Rules[0], d.Response.Statuses[0] = nil, rls.Status{Code: rls.OK} // as the service drops a replaced rule
	d.Rules[1] = new(limits.Rule)
	rules.Override(d.Rules[1], rls.Override{PerUnit: 3, Unit: rls.Hour})
	d.Request.HitsAddend = 4
	d.Request.Descriptors[1].HasLimit, d.Request.Descriptors[1].Limit = true, rls.Override{PerUnit: 3, Unit: rls.Hour}
	d.Request.Descriptors[1].HasHits = true
	d.Request.Descriptors[2].HasHits, d.Request.Descriptors[2].Hits, d.Request.Descriptors[2].Negative = true, 2, true
	f(d, `{"at":"2023-11-14T22:13:20.123456Z","domain":"shop","code":"OK","hits":4,"sample":1,"descriptors":[`+
		`{"entries":[{"key":"user","value":"ann"}],"code":"OK","unmatched":"replaced"},`+
		`{"entries":[{"key":"user","value":"bob"}],"own_limit":{"requests_per_unit":3,"unit":"HOUR"},"hits":0,"code":"OK","limit":10,"remaining":7,"reset":24,"unit":"HOUR","algorithm":"fixed_window"},`+
		`{"entries":[{"key":"vip","value":"1"}],"hits":2,"refund":true,"code":"OK","rule":"shop.vip","file":"shop.yaml:6:6","limit":100,"remaining":7,"reset":24,"unit":"MINUTE","algorithm":"fixed_window"}]}`)

	long := strings.Repeat("x", maxText-1) + "ü" // its last rune does not fit whole
	o.Watching().Note(decision(t, rules, "shop", "user="+long), nil)
	if got := strings.Join(lines(l), ""); !strings.Contains(got, `"cut":true`) ||
		!strings.Contains(got, `"value":"`+strings.Repeat("x", maxText-1)+`"}`) {
		t.Errorf("a long text: %s", got)
	}
}

// TestTap_aliases: a request's bytes are used again as soon as it is answered.
func TestTap_aliases(t *testing.T) {
	rules, o := testRules(t), newObserver(Settings{RecentSize: 2, TopKeys: 2})
	l := listen(t, o, all)
	d := decision(t, rules, "shop", "user=ann|nothing=here").over(0)
	wire := []byte("ann")
	must.Succeed(t, d.Request.Unmarshal([]byte("\x0a\x04shop\x12\x0d\x0a\x0b\x0a\x04user\x12\x03ann")))
	message := []byte("\x0a\x04shop\x12\x0d\x0a\x0b\x0a\x04user\x12\x03" + string(wire))
	must.Succeed(t, d.Request.Unmarshal(message))
	d.Rules, d.Response.Statuses = d.Rules[:1], d.Response.Statuses[:1]
	o.Watching().Note(d, nil)
	for i := range message {
		message[i] = 'Z'
	}
	if got := strings.Join(lines(l), ""); !strings.Contains(got, `"domain":"shop"`) ||
		!strings.Contains(got, `{"key":"user","value":"ann"}`) {
		t.Errorf("the tap: %s", got)
	}
	if got := fmt.Sprint(o.Recent().Refused("shop")); !strings.Contains(got, "{user ann}") {
		t.Errorf("recent: %s", got)
	}
	if _, got := o.Top().Read(testNow.Add(time.Minute), "shop"); !strings.Contains(fmt.Sprint(got), "{user ann}") {
		t.Errorf("top: %v", got)
	}
}

func TestTap_filters(t *testing.T) {
	rules, o := testRules(t), newObserver(Settings{})
	decisions := []*Decision{
		decision(t, rules, "shop", "user=ann"),
		decision(t, rules, "shop", "user=bob").over(0),
		decision(t, rules, "shop", "free=lunch|path=/x,user=1"),
		decision(t, rules, "mall", "user=ann"),
	}
	f := func(change func(*Filter), want ...int) {
		t.Helper()
		filter := all
		change(&filter)
		l, err := o.Listen(filter)
		must.Succeed(t, err)
		defer l.Close()
		var got []int
		for i, d := range decisions {
			o.Watching().Note(d, nil)
			if len(lines(l)) > 0 {
				got = append(got, i)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v takes %v, want %v", filter, got, want)
		}
	}
	f(func(f *Filter) {}, 0, 1, 2, 3)
	f(func(f *Filter) { f.Domain = "shop" }, 0, 1, 2)
	f(func(f *Filter) { f.Key = "path" }, 2)
	f(func(f *Filter) { f.Key = "user" }, 0, 1, 2, 3)
	f(func(f *Filter) { f.Code = rls.OK }, 0, 2, 3)
	f(func(f *Filter) { f.Code = rls.OverLimit }, 1)
	f(func(f *Filter) { f.Unmatched = true }, 2, 3)
	f(func(f *Filter) { f.Unmatched, f.Domain = true, "shop" }, 2)

	l := listen(t, o, Filter{Sample: 0.25, Rate: 10_000})
	for range 4000 {
		o.Watching().Note(decisions[0], nil)
		if got := lines(l); len(got) > 0 {
			if !strings.Contains(got[0], `"sample":0.25`) {
				t.Fatal(got[0])
			}
			l.dropped.Add(1) // counts what came
		}
	}
	if n := l.Dropped(); n < 800 || n > 1200 { // 7 standard deviations
		t.Errorf("a sample of a quarter is %d of 4000", n)
	}
}

// TestTap_stalled: without a reader the queue has its bounds, and what does not fit is counted.
func TestTap_stalled(t *testing.T) {
	rules, o := testRules(t), newObserver(Settings{})
	l := listen(t, o, all)
	d := decision(t, rules, "shop", "user=ann")
	await.Together(8, func(int) {
		for range 1000 {
			o.Watching().Note(d, nil)
		}
	})
	if got := len(lines(l)); got != maxQueued {
		t.Errorf("%d events wait, want %d", got, maxQueued)
	}
	if got := l.Dropped(); got != 8000-maxQueued {
		t.Errorf("%d events are dropped, want %d", got, 8000-maxQueued)
	}
	if got := l.Dropped(); got != 0 {
		t.Errorf("they are reported twice: %d", got)
	}

	wide := decision(t, rules, "shop", strings.Repeat("user="+strings.Repeat("x", maxText)+"|", 32)+"user=ann")
	wide.At = wide.At.Add(time.Second)
	for range 1000 {
		o.Watching().Note(wide, nil)
	}
	if got := l.waits.Load(); got > maxWaits || got < maxWaits-maxEvent {
		t.Errorf("%d bytes wait, at most %d are allowed", got, maxWaits)
	}
	got := len(lines(l))
	if dropped := l.Dropped(); got == 0 || int(dropped) != 1000-got {
		t.Errorf("%d events wait and %d are dropped of 1000", got, dropped)
	}
	if got := l.waits.Load(); got != 0 {
		t.Errorf("%d bytes wait after all were taken", got)
	}

	over := decision(t, rules, "shop", strings.Repeat("user="+strings.Repeat("x", maxText)+"|", 80))
	escaped := decision(t, rules, "shop", strings.Repeat("user="+strings.Repeat("\x01", maxText)+"|", 40))
	o.Watching().Note(over, nil)
	o.Watching().Note(escaped, nil)
	if waiting, dropped := len(lines(l)), l.Dropped(); waiting != 0 || dropped != 2 {
		t.Errorf("events that are too long: %d wait, %d are dropped", waiting, dropped)
	}
}

func TestTap_rate(t *testing.T) {
	rules, o := testRules(t), newObserver(Settings{})
	l := listen(t, o, Filter{Sample: 1, Rate: 3})
	d := decision(t, rules, "shop", "user=ann")
	f := func(second int, want int, dropped uint64) {
		t.Helper()
		d.At = testNow.Add(time.Duration(second) * time.Second)
		for range 5 {
			o.Watching().Note(d, nil)
		}
		if got := len(lines(l)); got != want {
			t.Errorf("second %d: %d events, want %d", second, got, want)
		}
		if got := l.Dropped(); got != dropped {
			t.Errorf("second %d: %d dropped, want %d", second, got, dropped)
		}
	}
	f(0, 3, 2)
	f(1, 3, 2)
	f(0, 0, 5) // a request of the second before, a little late
	f(1, 0, 5)
	f(7, 3, 2)
	f(3, 0, 5)   // as late as a slow store makes them
	f(-20, 3, 2) // the clock went back
}

func TestListeners(t *testing.T) {
	o := newObserver(Settings{})
	if o.Watching() != nil {
		t.Error("somebody watches from the start")
	}
	var open []*Listener
	for range MaxListeners {
		open = append(open, listen(t, o, all))
	}
	if _, err := o.Listen(all); !errors.Is(err, ErrTooManyListeners) {
		t.Errorf("a fifth listener: %v", err)
	}
	open[2].Close()
	open[2].Close()
	fifth := listen(t, o, all)
	o.Watching().Note(decision(t, testRules(t), "shop", "user=ann"), nil)
	if a, b := len(lines(open[2])), len(lines(fifth)); a != 0 || b != 1 {
		t.Errorf("the closed listener sees %d events, the new one %d", a, b)
	}
	for _, l := range append(open, fifth) {
		l.Close()
	}
	if o.Watching() != nil {
		t.Error("somebody watches when all are closed")
	}

	last := listen(t, o, all)
	o.Close()
	o.Close()
	select {
	case <-last.Ended():
	default:
		t.Error("the end of the daemon does not end a tap")
	}
	last.Close()
	if _, err := o.Listen(all); !errors.Is(err, ErrClosed) {
		t.Errorf("a listener after the end: %v", err)
	}
}

// TestListeners_race: listeners come and go while requests are decided.
func TestListeners_race(t *testing.T) {
	rules, o := testRules(t), newObserver(Settings{RecentSize: 10, TopKeys: 10})
	done := make(chan struct{})
	var requests sync.WaitGroup
	for i := range 4 {
		requests.Go(func() {
			d := decision(t, rules, "shop", fmt.Sprintf("user=u%d|nothing=here", i)).over(0)
			for {
				select {
				case <-done:
					return
				default:
					d.At = d.At.Add(time.Second)
					o.Watching().Note(d, nil)
				}
			}
		})
	}
	for range 200 {
		l, err := o.Listen(all)
		must.Succeed(t, err)
		<-l.Lines()
		l.Close()
		o.Recent().Refused("")
		o.Top().Read(testNow, "")
	}
	close(done)
	requests.Wait()
}

func TestRecent(t *testing.T) {
	rules, o := testRules(t), newObserver(Settings{RecentSize: 3})
	at := func(second int, d *Decision) *Decision {
		d.At = testNow.Add(time.Duration(second) * time.Second)
		return d
	}
	o.Watching().Note(at(0, decision(t, rules, "shop", "user=ann")), nil)
	if got := o.Recent().Refused(""); len(got.Descriptors) != 0 {
		t.Errorf("a request that passed is there: %+v", got)
	}
	for i, user := range []string{"ann", "bob", "cid", "dan"} {
		o.Watching().Note(at(i, decision(t, rules, "shop", "nothing=here|user="+user+"|free=lunch").over(1)), nil)
	}
	o.Watching().Note(at(9, decision(t, rules, "mall", "user=eve").over(0)), nil)
	ten, reset := uint32(10), int64(24)
	refused := func(second int, user string) RecentDescriptor {
		return RecentDescriptor{At: testNow.Add(time.Duration(second) * time.Second), Domain: "shop",
			Entries: []rls.Entry{{Key: "user", Value: user}}, Rule: "shop.user", File: "shop.yaml:4:6",
			Limit: &ten, Reset: &reset, Hits: 1,
			LimitView: limits.LimitView{Unit: "MINUTE", Algorithm: "fixed_window", Name: "per user"}}
	}
	eve := RecentDescriptor{At: testNow.Add(9 * time.Second), Domain: "mall", Hits: 1,
		Entries: []rls.Entry{{Key: "user", Value: "eve"}},
		Outcome: limits.UnknownDomain}
	want := RecentList{Descriptors: []RecentDescriptor{eve, refused(3, "dan"), refused(2, "cid")}}
	if d := cmp.Diff(want, o.Recent().Refused("")); d != "" {
		t.Errorf("want (-), got (+):\n%s", d)
	}
	want.Descriptors = want.Descriptors[1:]
	if d := cmp.Diff(want, o.Recent().Refused("shop")); d != "" {
		t.Errorf("of one domain, want (-), got (+):\n%s", d)
	}
	if got := o.Recent().Unmatched(""); len(got.Descriptors) != 3 || got.Descriptors[0].Outcome != limits.NoMatch {
		t.Errorf("unmatched: %+v", got)
	}
}

// A value beside entries that only exempt values, in a request that another rule decides, is kept and filtered as
// little as what is decided.
func TestRecent_exempt(t *testing.T) {
	rules, o := testRules(t), newObserver(Settings{RecentSize: 3})
	for request, want := range map[string]bool{"free=tea|user=ann": false, "free=tea": true, "free=tea|vip=": false,
		"free=tea|nothing=here": true} {
		d := decision(t, rules, "shop", request)
		before := len(o.Recent().Unmatched("").Descriptors)
		o.Watching().Note(d, nil)
		kept := len(o.Recent().Unmatched("").Descriptors) > before
		if taken := d.hasUnmatched(); kept != want || taken != want {
			t.Errorf("%s: kept %t, taken %t, want %t", request, kept, taken, want)
		}
		if got := d.outcome(0); got != limits.NoMatch {
			t.Errorf("%s: %q, want no_match", request, got)
		}
	}
}

// TestRecent_bounds: a flood costs no more than 100 copies a second, and a descriptor has its bounds.
func TestRecent_bounds(t *testing.T) {
	rules, o := testRules(t), newObserver(Settings{RecentSize: 1000})
	d := decision(t, rules, "shop", "user=ann|nothing=here").over(0)
	for range 2 {
		for range 150 {
			o.Watching().Note(d, nil)
		}
		d.At = d.At.Add(time.Second)
	}
	for _, got := range []RecentList{o.Recent().Refused(""), o.Recent().Unmatched("")} {
		if len(got.Descriptors) != 2*recentPerSecond || got.Skipped != 100 {
			t.Errorf("%d are kept and %d skipped, want 200 and 100", len(got.Descriptors), got.Skipped)
		}
	}
	d = decision(t, rules, "shop", strings.Repeat("user="+strings.Repeat("x", 300)+",", 64)+"a=b")
	d.At = testNow.Add(time.Hour)
	o.Watching().Note(d, nil)
	got := o.Recent().Unmatched("").Descriptors[0]
	size := 0
	for _, e := range got.Entries {
		size += len(e.Key) + len(e.Value)
	}
	if !got.Cut || size > maxRecentText+2*maxText {
		t.Errorf("a large descriptor takes %d bytes, cut: %v", size, got.Cut)
	}
}

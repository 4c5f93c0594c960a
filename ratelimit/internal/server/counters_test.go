package server

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/memcached"
	"gatehouse/ratelimit/internal/overlimit"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/shared/localserver"
	"gatehouse/shared/logtest"
	"gatehouse/shared/testdb"
)

// authorized sends a request with the token.
func (r *rig) authorized(t testing.TB, method, path string) (int, string) {
	t.Helper()
	resp, body := r.postWith(t, method, path, "", http.Header{"Authorization": {"Bearer " + testToken}})
	return resp.StatusCode, body
}

func TestCounters(t *testing.T) {
	t.Parallel()
	var log logtest.Buffer
	o := withToken
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	r := newDebugRig(t, o, service.Options{OverLimit: overlimit.New(1 << 20)})
	f := func(method, query string, status int, want string) {
		t.Helper()
		got, body := r.authorized(t, method, "/counters?"+query)
		if got != status || !strings.HasPrefix(body, want) {
			t.Errorf("%s %s: %d %s, want %d %s", method, query, got, body, status, want)
		}
	}
	k := func(used, remaining int) string {
		return fmt.Sprintf(`{"domain":"d","limits":[{"rule":"d.k","file":"shop.yaml:2:16","key":"d_k_a b_1699999980",`+
			`"unit":"MINUTE","algorithm":"fixed_window","limit":2,"used":%d,"remaining":%d,"reset":40}]`, used, remaining)
	}
	f("GET", "domain=d&descriptor=k%3Da+b", 200, k(0, 2)+"}\n")
	for range 3 {
		r.ask(t, req("d", "(k,a b)"))
	}
	f("GET", "domain=d&descriptor=k%3Da+b", 200, k(3, 0)+"}\n")
	f("HEAD", "domain=d&descriptor=k%3Da+b", 200, "")
	if log.String() != "" {
		t.Errorf("reading is logged: %s", log.String())
	}
	f("DELETE", "domain=d&descriptor=k%3Da+b", 200,
		k(3, 0)+`,"deleted":1,"note":"other instances may refuse from their over-limit cache until the reset"}`+"\n")
	want := `time=T level=WARN msg="counters reset" by=127.0.0.1:PORT domain=d descriptor="k=a b" rule=d.k used=3` +
		"\n"
	if got := regexp.MustCompile(`:\d+ `).ReplaceAllString(
		regexp.MustCompile(`time=\S+`).ReplaceAllString(log.String(), "time=T"), ":PORT "); got != want {
		t.Errorf("the log is %swant %s", got, want)
	}
	f("GET", "domain=d&descriptor=k%3Da+b", 200, k(0, 2)+"}\n")
	if got := r.ask(t, req("d", "(k,a b)")); got.OverallCode != pb.RateLimitResponse_OK {
		t.Errorf("after the reset: %v", got)
	}
	f("GET", "domain=d&descriptor_json="+url.QueryEscape(`{"entries":[{"key":"k","value":"a,b=c"}]}`), 200,
		`{"domain":"d","limits":[{"rule":"d.k","file":"shop.yaml:2:16","key":"d_k_a,b=c_1699999980"`)
	own := `{"domain":"e","limits":[{"key":"e_k_v_1699999200","unit":"HOUR","algorithm":"fixed_window","limit":10,"used":0,"remaining":10,"reset":2800}]}`
	f("GET", "domain=e&descriptor=k%3Dv&limit=10/hour", 200, own)
	f("GET", "domain=e&descriptor_json="+
		url.QueryEscape(`{"entries":[{"key":"k","value":"v"}],"limit":{"requestsPerUnit":10,"unit":"HOUR"}}`),
		200, own)

	f("GET", "domain=d&descriptor=j%3Dv", 404,
		`{"code":"NOT_FOUND","message":"no counter decides this descriptor: entry 1, (\"j\", \"v\"):`)
	f("DELETE", "domain=d&descriptor=free%3Dlunch", 404, `{"code":"NOT_FOUND"`)
	for query, want := range map[string]string{
		"descriptor=k%3Dv":           "domain is missing",
		"domain=d":                   "one of descriptor=k=v,k2=v2 and descriptor_json",
		"domain=d&descriptor=k":      `descriptor: \"k\" is no key=value pair`,
		"domain=d&descriptor_json=x": `descriptor: \"x\" is no descriptor`,
		"domain=d&descriptor=k%3Dv&descriptor_json=%7B%7D": "one of descriptor",
		"domain=d&descriptor=k%3Dv&limit=10/fortnight":     `limit: \"10/fortnight\" is no limit, such as 10/minute`,
		"domain=d&descriptor=k%3Dv&limit=-1/second":        `limit: \"-1/second\" is no limit`,
		"domain=d&descriptor=k%3Dv&pattern=*":              `there is no parameter \"pattern\"`,
		"domain=d&descriptor_json=" + url.QueryEscape(`{"limit":{"requestsPerUnit":1,"unit":"DAY"}}`) +
			"&limit=1/day": "limit stands twice",
		"domain=d&descriptor_json=" + url.QueryEscape(`{"limit":{"requestsPerUnit":1}}`): "limit: its unit is unknown",
	} {
		f("DELETE", query, 400, `{"code":"INVALID_ARGUMENT","message":"`+want)
	}

	none := log.String() // a reset of nothing is said, and leaves no line
	f("DELETE", "domain=d&descriptor=k%3Dnobody", 200,
		`{"domain":"d","limits":[{"rule":"d.k","file":"shop.yaml:2:16","key":"d_k_nobody_1699999980",`+
			`"unit":"MINUTE","algorithm":"fixed_window","limit":2,"used":0,"remaining":2,"reset":40}],"deleted":0,`+
			`"note":"other instances may refuse from their over-limit cache until the reset"}`+"\n")
	if got := log.String(); got != none {
		t.Errorf("a reset of nothing is logged: %s", strings.TrimPrefix(got, none))
	}
	long := strings.Repeat("x", 300)
	r.ask(t, req("d", "(k,"+long+")"))
	f("DELETE", "domain=d&descriptor=k%3D"+long, 200, "")
	if got := log.String(); !strings.Contains(got, `descriptor="k=`+long[:maxLogged-2]+`…" rule`) {
		t.Errorf("a long text in the log: %s", got)
	}
}

// TestCounters_stores: a reset reaches each kind of store.
func TestCounters_stores(t *testing.T) {
	t.Parallel()
	for _, b := range append(backends, backend{"memcached", openMemcached}) {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			store, _ := b.open(t)
			r := newDebugRig(t, withToken, service.Options{Store: store, Clock: time.Now})
			used := func(method string) (values []int64) {
				t.Helper()
				status, body := r.authorized(t, method, "/counters?domain=d&descriptor=meters%3Dv")
				if b.name == "memcached" {
					status, body = r.authorized(t, method, "/counters?domain=d&descriptor=pair%3Dv")
				}
				var report service.CounterReport
				if err := json.Unmarshal([]byte(body), &report); err != nil || status != 200 {
					t.Fatal(status, body)
				}
				for _, l := range report.Limits {
					values = append(values, l.Used)
				}
				if d := report.Deleted; (d == nil) != (method == "GET") || d != nil && *d != len(values) {
					t.Errorf("%s: %v", method, body)
				}
				return values
			}
			descriptor, want := "(meters,v)", []int64{3, 3, 3, 3}
			if b.name == "memcached" {
				descriptor, want = "(pair,v)", []int64{3, 3}
			}
			for round := range 2 {
				for range 3 {
					r.ask(t, req("d", descriptor))
				}
				if got := used("GET"); !cmp.Equal(got, want) {
					t.Errorf("round %d: used are %v, want %v", round, got, want)
				}
				if got := used("DELETE"); !cmp.Equal(got, want) {
					t.Errorf("round %d: before the reset %v, want %v", round, got, want)
				}
				if got := used("GET"); !cmp.Equal(got, make([]int64, len(want))) {
					t.Errorf("round %d: after the reset %v", round, got)
				}
			}
		})
	}
}

func openMemcached(t testing.TB) (counter.Store, func(testing.TB, []string) map[string]int64) {
	var o memcached.Options
	o.Settings.Nodes = []string{testdb.Memcached(t, localserver.MemcachedOptions{}).Addr()}
	o.Settings.Timeout = 5 * time.Second
	m, err := memcached.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m, nil
}

// TestCounters_fails: a store without an answer is 503, and the log has a line of each reset that was tried.
func TestCounters_fails(t *testing.T) {
	t.Parallel()
	store := newFaulty()
	var log logtest.Buffer
	o := withToken
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	r := newDebugRig(t, o, service.Options{Store: store})
	for err, want := range map[error]string{counter.ErrUnavailable: "UNAVAILABLE",
		counter.ErrTimeout: "DEADLINE_EXCEEDED"} {
		store.do = func(context.Context) error { return err }
		for _, method := range []string{"GET", "DELETE"} {
			if status, body := r.authorized(t, method, "/counters?domain=d&descriptor=k%3Dv"); status != 503 ||
				!strings.Contains(body, want) {
				t.Errorf("%s: %d %s", method, status, body)
			}
		}
	}
	const failed = `msg="counters reset failed" by=127.0.0.1:`
	if got := log.String(); strings.Count(got, "\n") != 2 || strings.Count(got, failed) != 2 ||
		!strings.Contains(got, ` domain=d descriptor="k=v" error="rate limit store did not answer in time"`+"\n") {
		t.Errorf("the log is %s", got)
	}

	// The counter is read in time, and then not deleted, as far as is known.
	store = newFaulty()
	store.reset = func() error { return counter.ErrTimeout }
	r = newDebugRig(t, o, service.Options{Store: store})
	r.ask(t, req("d", "(k,v)"))
	if status, body := r.authorized(t, "DELETE", "/counters?domain=d&descriptor=k%3Dv"); status != 503 {
		t.Errorf("%d %s", status, body)
	}
	if got := log.String(); !strings.Contains(got, failed) || !strings.HasSuffix(got,
		` domain=d descriptor="k=v" rule=d.k used=1 error="rate limit store did not answer in time"`+"\n") {
		t.Errorf("the log is %s", got)
	}
}

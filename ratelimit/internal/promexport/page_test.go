package promexport

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

var quiet = slog.New(slog.DiscardHandler)

// rig is a page over a registry without a flusher.
func rig(t testing.TB, mapping string, extra map[string]string) (*stats.Registry, *Page) {
	t.Helper()
	r := stats.NewRegistry(stats.Options{Settings: stats.Settings{ExtraTags: extra}, Log: quiet})
	o := Options{Stats: r, Log: quiet}
	if mapping != "" {
		m, err := parseMapping(mapping)
		must.Succeed(t, err)
		o.Mapping = m
	}
	return r, New(o)
}

// scrape is the page without Go's and the process's metrics and without comments.
func scrape(t testing.TB, p *Page) string {
	t.Helper()
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body := w.Body.String()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	if _, err := parser.TextToMetricFamilies(strings.NewReader(body)); err != nil {
		t.Fatalf("%v in:\n%s", err, body)
	}
	var kept strings.Builder
	for line := range strings.Lines(body) {
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "go_") && !strings.HasPrefix(line, "process_") &&
			!strings.HasPrefix(line, "ratelimit_stats_") && !strings.HasPrefix(line, "reserved_tag") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

func compare(t *testing.T, want, got string) {
	t.Helper()
	if d := cmp.Diff(strings.TrimSpace(want), strings.TrimSpace(got)); d != "" {
		t.Error(d)
	}
}

// TestRules: labels, adding up, what is hidden until it is hit, and odd keys.
func TestRules(t *testing.T) {
	r, p := rig(t, "", map[string]string{"az": "b", "9-x": "1.2"})
	r.Rule("d.never").TotalHits.Add(0)
	r.Rule("d.k").TotalHits.Add(1)
	r.Rule("d.k.j").TotalHits.Add(2)
	r.Rule("d.k.j.deep").TotalHits.Add(4)
	r.Rule("d.k.j.deep.er").OverLimit.Add(8)
	r.Rule("d.k.jj").TotalHits.Add(16)
	r.Rule("d.k.").TotalHits.Add(32)     // key2 is empty: the labels of d.k
	r.Rule("d..x").ShadowMode.Add(64)    // key1 is
	r.Rule(`d.q_"\é`).TotalHits.Add(128) // is escaped
	r.DynamicRule([]byte("_overflow_not")).TotalHits.Add(0)
	compare(t, `
ratelimit_service_rate_limit_total_hits{domain="d",key1="",key2="x",_9_x="1_2",az="b"} 0
ratelimit_service_rate_limit_total_hits{domain="d",key1="k",_9_x="1_2",az="b"} 33
ratelimit_service_rate_limit_total_hits{domain="d",key1="k",key2="j",_9_x="1_2",az="b"} 6
ratelimit_service_rate_limit_total_hits{domain="d",key1="k",key2="jj",_9_x="1_2",az="b"} 16
ratelimit_service_rate_limit_total_hits{domain="d",key1="q_\"\\é",_9_x="1_2",az="b"} 128
`, linesOf(scrape(t, p), "_total_hits"))
	compare(t, `ratelimit_service_rate_limit_over_limit{domain="d",key1="k",key2="j",_9_x="1_2",az="b"} 8`,
		linesOf(scrape(t, p), `over_limit{domain="d",key1="k",key2="j",`))
	compare(t, `ratelimit_service_rate_limit_shadow_mode{domain="d",key1="",key2="x",_9_x="1_2",az="b"} 64`,
		linesOf(scrape(t, p), "shadow_mode"))
}

// TestLimits: the limits of lists have the labels of their rules and one of their own, and what is forgotten stays in
// the sum.
func TestLimits(t *testing.T) {
	r, p := rig(t, "", map[string]string{"az": "b"})
	r.Limit("d.k", "5_per_hour").OverLimit.Add(1)
	r.Limit("d.k", "x").NearLimit.Add(2)
	r.Limit("d.k.j.deep", "x").OverLimit.Add(4)
	r.DynamicLimit(stats.AppendLabel([]byte("d.k.j.other:\x00"), "x")).ShadowMode.Add(8)
	r.Limit("d", "never")
	want := `
ratelimit_service_limit_near_limit{az="b",domain="d",key1="k",key2="j",limit="x"} 0
ratelimit_service_limit_near_limit{az="b",domain="d",key1="k",limit="5_per_hour"} 0
ratelimit_service_limit_near_limit{az="b",domain="d",key1="k",limit="x"} 2
ratelimit_service_limit_over_limit{az="b",domain="d",key1="k",key2="j",limit="x"} 4
ratelimit_service_limit_over_limit{az="b",domain="d",key1="k",limit="5_per_hour"} 1
ratelimit_service_limit_over_limit{az="b",domain="d",key1="k",limit="x"} 0
ratelimit_service_limit_shadow_mode{az="b",domain="d",key1="k",key2="j",limit="x"} 8
`
	compare(t, want, linesOf(scrape(t, p), "_service_limit_"))
	if got := linesOf(scrape(t, p), `rate_limit_total_hits{`); got != "" {
		t.Errorf("limits of lists are shown as rules: %s", got)
	}
}

// TestMapped_limits: a mapping file sees them under their own names.
func TestMapped_limits(t *testing.T) {
	r, p := rig(t,
		"mappings: [{match: ratelimit.service.limit.*.*.*.over_limit, name: over, labels: {rule: $2, limit: $3}}]", nil)
	r.Limit("d.k", "x").OverLimit.Add(3)
	r.Limit("d.k", "x").NearLimit.Add(2)
	compare(t, "over{limit=\"x\",rule=\"k\"} 3\nratelimit_service_limit_d_k_x_near_limit 2", scrape(t, p))
}

func linesOf(text, part string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// TestNamed: the other rows, tags as labels, and names that collide.
func TestNamed(t *testing.T) {
	r, p := rig(t, "", map[string]string{"az": "b"})
	r.Counter("ratelimit.service.call.should_rate_limit.redis_error").Add(1)
	r.Counter("ratelimit.service.call.should_rate_limit.a.b").Add(2)
	r.Counter("ratelimit_server.ShouldRateLimit.total_requests").Add(3)
	r.Counter("ratelimit.memcache.add", stats.Tag{Name: "code", Value: "error"}).Add(4)
	r.Counter("ratelimit.memcache.add", stats.Tag{Name: "code", Value: "success"}).Add(5)
	r.Counter("9.lives-left").Add(6)
	r.Counter("same.name").Add(7)
	r.Counter("same-name").Add(8)
	r.GaugeFunc("a.gauge", func() int64 { return -9 })
	r.GaugeFunc("go.goroutines", func() int64 { return 10 }) // is Go's own
	r.DomainNotFound("x.y z").Inc()
	r.NoMatch([]string{"my.shop"})["my.shop"].Inc()
	want := `
_9_lives_left{az="b"} 6
a_gauge{az="b"} -9
ratelimit_memcache_add{az="b",code="error"} 4
ratelimit_memcache_add{az="b",code="success"} 5
ratelimit_service_call_should_rate_limit_a_b{az="b"} 2
ratelimit_service_no_match{az="b",domain="my.shop"} 1
ratelimit_service_rate_limit_domain_not_found{az="b",domain="_overflow"} 0
ratelimit_service_rate_limit_domain_not_found{az="b",domain="x.y z"} 1
ratelimit_service_should_rate_limit_error{az="b",err_type="redis_error"} 1
ratelimit_service_total_requests{az="b",grpc_method="ShouldRateLimit"} 3
same_name{az="b"} 15
`
	compare(t, want, scrape(t, p))
	compare(t, want, scrape(t, p)) // reading changes nothing
	conflicts := 0.0
	r.Named(func(s stats.Series, _ stats.Kind, v float64) {
		if s.Name == "ratelimit.stats.scrape_conflicts" {
			conflicts = v
		}
	})
	if conflicts != 2 {
		t.Errorf("%v conflicts, want one for each scrape", conflicts)
	}
}

// TestBuildInfo: which program it is stands on each page, and tags of the same names stay off it.
func TestBuildInfo(t *testing.T) {
	r := stats.NewRegistry(stats.Options{Settings: stats.Settings{ExtraTags: map[string]string{"az": "b",
		"version": "blue"}}, Log: quiet})
	build := []stats.Tag{{Name: "version", Value: "1.2.3"}, {Name: "goversion", Value: "go1"}}
	mapping, err := parseMapping("mappings: [{match: a.*, name: x}]")
	must.Succeed(t, err)
	for _, m := range []*Mapping{nil, mapping} {
		p := New(Options{Stats: r, Mapping: m, Build: build, Log: quiet})
		want := "ratelimit_build_info{az=\"b\",goversion=\"go1\",version=\"1.2.3\"} 1\n"
		for range 2 {
			if got := linesOf(scrape(t, p), "build_info"); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			w := httptest.NewRecorder()
			p.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
			for _, theirs := range []string{`go_goroutines{az="b",version="blue"} `,
				fmt.Sprintf(`go_info{az="b",version=%q} 1`, runtime.Version())} {
				if !strings.Contains(w.Body.String(), "\n"+theirs) {
					t.Errorf("no %s on the page", theirs)
				}
			}
		}
	}
}

// run lets the registry work until the test ends, so that times are handed over.
func run(t *testing.T, r *stats.Registry) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx, nil, time.Hour) }()
	t.Cleanup(func() { cancel(); <-done })
}

// TestForgotten: when one of several rules that are shown as one series is forgotten, the series does not shrink,
// which its reader would take for a reset; when all are, it goes.
func TestForgotten(t *testing.T) {
	f := func(mapping, series string) {
		t.Helper()
		r := stats.NewRegistry(stats.Options{Settings: stats.Settings{DynamicIdle: time.Millisecond}, Log: quiet})
		o := Options{Stats: r, Log: quiet}
		if mapping != "" {
			var err error
			if o.Mapping, err = parseMapping(mapping); err != nil {
				t.Fatal(err)
			}
		}
		p := New(o)
		held := r.Rule("d.k.j")
		held.TotalHits.Add(1)
		r.DynamicRule([]byte("d.k.j.deep")).TotalHits.Add(10)
		r.DynamicRule([]byte("d.k.j.deeper")).TotalHits.Add(100)
		scrape(t, p)
		ctx, cancel := context.WithCancel(t.Context()) // rules are forgotten from now on, seen as they are
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx, nil, time.Millisecond) }()
		defer func() { cancel(); <-done }()
		left := func() (n int) {
			for _, s := range r.Rules() {
				if strings.HasPrefix(s.Key, "d.k.j.") {
					n++
				}
			}
			return n
		}
		await.True(t, "two rules are forgotten", func() bool { return left() == 0 })
		held.TotalHits.Add(1)
		if got := linesOf(scrape(t, p), series); got != series+" 112\n" {
			t.Errorf("after two of three: %q", got)
		}
		if got := linesOf(scrape(t, p), series); got != series+" 112\n" {
			t.Errorf("and again: %q", got)
		}
		r.Retain(nil)
		await.True(t, "the last rule is forgotten", func() bool { return len(r.Rules()) == 0 })
		if got := linesOf(scrape(t, p), series); got != "" {
			t.Errorf("after all: %q", got)
		}
		r.Rule("d.k.j").TotalHits.Add(5)
		if got := linesOf(scrape(t, p), series); got != series+" 5\n" {
			t.Errorf("anew: %q", got)
		}
	}
	f("", `ratelimit_service_rate_limit_total_hits{domain="d",key1="k",key2="j"}`)
	f(`mappings: [{match: '^ratelimit\.service\.rate_limit\.d\..*\.total_hits$', match_type: regex, name: hits}]`,
		"hits")
}

func TestServeHTTP(t *testing.T) {
	r, p := rig(t, "", nil)
	r.Rule("d.k").TotalHits.Add(1)
	web := httptest.NewServer(p)
	defer web.Close()
	f := func(method, encoding string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, web.URL, nil)
		must.Succeed(t, err)
		req.Header.Set("Accept-Encoding", encoding) // set by hand, it is not undone by the client
		resp, err := http.DefaultClient.Do(req)
		must.Succeed(t, err)
		defer resp.Body.Close()
		body := io.Reader(resp.Body)
		if resp.Header.Get("Content-Encoding") == "gzip" {
			if body, err = gzip.NewReader(body); err != nil {
				t.Fatal(err)
			}
		}
		b, err := io.ReadAll(body)
		must.Succeed(t, err)
		return resp, string(b)
	}
	const line = `ratelimit_service_rate_limit_total_hits{domain="d",key1="k"} 1`
	for _, encoding := range []string{"identity", "gzip", "gzip"} {
		resp, body := f("GET", encoding)
		if !strings.Contains(body, line) ||
			!strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain; version=0.0.4") ||
			(encoding == "gzip") != (resp.Header.Get("Content-Encoding") == "gzip") {
			t.Errorf("%s: %v", encoding, resp.Header)
		}
	}
	if _, body := f("HEAD", "identity"); body != "" {
		t.Error("HEAD has a body")
	}
	if resp, _ := f("POST", "identity"); resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", resp.StatusCode)
	}
}

// discard is a ResponseWriter that keeps nothing but the number of bytes and lines.
type discard struct {
	header http.Header
	lines  int
}

func (d *discard) Header() http.Header { return d.header }
func (d *discard) WriteHeader(int)     {}
func (d *discard) Write(b []byte) (int, error) {
	d.lines += bytes.Count(b, []byte("\n"))
	return len(b), nil
}

// stuck is a reader that takes nothing until it is let go.
type stuck struct {
	discard
	entered, release chan struct{}
	once             sync.Once
}

func (s *stuck) Write(b []byte) (int, error) {
	s.once.Do(func() { close(s.entered) })
	<-s.release
	return len(b), nil
}

// TestStuckReader: a reader that stops in the middle of a page blocks nothing else: known and new counters, times,
// the flusher.
func TestStuckReader(t *testing.T) {
	r, p := rig(t, "", nil)
	took := r.Timer("ratelimit_server.x.response_time")
	for i := range 1000 {
		r.Rule(fmt.Sprintf("d.k%d", i)).TotalHits.Inc()
	}
	run(t, r)
	w := &stuck{discard: discard{header: http.Header{}}, entered: make(chan struct{}), release: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() { p.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil)) })
	<-w.entered
	r.DynamicRule([]byte("d.new")).TotalHits.Inc()
	r.DomainNotFound("new").Inc()
	r.Rule("d.k1").TotalHits.Inc()
	took.Observe(time.Second)
	await.True(t, "the flusher hands over the time", func() bool {
		p.times.mu.Lock()
		defer p.times.mu.Unlock()
		h := p.times.all["ratelimit_server.x.response_time"]
		return h != nil && h.count == 1
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.ServeHTTP(&discard{header: http.Header{}},
		httptest.NewRequest("GET", "/metrics", nil).WithContext(ctx)) // frees its turn
	close(w.release)
	wg.Wait()
	if text := scrape(t, p); !strings.Contains(text, `total_hits{domain="d",key1="new"} 1`) {
		t.Error(text)
	}
}

func FuzzClean(f *testing.F) {
	for _, s := range []string{"", "a.b", "9", "é", "a\x00b", "--"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got := clean(s); !model.LegacyValidation.IsValidLabelName(got) {
			t.Errorf("%q became %q", s, got)
		}
	})
}

package pull

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/statsd_exporter/pkg/mapper"

	"gatehouse/ratelimit/internal/stats"
)

var quiet = slog.New(slog.DiscardHandler)

// rig is a page over a registry that nobody flushes.
func rig(t testing.TB, mapping string, extra map[string]string) (*stats.Registry, *Page) {
	t.Helper()
	r := stats.NewRegistry(stats.Options{ExtraTags: extra, Log: quiet})
	o := Options{Stats: r, Log: quiet}
	if mapping != "" {
		m, err := parseMapping(mapping)
		if err != nil {
			t.Fatal(err)
		}
		o.Mapping = m
	}
	return r, New(o)
}

// scrape is the page without Go's and the process's figures and without comments.
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
	compare(t, `ratelimit_service_rate_limit_shadow_mode{domain="d",key1="",key2="x",_9_x="1_2",az="b"} 64`, linesOf(scrape(t, p), "shadow_mode"))
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
	want := `
_9_lives_left{az="b"} 6
a_gauge{az="b"} -9
ratelimit_memcache_add{az="b",code="error"} 4
ratelimit_memcache_add{az="b",code="success"} 5
ratelimit_service_call_should_rate_limit_a_b{az="b"} 2
ratelimit_service_rate_limit__overflow_domain_not_found{az="b"} 0
ratelimit_service_rate_limit_x_y_z_domain_not_found{az="b"} 1
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

// run lets the registry work until the test ends, so that times are handed over.
func run(t *testing.T, r *stats.Registry) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx, nil, time.Hour) }()
	t.Cleanup(func() { cancel(); <-done })
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

func TestTimes(t *testing.T) {
	r, p := rig(t, "", nil)
	took, other := r.Timer("ratelimit_server.ShouldRateLimit.response_time"), r.Timer("other.time")
	for _, ms := range []time.Duration{0, 5, 6, 60_000} {
		took.Observe(ms * time.Millisecond)
	}
	for range 100 {
		other.Observe(2 * time.Millisecond)
	}
	run(t, r)
	eventually(t, "100 times", func() bool { return strings.Contains(scrape(t, p), "other_time_count 100") })
	compare(t, `
other_time{quantile="0.5"} 2
other_time{quantile="0.9"} 2
other_time{quantile="0.99"} 2
other_time_sum 200
other_time_count 100
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.005"} 2
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.01"} 3
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.025"} 3
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.05"} 3
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.1"} 3
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.25"} 3
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.5"} 3
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="1"} 3
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="2.5"} 3
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="5"} 3
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="10"} 3
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="+Inf"} 4
ratelimit_service_response_time_seconds_sum{grpc_method="ShouldRateLimit"} 60.011
ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"} 4
`, strings.Replace(scrape(t, p), "ratelimit_service_rate_limit__overflow_domain_not_found 0\n", "", 1))
}

// TestTimes_milliseconds: the switch is for the metric that the replaced service has; alerts on the store's
// go on meaning what they say.
func TestTimes_milliseconds(t *testing.T) {
	r := stats.NewRegistry(stats.Options{Log: quiet})
	p := New(Options{Stats: r, Milliseconds: true, Log: quiet})
	r.Timer("ratelimit_server.x.response_time").Observe(250 * time.Millisecond)
	r.Timer("ratelimit.store.response_time").Observe(250 * time.Millisecond)
	run(t, r)
	eventually(t, "both times", func() bool {
		page := scrape(t, p)
		return strings.Contains(page, `ratelimit_service_response_time_seconds_count{grpc_method="x"} 1`) &&
			strings.Contains(page, "ratelimit_store_response_time_seconds_count 1")
	})
	page := scrape(t, p)
	for _, want := range []string{`ratelimit_service_response_time_seconds_sum{grpc_method="x"} 250`, "ratelimit_store_response_time_seconds_sum 0.25"} {
		if !strings.Contains(page, want+"\n") {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
}

// TestTimes_sampled: at a rate that only samples of are kept, counts are those of all.
func TestTimes_sampled(t *testing.T) {
	r, p := rig(t, "", nil)
	took := r.Timer("ratelimit_server.x.response_time")
	for range 100_000 {
		took.Observe(time.Second)
	}
	run(t, r)
	eventually(t, "100,000 times", func() bool {
		return strings.Contains(scrape(t, p), `_count{grpc_method="x"} 100000`)
	})
	if text := scrape(t, p); !strings.Contains(text, `{grpc_method="x",le="1"} 100000`) || !strings.Contains(text, `{grpc_method="x",le="0.5"} 0`) {
		t.Error(text)
	}
}

const mappingFile = `
defaults:
  timer_type: histogram
  buckets: [1, 10]
mappings:
- match: ratelimit.service.rate_limit.*.*.total_hits
  name: hits
  help: All hits.
  labels:
    dom: $1
    rule: $2
- match: ^ratelimit\.service\.rate_limit\.([^.]+)\..*\.(over)_limit$
  match_type: regex
  name: $2
  labels: {dom: $1}
- match: dropped.*
  name: gone
  action: drop
- match: "*.seconds"
  match_metric_type: timer
  name: ${1}_seconds
  scale: 0.001
  timer_type: summary
  quantiles: [{quantile: 0.5, error: 0.05}]
- match: "*.scaled"
  match_metric_type: gauge
  name: scaled
  scale: 10
  honor_labels: true
  labels: {az: mine}
`

func TestMapped(t *testing.T) {
	r, p := rig(t, mappingFile, map[string]string{"az": "b"})
	r.Rule("d.k").TotalHits.Add(1)
	r.Rule("d.k").OverLimit.Add(1)
	r.Rule("d.k.j").OverLimit.Add(2)
	r.Rule("e.k.j").OverLimit.Add(4)
	r.Rule("e.k.j").TotalHits.Add(3) // three parts: no mapping
	r.Counter("dropped.x").Add(5)
	r.Counter("untouched")
	r.GaugeFunc("a.scaled", func() int64 { return 7 })
	r.Timer("a.time").Observe(5 * time.Millisecond)
	r.Timer("a.seconds").Observe(500 * time.Millisecond)
	run(t, r)
	eventually(t, "both times", func() bool {
		text := scrape(t, p)
		return strings.Contains(text, `a_time_count{az="b"} 1`) && strings.Contains(text, `a_seconds_count{az="b"} 1`)
	})
	want := `
hits{az="b",dom="d",rule="k"} 1
over{az="b",dom="d"} 3
over{az="b",dom="e"} 4
ratelimit_service_rate_limit_e_k_j_total_hits{az="b"} 3
scaled{az="b"} 70
a_seconds{az="b",quantile="0.5"} 0.5
a_seconds_sum{az="b"} 0.5
a_seconds_count{az="b"} 1
a_time_bucket{az="b",le="1"} 0
a_time_bucket{az="b",le="10"} 1
a_time_bucket{az="b",le="+Inf"} 1
a_time_sum{az="b"} 5
a_time_count{az="b"} 1
`
	compare(t, want, scrape(t, p))
	compare(t, want, scrape(t, p))
}

// TestMapped_ttl: a series that does not change goes.
func TestMapped_ttl(t *testing.T) {
	r, p := rig(t, "mappings: [{match: a.*, name: a_$1, ttl: 1ms}]", nil)
	r.Counter("a.x").Add(1)
	if got := scrape(t, p); got != "a_x 1\n" {
		t.Error(got)
	}
	eventually(t, "a_x is gone", func() bool { return scrape(t, p) == "" })
	r.Counter("a.x").Add(1)
	if got := scrape(t, p); got != "a_x 2\n" {
		t.Error(got)
	}
}

// TestMapped_forgets: what the registry forgot is not kept here either.
func TestMapped_forgets(t *testing.T) {
	r, p := rig(t, "mappings: []", nil)
	r.Counter("n").Inc()
	scrape(t, p)
	before := len(p.seen)
	p.seen["left over"] = &seen{round: p.round}
	scrape(t, p)
	if len(p.seen) != before {
		t.Errorf("%d names are kept, want %d", len(p.seen), before)
	}
}

// TestForgotten: when one of several rules that are shown as one series is forgotten, the series does not
// shrink, by which its reader would take it for one that began anew; when all are, it goes.
func TestForgotten(t *testing.T) {
	f := func(mapping, series string) {
		t.Helper()
		r := stats.NewRegistry(stats.Options{DynamicIdle: time.Millisecond, Log: quiet})
		o := Options{Stats: r, Log: quiet}
		if mapping != "" {
			var err error
			if o.Mapping, err = parseMapping(mapping); err != nil {
				t.Fatal(err)
			}
		}
		p := New(o)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx, nil, time.Millisecond) }()
		defer func() { cancel(); <-done }()

		held := r.Rule("d.k.j")
		held.TotalHits.Add(1)
		r.DynamicRule([]byte("d.k.j.deep")).TotalHits.Add(10)
		r.DynamicRule([]byte("d.k.j.deeper")).TotalHits.Add(100)
		scrape(t, p)
		left := func() (n int) {
			for _, s := range r.Rules() {
				if strings.HasPrefix(s.Key, "d.k.j.") {
					n++
				}
			}
			return n
		}
		eventually(t, "two rules are forgotten", func() bool { return left() == 0 })
		held.TotalHits.Add(1)
		if got := linesOf(scrape(t, p), series); got != series+" 112\n" {
			t.Errorf("after two of three: %q", got)
		}
		if got := linesOf(scrape(t, p), series); got != series+" 112\n" {
			t.Errorf("and again: %q", got)
		}
		r.Retain(nil)
		eventually(t, "the last rule is forgotten", func() bool { return len(r.Rules()) == 0 })
		if got := linesOf(scrape(t, p), series); got != "" {
			t.Errorf("after all: %q", got)
		}
		r.Rule("d.k.j").TotalHits.Add(5)
		if got := linesOf(scrape(t, p), series); got != series+" 5\n" {
			t.Errorf("anew: %q", got)
		}
	}
	f("", `ratelimit_service_rate_limit_total_hits{domain="d",key1="k",key2="j"}`)
	f(`mappings: [{match: '^ratelimit\.service\.rate_limit\.d\..*\.total_hits$', match_type: regex, name: hits}]`, "hits")
}

func TestLoadMapping_mistakes(t *testing.T) {
	f := func(text string, want string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "mapping.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := LoadMapping(file)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	const good = "mappings:\n- match: a.*\n  name: a\n"
	f(good+"- match: b.*\n  nam: b\n", "line 5: field nam not found")
	f(good+"- match: b.*\n  name: b\n  labels: {x: $1}\n", "line 4: mapping 2: invalid label key: x")
	f(good+"- match: b.*\n", "line 4: mapping 2: metric mapping didn't set a metric name")
	f(good+"- match_type: regex\n  match: (\n  name: b\n", "line 4: mapping 2: invalid regex (")
	f(good+"- timer_type: pie\n  match: b\n  name: b\n", "line 4: mapping 2: invalid observer type 'pie'")
	f(good+"- timer_type: histogram\n  match: b\n  nam: b\n", "line 4: mapping 2: field nam not found")
	f("defaults:\n  observer_type: pie\n"+good, "invalid observer type 'pie'")
	f(good+"- match: [\n", "line ")
	f("- a\n", "line 1")
	f(good+"- match: b\n  name: b\n  summary_options: {max_age: -1s}\n  observer_type: summary\n", "line 4: mapping 2: max_age must not be negative")
	if _, err := LoadMapping(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there is loaded")
	}
}

func TestLabelClash(t *testing.T) {
	f := func(tags map[string]string, want string) {
		t.Helper()
		if got := LabelClash(tags); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%v: %q, want %q", tags, got, want)
		}
	}
	f(map[string]string{"az": "b", "pod.name": "c"}, "")
	f(map[string]string{"domain": "b"}, "domain")
	f(map[string]string{"--x": "b"}, "Prometheus keeps")
	f(map[string]string{"a.b": "", "a-b": ""}, `"a-b" and "a.b"`)
}

func TestServeHTTP(t *testing.T) {
	r, p := rig(t, "", nil)
	r.Rule("d.k").TotalHits.Add(1)
	web := httptest.NewServer(p)
	defer web.Close()
	f := func(method, encoding string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, web.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept-Encoding", encoding) // set by hand, it is not undone by the client
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body := io.Reader(resp.Body)
		if resp.Header.Get("Content-Encoding") == "gzip" {
			if body, err = gzip.NewReader(body); err != nil {
				t.Fatal(err)
			}
		}
		b, err := io.ReadAll(body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(b)
	}
	const line = `ratelimit_service_rate_limit_total_hits{domain="d",key1="k"} 1`
	for _, encoding := range []string{"identity", "gzip", "gzip"} {
		resp, body := f("GET", encoding)
		if !strings.Contains(body, line) || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain; version=0.0.4") ||
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

// TestStuckReader: while somebody reads a page and does not go on, everything else does: known and new
// counters, times, the flusher.
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
	eventually(t, "the flusher hands over the time", func() bool {
		p.times.mu.Lock()
		defer p.times.mu.Unlock()
		h := p.times.all["ratelimit_server.x.response_time"]
		return h != nil && h.count == 1
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.ServeHTTP(&discard{header: http.Header{}}, httptest.NewRequest("GET", "/metrics", nil).WithContext(ctx)) // gives up its turn
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

// FuzzParseMapping: whatever a file holds, it is refused with a reason or maps every name to one that a page may
// hold.
func FuzzParseMapping(f *testing.F) {
	for _, s := range []string{
		mappingFile, "", "{}", "mappings: []", "- a", "mappings: [{match: '*', name: $1}]", "mappings: [{match: a.*.b, name: a, labels: {xx: $1, yy: ${9}}}]",
		"mappings: [{match: '(', match_type: regex, name: a}]", "defaults: {timer_type: histogram, buckets: [2, 1]}", "mappings: [{timer_type: pie}]", "mappings:\n- match: a\n  nam: b\n", "defaults: {ttl: -1s}",
	} {
		f.Add(s)
	}
	names := []string{"ratelimit.service.rate_limit.d.k.total_hits", "a.b", "", "a..b", "a.time"}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := parseMapping(text)
		if err != nil {
			if err.Error() == "" {
				t.Error("refused without a reason")
			}
			return
		}
		for _, name := range names {
			for _, kind := range []mapper.MetricType{mapper.MetricTypeCounter, mapper.MetricTypeGauge} {
				to := m.of(name, kind)
				if !model.LegacyValidation.IsValidMetricName(to.name) {
					t.Errorf("%q became %q", name, to.name)
				}
				for _, l := range to.tags(nil) {
					if !model.LegacyValidation.IsValidLabelName(l.Name) {
						t.Errorf("the label %q", l.Name)
					}
				}
			}
			if to, shown := m.timer(stats.Series{Name: name}); shown {
				h := &timer{timeMapping: to, counts: make([]float64, len(to.buckets)+1)}
				h.observe(1, 1)
				h.metric()
			}
		}
	})
}

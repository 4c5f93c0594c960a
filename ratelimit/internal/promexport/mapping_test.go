package promexport

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/statsd_exporter/pkg/mapper"

	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/await"
)

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
	await.True(t, "both times", func() bool {
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
	await.True(t, "a_x is gone", func() bool { return scrape(t, p) == "" })
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
	f(good+"- match: b\n  name: b\n  summary_options: {max_age: -1s}\n  observer_type: summary\n",
		"line 4: mapping 2: max_age must not be negative")
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

// FuzzParseMapping: whatever a file holds, it is refused with a reason or maps every name to one that a page may
// hold.
func FuzzParseMapping(f *testing.F) {
	for _, s := range []string{
		mappingFile, "", "{}", "mappings: []", "- a", "mappings: [{match: '*', name: $1}]",
		"mappings: [{match: a.*.b, name: a, labels: {xx: $1, yy: ${9}}}]",
		"mappings: [{match: '(', match_type: regex, name: a}]", "defaults: {timer_type: histogram, buckets: [2, 1]}",
		"mappings: [{timer_type: pie}]", "mappings:\n- match: a\n  nam: b\n", "defaults: {ttl: -1s}",
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

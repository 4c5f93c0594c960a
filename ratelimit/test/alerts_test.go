package test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"gatehouse/shared/alerttest"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// This file holds example/prometheus and example/grafana to what the daemon shows.

const alertsDir = "example/prometheus"

// TestAlerts_fire has Prometheus' own test tool show each alert firing and, where all is well, silent.
func TestAlerts_fire(t *testing.T) {
	t.Parallel()
	if n := len(alerttest.Read(t, alertsDir)); n < 6 {
		t.Errorf("%d alerts", n)
	}
	alerttest.Fire(t, alertsDir)
}

type panel struct {
	Title, Type string
	Targets     []struct{ Expr string }
	Panels      []panel
	GridPos     struct{ X, Y, W, H int } `json:"gridPos"`
}

// dashboardQueries are the expressions of the dashboard by panel.
func dashboardQueries(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("example/grafana/dashboard.json")
	must.Succeed(t, err)
	var d struct {
		Panels     []panel
		Templating struct {
			List []struct{ Name, Definition string }
		}
		Annotations struct{ List []struct{ Name, Expr string } }
	}
	must.Succeed(t, json.Unmarshal(text, &d))
	queries := map[string][]string{}
	for _, p := range d.Panels {
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q has no query", p.Title)
		}
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q is beyond the edge", p.Title)
		}
		for _, target := range p.Targets {
			queries[p.Title] = append(queries[p.Title], target.Expr)
		}
	}
	for _, v := range d.Templating.List {
		if v.Definition != "" {
			queries["variable "+v.Name] = []string{v.Definition}
		}
	}
	for _, a := range d.Annotations.List {
		queries["annotation "+a.Name] = []string{a.Expr}
	}
	return queries
}

var (
	matcher = regexp.MustCompile(`(\w+)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"`)
	metric  = regexp.MustCompile(`\b((?:ratelimit|runtime|go|process)_[a-zA-Z0-9_]+)\b(?:\{([^}]*)\})?`)
	nameRE  = regexp.MustCompile(`__name__=~"([^"]*)"`)
)

// TestDashboardAndAlerts_metrics: each metric and label that the dashboard and the alerts name is on the page of
// a daemon that has to do with it.
func TestDashboardAndAlerts_metrics(t *testing.T) {
	t.Parallel()
	there := scrapeOfEverything(t)
	check := func(where, expr string) {
		t.Helper()
		if m := nameRE.FindStringSubmatch(expr); m != nil {
			found := false
			for name := range there {
				found = found || regexp.MustCompile("^(?:"+m[1]+")$").MatchString(name)
			}
			if !found {
				t.Errorf("%s: no metric is like %s", where, m[1])
			}
			if expr = nameRE.ReplaceAllString(expr, ""); !metric.MatchString(expr) {
				return
			}
		}
		names := metric.FindAllStringSubmatch(expr, -1)
		if len(names) == 0 {
			t.Errorf("%s: no metric in %s", where, expr)
		}
		for _, m := range names {
			series := there[m[1]]
			if series == nil {
				base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(m[1], "")
				if series = there[base]; base == m[1] || series == nil {
					t.Errorf("%s: there is no metric %s", where, m[1])
					continue
				}
			}
			for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
				if l[1] != "job" && l[1] != "instance" && !hasLabel(series, l[1], l[2], l[3]) {
					t.Errorf("%s: no series of %s has %s", where, m[1], l[0])
				}
			}
		}
		for _, by := range regexp.MustCompile(`by \(([^)]*)\)`).FindAllStringSubmatch(expr, -1) {
			for label := range strings.SplitSeq(by[1], ",") {
				label = strings.TrimSpace(label)
				if label == "job" || label == "instance" || label == "le" ||
					strings.Contains(expr, `, "`+label+`", "$1",`) {
					continue
				}
				for _, m := range names {
					if !hasLabel(there[m[1]], label, "=~", ".*") && !strings.HasSuffix(m[1], "_bucket") {
						t.Errorf("%s: %s has no label %s", where, m[1], label)
					}
				}
			}
		}
	}
	n := 0
	for title, exprs := range dashboardQueries(t) {
		for _, e := range exprs {
			n++
			check("panel "+title, e)
		}
	}
	if n < 40 {
		t.Errorf("the dashboard has %d queries", n)
	}
	for _, a := range alerttest.Read(t, alertsDir) {
		check("alert "+a.Alert, a.Expr)
	}
}

func hasLabel(series map[string]*dto.Metric, label, op, want string) bool {
	for _, m := range series {
		for _, l := range m.GetLabel() {
			if l.GetName() != label {
				continue
			}
			switch {
			case strings.HasPrefix(want, "$"): // a variable of the dashboard
				return true
			case op == "=" && l.GetValue() == want:
				return true
			case op == "=~" && regexp.MustCompile("^(?:"+want+")$").MatchString(l.GetValue()):
				return true
			}
		}
	}
	return false
}

// scrapeOfEverything joins the pages of daemons that differ in what they have to show.
func scrapeOfEverything(t *testing.T) map[string]map[string]*dto.Metric {
	t.Helper()
	all := map[string]map[string]*dto.Metric{}
	for _, page := range pagesOfEverything(t) {
		for name, series := range parseSeries(t, page) {
			if all[name] == nil {
				all[name] = series
			}
		}
	}
	return all
}

// pagesOfEverything are the pages of daemons that differ in what they have to show.
func pagesOfEverything(t *testing.T) (pages []string) {
	t.Helper()
	add := func(p *process) {
		t.Helper()
		status, text := get(t, pageOf(t, p)+"/metrics")
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
		pages = append(pages, text)
	}
	rules := `[{key: k, @2/y, descriptors: [{key: j, @5/y}]}, {key: s, shadow_mode: true, @1/y}, {key: l, rate_limits: [{unit: year, requests_per_unit: 1, name: yearly}]}]`
	memory := start(t, rules, pulled("LOCAL_CACHE_SIZE_IN_BYTES", "1", "STATS_NO_MATCH", "true", "TRACING_ENABLED",
		"true", "OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"))
	c := memory.dial(t)
	askFor(t, c, "d", 4, "k=1")
	askFor(t, c, "d", 1, "k=1,j=1")
	askFor(t, c, "d", 2, "s=1")
	askFor(t, c, "d", 2, "l=1")
	askFor(t, c, "shpo", 1, "k=1")
	add(memory)
	redis := testdb.Redis(t).URL()
	add(start(t, rules, pulled("BACKEND_TYPE", "redis", "KVSTORE_URL", redis, "KVSTORE_PERSECOND", "true",
		"KVSTORE_PERSECOND_URL", redis)))
	_, nodes := memcached(t, 1)
	cached := onMemcache("MCACHE_HOST_PORT", nodes)
	maps.Copy(cached, pulled())
	add(start(t, rules, cached))
	tls := newLock(t).env()
	maps.Copy(tls, pulled())
	add(start(t, rules, tls))
	shown := newLock(t)
	cert, key := shown.path("tls.crt"), shown.path("tls.key")
	add(start(t, "", pulled("CONFIG_TYPE", "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL", "127.0.0.1:1",
		"FORCE_START_WITHOUT_INITIAL_CONFIG", "true",
		"CONFIG_GRPC_XDS_SERVER_USE_TLS", "true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", cert,
		"CONFIG_GRPC_XDS_CLIENT_TLS_KEY", key)))
	secured := onMemcache("MCACHE_HOST_PORT", "127.0.0.1:1", "MCACHE_TLS", "true", "MCACHE_TLS_CLIENT_CERT", cert,
		"MCACHE_TLS_CLIENT_KEY", key)
	maps.Copy(secured, pulled())
	add(start(t, rules, secured))
	return pages
}

// TestPullMetrics_help: each metric says what it is, in words of its own, and promtool finds no fault but with two
// traits of names that are the replaced service's: counters do not end in _total, and some hold capitals.
func TestPullMetrics_help(t *testing.T) {
	t.Parallel()
	named := map[string]string{}
	for _, page := range pagesOfEverything(t) {
		alerttest.Lint(t, page, `counter metrics should have "_total" suffix$`,
			`^ratelimit_store_clock_offset_ms metric names should not contain abbreviated units$`,
			`^ratelimit_(go|localcache)_\w+ metric names should be written in 'snake_case' not 'camelCase'$`)
		for _, m := range regexp.MustCompile(`(?m)^# HELP (\S+) (.*)$`).FindAllStringSubmatch(page, -1) {
			name, help := m[1], m[2]
			if other := named[help]; other != "" && other != name {
				t.Errorf("%s and %s are both %q", name, other, help)
			}
			named[help] = name
		}
		for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) `).FindAllStringSubmatch(page, -1) {
			if !regexp.MustCompile(`(?m)^# HELP ` + m[1] + ` \S.{10}`).MatchString(page) {
				t.Errorf("%s has no help", m[1])
			}
		}
	}
}

// TestMetric: what of an expression counts as a metric.
func TestMetric(t *testing.T) {
	got := fmt.Sprint(metric.FindAllString(`sum by (le) (rate(ratelimit_a_b{x="y"}[5m])) / go_c > time()`, -1))
	if want := `[ratelimit_a_b{x="y"} go_c]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

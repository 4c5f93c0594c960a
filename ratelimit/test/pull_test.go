package test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// askFor sends descriptors "k=v,k2=v2" of one request, as often as said.
func askFor(t *testing.T, c pb.RateLimitServiceClient, domain string, times int, descriptors ...string) {
	t.Helper()
	r := &pb.RateLimitRequest{Domain: domain}
	for _, d := range descriptors {
		first := request("", "").Descriptors[0]
		first.Entries = nil
		for pair := range strings.SplitSeq(d, ",") {
			k, v, _ := strings.Cut(pair, "=")
			first.Entries = append(first.Entries, request(k, v).Descriptors[0].Entries[0])
		}
		r.Descriptors = append(r.Descriptors, first)
	}
	for range times {
		c.ShouldRateLimit(t.Context(), r) // an error is an answer too
	}
}

// TestPullMetrics_defaultMapping holds a scrape against every row of docs/statistics.md#pull-metrics, carried out
// here as the table has it, on what the debug port shows.
func TestPullMetrics_defaultMapping(t *testing.T) {
	t.Parallel()
	p := start(t, `[
		{key: k, @5/y},
		{key: shadow, shadow_mode: true, @1/y},
		{key: a, descriptors: [{key: b, value: x, @2/y}]},
		{key: m, detailed_metric: true, @9/y},
		{key: a1, descriptors: [{key: a2, descriptors: [
			{key: a3, @3/y, descriptors: [{key: a4, @2/y}]},
			{key: other, @3/y}]}]}]`,
		pulled("LOCAL_CACHE_SIZE_IN_BYTES", "1"))
	c := p.dial(t)
	askFor(t, c, "d", 7, "k=1")                   // 4 within, then near, then over by store and cache
	askFor(t, c, "d", 3, "shadow=1")              // shadow_mode
	askFor(t, c, "d", 5, "a=1,b=x")               // two parts behind the domain; over by cache too
	askFor(t, c, "d", 4, "a1=1,a2=1,a3=1")        // three
	askFor(t, c, "d", 5, "a1=1,a2=1,a3=1,a4=1")   // four: the labels of three, and another rule with the same
	askFor(t, c, "d", 1, "a1=1,a2=1,other=1")     // the same
	askFor(t, c, "d", 2, "m=v.w")                 // a dot makes a part
	askFor(t, c, "d", 1, "m=1.2.3.4", "m=a\nb")   // an address and a control byte do not
	askFor(t, c, "no-such.domain", 2, "k=1")      // domain_not_found
	askFor(t, c, "", 1, "k=1")                    // service_error
	askFor(t, c, "d", 1, "nothing=1", "k=2,k2=3") // no rule

	_, text := get(t, p.debug+"/stats?format=json")
	var stats map[string]float64
	if err := json.Unmarshal([]byte(text), &stats); err != nil {
		t.Fatal(err)
	}
	// The histogram is up to two tenths of a second behind.
	awaitValue(t, p, "ratelimit_service_response_time_seconds", `grpc_method="ShouldRateLimit"`,
		stats["ratelimit_server.ShouldRateLimit.total_requests"])
	page := series(t, p)

	want := map[string]float64{}
	for name, n := range stats {
		if !strings.HasPrefix(name, "ratelimit.go.") { // move on their own
			metric, labels := bySpec(name)
			want[metric+"{"+labels+"}"] += n
		}
	}
	for id, n := range want {
		metric, labels, _ := strings.Cut(strings.TrimSuffix(id, "}"), "{")
		got := page[metric][labels]
		if got == nil && n == 0 && strings.HasPrefix(metric, "ratelimit_service_rate_limit_") {
			continue // a rule, or a statistic of it, that was never touched
		}
		if value(got) != n {
			t.Errorf("%s is %v, want %v", id, value(got), n)
		}
		delete(page[metric], labels)
	}
	for metric, rest := range page {
		for labels := range rest {
			if !strings.HasPrefix(metric, "go_") && !strings.HasPrefix(metric, "process_") &&
				!strings.HasPrefix(metric, "ratelimit_go_") &&
				!strings.HasSuffix(metric, "_response_time_seconds") && metric != "ratelimit_build_info" {
				t.Errorf("%s{%s} is not in the table", metric, labels)
			}
		}
	}
	h := page["ratelimit_service_response_time_seconds"][`grpc_method="ShouldRateLimit"`].GetHistogram()
	var bounds []float64
	for _, b := range h.GetBucket() {
		bounds = append(bounds, b.GetUpperBound())
	}
	if fmt.Sprint(
		bounds[:len(bounds)-1]) !=
		"[5e-05 0.0001 0.00025 0.0005 0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10]" ||
		h.GetSampleSum() <= 0 {
		t.Errorf("buckets %v, sum %v", bounds, h.GetSampleSum())
	}
	for _, metric := range []string{"go_goroutines", "process_open_fds", "go_build_info", "ratelimit_build_info",
		"ratelimit_go_numGoroutine"} {
		if len(page[metric]) == 0 {
			t.Errorf("no %s", metric)
		}
	}

	// How much the comparison above covers, in numbers.
	for id, n := range map[string]float64{
		`ratelimit_service_rate_limit_total_hits{domain="d" key1="k"}`:                  7,
		`ratelimit_service_rate_limit_over_limit{domain="d" key1="k"}`:                  2,
		`ratelimit_service_rate_limit_over_limit_with_local_cache{domain="d" key1="k"}`: 1,
		`ratelimit_service_rate_limit_within_limit{domain="d" key1="k"}`:                5,
		`ratelimit_service_rate_limit_shadow_mode{domain="d" key1="shadow"}`:            2,
		`ratelimit_service_rate_limit_over_limit{domain="d" key1="a" key2="b_x"}`:       3,
		// 5 in the replaced service
		`ratelimit_service_rate_limit_over_limit_with_local_cache{domain="d" key1="a" key2="b_x"}`: 2,
		`ratelimit_service_rate_limit_total_hits{domain="d" key1="a1" key2="a2"}`:                  10,
		`ratelimit_service_rate_limit_total_hits{domain="d" key1="m_v" key2="w"}`:                  2,
		`ratelimit_service_rate_limit_total_hits{domain="d" key1="m_1_2_3_4"}`:                     1,
		`ratelimit_service_rate_limit_total_hits{domain="d" key1="m_a_b"}`:                         1,
		`ratelimit_service_rate_limit_domain_not_found{domain="no-such.domain"}`:                   2,
		`ratelimit_service_should_rate_limit_error{err_type="service_error"}`:                      1,
		`ratelimit_service_should_rate_limit_error{err_type="redis_error"}`:                        0,
		`ratelimit_service_total_requests{grpc_method="ShouldRateLimit"}`:                          32,
		`ratelimit_service_config_load_success{}`:                                                  1,
		`ratelimit_service_config_load_error{}`:                                                    0,
		`ratelimit_service_global_shadow_mode{}`:                                                   0,
	} {
		if want[id] != n {
			t.Errorf("%s should be %v, is %v", id, n, want[id])
		}
	}
}

const fiveAndOne = `(near_limit|over_limit|total_hits|within_limit|shadow_mode|over_limit_with_local_cache)$`

var specRows = []struct {
	match, metric string
	labels        []string
}{
	{`^ratelimit\.service\.rate_limit\.([^.]+)\.([^.]+)\.` + fiveAndOne, "ratelimit_service_rate_limit_$3",
		[]string{"domain", "key1"}},
	{`^ratelimit\.service\.rate_limit\.([^.]+)\.([^.]+)\.([^.]+)(?:\..*)?\.` + fiveAndOne,
		"ratelimit_service_rate_limit_$4", []string{"domain", "key1", "key2"}},
	{`^ratelimit\.service\.rate_limit\.(_overflow)\.` + fiveAndOne, "ratelimit_service_rate_limit_$2",
		[]string{"domain"}},
	{`^ratelimit\.service\.rate_limit\.(.+)\.domain_not_found$`, "ratelimit_service_rate_limit_domain_not_found",
		[]string{"domain"}},
	{`^ratelimit\.service\.call\.should_rate_limit\.([^.]+)$`, "ratelimit_service_should_rate_limit_error",
		[]string{"err_type"}},
	{`^ratelimit_server\.([^.]+)\.total_requests$`, "ratelimit_service_total_requests", []string{"grpc_method"}},
	{`^ratelimit_server\.http2\.refused\.__reason=(.+)$`, "ratelimit_server_http2_refused",
		[]string{"reason"}}, // a tag
}

// bySpec is the table: the metric, and labels as series writes them.
func bySpec(name string) (metric, labels string) {
	for _, row := range specRows {
		re := regexp.MustCompile(row.match)
		if m := re.FindStringSubmatch(name); m != nil {
			var all []string
			for i, l := range row.labels {
				all = append(all, fmt.Sprintf("%s=%q", l, m[i+1]))
			}
			slices.Sort(all)
			return re.ReplaceAllString(name, row.metric), strings.Join(all, " ")
		}
	}
	return regexp.MustCompile(`[^a-zA-Z0-9_]`).ReplaceAllString(name, "_"), ""
}

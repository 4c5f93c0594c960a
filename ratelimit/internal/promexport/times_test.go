package promexport

import (
	"strings"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/await"
)

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
	await.True(t, "100 times", func() bool { return strings.Contains(scrape(t, p), "other_time_count 100") })
	compare(t, `
other_time{quantile="0.5"} 2
other_time{quantile="0.9"} 2
other_time{quantile="0.99"} 2
other_time_sum 200
other_time_count 100
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="5e-05"} 1
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.0001"} 1
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.00025"} 1
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.0005"} 1
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.001"} 1
ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.0025"} 1
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
`, strings.Replace(scrape(t, p), "ratelimit_service_rate_limit_domain_not_found{domain=\"_overflow\"} 0\n", "", 1))
}

// TestTimes_milliseconds: the switch is for the metric that the replaced service has; alerts on the store's
// go on meaning what they say.
func TestTimes_milliseconds(t *testing.T) {
	r := stats.NewRegistry(stats.Options{Log: quiet})
	p := New(Options{Stats: r, Settings: Settings{Milliseconds: true}, Log: quiet})
	r.Timer("ratelimit_server.x.response_time").Observe(250 * time.Millisecond)
	r.Timer("ratelimit.store.response_time").Observe(250 * time.Millisecond)
	run(t, r)
	await.True(t, "both times", func() bool {
		page := scrape(t, p)
		return strings.Contains(page, `ratelimit_service_response_time_seconds_count{grpc_method="x"} 1`) &&
			strings.Contains(page, "ratelimit_store_response_time_seconds_count 1")
	})
	page := scrape(t, p)
	for _, want := range []string{`ratelimit_service_response_time_seconds_sum{grpc_method="x"} 250`,
		"ratelimit_store_response_time_seconds_sum 0.25",
		`ratelimit_store_response_time_seconds_bucket{le="5e-05"} 0`} {
		if !strings.Contains(page, want+"\n") {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	if strings.Contains(page, `{grpc_method="x",le="0.0001"}`) {
		t.Errorf("buckets of seconds with milliseconds in them:\n%s", page)
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
	await.True(t, "100,000 times", func() bool {
		return strings.Contains(scrape(t, p), `_count{grpc_method="x"} 100000`)
	})
	if text := scrape(t, p); !strings.Contains(text, `{grpc_method="x",le="1"} 100000`) ||
		!strings.Contains(text, `{grpc_method="x",le="0.5"} 0`) {
		t.Error(text)
	}
}

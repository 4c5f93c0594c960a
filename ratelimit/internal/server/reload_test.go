package server

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/service"
)

// A thousand reloads under traffic, each with other limits: every answer belongs wholly to one set,
// none fails, and no caller sees an older set after a newer one.
func TestReloadsUnderTraffic(t *testing.T) {
	r := newRig(t, service.Options{Clock: time.Now}, limits.Options{})
	loader := service.NewLoader(r.service, limits.Options{Settings: limits.Settings{NearRatio: 0.8}}, discard,
		func(int) {})
	load := func(generation int) {
		yaml := fmt.Sprintf(`domain: d
descriptors:
- {key: a, rate_limit: {requests_per_unit: %d, unit: year}}
- {key: b, value: "x*", rate_limit: {requests_per_unit: %[1]d, unit: year}}
- {key: b, descriptors: [{key: c, rate_limit: {requests_per_unit: %[1]d, unit: year}}]}`, 1_000_000+generation)
		if err := loader.Load(
			context.Background(), []rulefile.File{{Name: "rules.yaml", Text: []byte(yaml)}}); err != nil {
			t.Error(err)
		}
	}
	load(0)
	var asked atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			last := uint32(0)
			in := req("d", fmt.Sprintf("(a,%d)|(b,x%[1]d)|(b,1)(c,%[1]d)", i))
			for ctx.Err() == nil {
				got, err := r.client.ShouldRateLimit(context.Background(), in)
				if err != nil {
					t.Error(err)
					return
				}
				asked.Add(1)
				generation := got.Statuses[0].CurrentLimit.GetRequestsPerUnit()
				for _, s := range got.Statuses {
					if s.CurrentLimit.GetRequestsPerUnit() != generation {
						t.Errorf("an answer of two sets: %v", got)
						return
					}
				}
				if generation < last {
					t.Errorf("set %d after set %d", generation, last)
				}
				last = generation
			}
		})
	}
	for generation := range 1000 {
		before := asked.Load()
		load(generation + 1)
		for asked.Load() == before && ctx.Err() == nil && !t.Failed() { // at least one answer from each set
			time.Sleep(50 * time.Microsecond)
		}
	}
	cancel()
	wg.Wait()
	if state := loader.State(); state.Generation != 1001 || state.Error != "" {
		t.Errorf("%+v", state)
	}
	t.Logf("%d answers during 1000 reloads", asked.Load())
}

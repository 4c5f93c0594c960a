package redis

import (
	"testing"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/countertest"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// Sliding windows and token buckets on every kind of store, by Add and as an AsyncStore.
func TestMeters(t *testing.T) {
	f := func(name string, open func(t *testing.T, clock func() int64) counter.Store) {
		t.Run(name, func(t *testing.T) { countertest.RunMeters(t, open) })
		t.Run(name+", started", func(t *testing.T) {
			var s *countertest.Async
			countertest.RunMeters(t, func(t *testing.T, clock func() int64) counter.Store {
				s = &countertest.Async{Store: open(t, clock)}
				return s
			})
			if s.Started.Load() == 0 {
				t.Error("no request was started")
			}
		})
	}
	f("single", func(t *testing.T, clock func() int64) counter.Store {
		return newTestStore(t, Options{Settings: Settings{URL: testdb.Redis(t).URL()}, Stall: -1, Clock: clock})
	})
	set := testdb.Sentinels(t)
	f("sentinel", func(t *testing.T, clock func() int64) counter.Store {
		must.Succeed(t, set.Flush(t.Context()))
		return openTest(t, Options{Settings: Settings{Type: Sentinel, URL: set.URL()}, Stall: -1, Clock: clock})
	})
	cluster := testdb.Cluster(t)
	f("cluster", func(t *testing.T, clock func() int64) counter.Store {
		must.Succeed(t, cluster.Flush(t.Context()))
		return openTest(t, Options{Settings: Settings{Type: InCluster, URL: cluster.URL()}, Stall: -1, Clock: clock})
	})
}

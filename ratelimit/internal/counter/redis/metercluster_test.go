package redis

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/shared/await"
	"gatehouse/shared/testdb"
)

// Slots change their master under load, there and back: no call fails, and of each counter exactly so many hits pass as
// its limit says.
func TestMeters_reshard(t *testing.T) {
	cluster := testdb.Cluster(t)
	s := openTest(t, Options{Settings: Settings{Type: InCluster, URL: cluster.URL()}, Stall: -1})
	const limitOf = 100
	var tags []string
	hot := map[int]bool{}
	for i := range 6 {
		tags = append(tags, tagIn(moving, slots/3-1, 200+i))
		hot[int(slotOf([]byte(tags[i])))] = true
	}
	stays := tagsOfNodes()[2]
	var mu sync.Mutex
	passed := map[string]int{}
	var calls atomic.Int64
	var done atomic.Bool
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := g; !done.Load(); i++ {
				stop := counter.StopWhen(i/len(tags)%2 == 0)
				key := tags[i%len(tags)] + fmt.Sprint("reshard", stop)
				hits := []counter.Hit{daily(sliding(key+"w", 1, limitOf)), daily(bucket(key+"b", 1, limitOf, limitOf)),
					daily(sliding(stays+key, 1, 1<<30))}
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				err := s.Add(ctx, &counter.Request{Hits: hits, Now: now(), Stop: stop})
				cancel()
				if calls.Add(1); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, h := range hits[:2] {
					if !h.Refused && !h.Spared {
						passed[string(h.Key)]++
					}
				}
				mu.Unlock()
			}
		})
	}
	defer wg.Wait()
	defer done.Store(true)
	there, back := newResharder(t, cluster, cluster.Nodes[0], cluster.Nodes[1]),
		newResharder(t, cluster, cluster.Nodes[1],
			cluster.Nodes[0])
	for range 2 {
		for _, r := range []resharder{there, back} {
			for slot := range hot {
				r.move(slot, func() { time.Sleep(10 * time.Millisecond) })
			}
		}
	}
	await.True(t, "all to be full", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, n := range passed {
			if n < limitOf {
				return false
			}
		}
		return len(passed) == 4*len(tags)
	})
	done.Store(true)
	wg.Wait()
	for _, key := range slices.Sorted(maps.Keys(passed)) {
		if n := passed[key]; n != limitOf {
			t.Errorf("%s: %d hits passed the limit of %d", key, n, limitOf)
		}
	}
	for _, n := range cluster.Nodes[:3] {
		immortal(t, redisClient(t, n.Addr(), 0))
	}
	t.Logf("%d calls", calls.Load())
}

package server

import (
	"maps"
	"testing"
	"time"

	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/redis/rueidis"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/memory"
	"gatehouse/ratelimit/internal/counter/redis"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// backend is one kind of store that every example runs on.
type backend struct {
	name string
	// open makes an empty store, and what reads every counter in it afterwards. Stores that cannot
	// list their keys look the wanted ones up and check that there are no others.
	open func(t testing.TB) (counter.Store, func(t testing.TB, wanted []string) map[string]int64)
}

var backends = []backend{{"memory", openMemory}, {"redis", openRedis}, {"sentinel", openSentinel},
	{"cluster", openCluster}}

func openMemory(testing.TB) (counter.Store, func(testing.TB, []string) map[string]int64) {
	m := memory.New(memory.Options{})
	return m, func(t testing.TB, wanted []string) map[string]int64 {
		t.Helper()
		got := map[string]int64{}
		for _, key := range wanted {
			h := counter.Hit{Key: []byte(key)}
			must.Succeed(t, m.Peek(t.Context(), &h))
			if h.After != 0 {
				got[key] = h.After
			}
		}
		if m.Len() != len(got) {
			t.Errorf("the store holds %d counters, %d of them expected", m.Len(), len(got))
		}
		return got
	}
}

func openRedis(t testing.TB) (counter.Store, func(testing.TB, []string) map[string]int64) {
	db := testdb.Redis(t)
	return openKV(t, redis.Options{Settings: redis.Settings{URL: db.URL()}}),
		func(t testing.TB, _ []string) map[string]int64 {
			return readKeys(t, rueidis.ClientOption{InitAddress: []string{db.Addr}, SelectDB: db.DB})
		}
}

func openSentinel(t testing.TB) (counter.Store, func(testing.TB, []string) map[string]int64) {
	set := testdb.Sentinels(t)
	master, err := set.Master(t.Context())
	must.Succeed(t, err)
	return openKV(t, redis.Options{Settings: redis.Settings{Type: redis.Sentinel, URL: set.URL()}}),
		func(t testing.TB, _ []string) map[string]int64 {
			return readKeys(t, rueidis.ClientOption{InitAddress: []string{master.Addr()}})
		}
}

func openCluster(t testing.TB) (counter.Store, func(testing.TB, []string) map[string]int64) {
	cluster := testdb.Cluster(t)
	return openKV(t, redis.Options{Settings: redis.Settings{Type: redis.InCluster, URL: cluster.URL()}}),
		func(t testing.TB, _ []string) map[string]int64 {
			all := map[string]int64{}
			for _, master := range cluster.Nodes[:3] {
				maps.Copy(all, readKeys(t, rueidis.ClientOption{InitAddress: []string{master.Addr()}}))
			}
			return all
		}
}

func openKV(t testing.TB, o redis.Options) counter.Store {
	o.Settings.Timeout, o.Stall = 5*time.Second, -1
	kv, err := redis.Open(t.Context(), o)
	must.Succeed(t, err)
	t.Cleanup(kv.Close)
	return kv
}

// readKeys is every counter on a server, each of which must have an expiry.
func readKeys(t testing.TB, o rueidis.ClientOption) map[string]int64 {
	t.Helper()
	o.DisableCache, o.ForceSingleClient = true, true
	client, err := rueidis.NewClient(o)
	must.Succeed(t, err)
	defer client.Close()
	keys, err := client.Do(t.Context(), client.B().Keys().Pattern("*").Build()).AsStrSlice()
	must.Succeed(t, err)
	got := map[string]int64{}
	for _, key := range keys {
		n, err := client.Do(t.Context(), client.B().Get().Key(key).Build()).AsInt64()
		must.Succeed(t, err)
		got[key] = n
		ttl, err := client.Do(t.Context(), client.B().Ttl().Key(key).Build()).AsInt64()
		if err != nil || ttl <= 0 {
			t.Errorf("key %s has a TTL of %d s, %v", key, ttl, err)
		}
	}
	return got
}

func ratelimitTypeUnit(n int32) typepb.RateLimitUnit { return typepb.RateLimitUnit(n) }

package server

import (
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/memcached"
	"gatehouse/ratelimit/internal/counter/memory"
	"gatehouse/ratelimit/internal/counter/redis"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// testClock is the time of a daemon and of its store, as a test sets it.
type testClock struct{ micros atomic.Int64 }

func (c *testClock) set(micros int64) { c.micros.Store(micros) }

// now is in µs since the Unix epoch.
func (c *testClock) now() int64 { return c.micros.Load() }

func (c *testClock) time() time.Time { return time.UnixMicro(c.now()) }

// timedBackend is a kind of store whose time a test sets.
type timedBackend struct {
	name string
	open func(t testing.TB, c *testClock) timedStore
}

// timedStore is an empty store, with direct access to the server behind it.
type timedStore struct {
	counter.Store
	clock *testClock
	nodes []rueidis.Client // none in process
	// another opens a further daemon's store on the same counters; nil where there can be none.
	another func(t testing.TB, c *testClock) counter.Store
	// begin is where a test's clock begins.
	begin     int64
	drops     bool // counters once they are empty
	fixedOnly bool
}

var timedBackends = []timedBackend{
	{"memory", func(_ testing.TB, c *testClock) timedStore {
		return timedStore{clock: c, begin: minuteStart * 1_000_000, drops: true,
			Store: memory.New(memory.Options{Clock: c.now})}
	}},
	{"redis", func(t testing.TB, c *testClock) timedStore {
		db := testdb.Redis(t)
		return openTimed(t, c, timedKV(redis.Options{Settings: redis.Settings{URL: db.URL()}}),
			rueidis.ClientOption{InitAddress: []string{db.Addr}, SelectDB: db.DB})
	}},
	{"cluster", func(t testing.TB, c *testClock) timedStore {
		cluster := testdb.Cluster(t)
		var nodes []rueidis.ClientOption
		for _, master := range cluster.Nodes[:3] {
			nodes = append(nodes, rueidis.ClientOption{InitAddress: []string{master.Addr()}})
		}
		return openTimed(t, c,
			timedKV(redis.Options{Settings: redis.Settings{Type: redis.InCluster, URL: cluster.URL()}}), nodes...)
	}},
	{perSecond, func(t testing.TB, c *testClock) timedStore {
		main, second := testdb.Redis(t), testdb.Redis(t)
		openMain := timedKV(redis.Options{Settings: redis.Settings{URL: main.URL()}})
		openSecond := timedKV(redis.Options{Settings: redis.Settings{URL: second.URL()}})
		return openTimed(t, c, func(t testing.TB, c *testClock) counter.Store {
			return counter.NewPerSecondRouter(openMain(t, c), openSecond(t, c))
		}, rueidis.ClientOption{InitAddress: []string{main.Addr}, SelectDB: main.DB},
			rueidis.ClientOption{InitAddress: []string{second.Addr}, SelectDB: second.DB})
	}},
}

// memcachedBackend counts fixed windows alone, and drops what has ended by the real clock: so the test's is ahead.
var memcachedBackend = timedBackend{"memcached", func(t testing.TB, c *testClock) timedStore {
	server := testdb.Memcached(t, localserver.MemcachedOptions{})
	store, err := memcached.New(t.Context(), memcached.Options{Settings: memcached.Settings{
		Nodes: []string{server.Addr()}, Timeout: 20 * time.Second}, Stall: -1})
	must.Succeed(t, err)
	t.Cleanup(store.Close)
	return timedStore{Store: store, clock: c, fixedOnly: true, begin: time.Now().Add(24 * time.Hour).UnixMicro()}
}}

// perSecond is the backend with a store of its own for limits of the unit second, as with KVSTORE_PERSECOND.
const perSecond = "per second"

// timedKV opens a store by the test's clock.
func timedKV(o redis.Options) func(t testing.TB, c *testClock) counter.Store {
	return func(t testing.TB, c *testClock) counter.Store {
		o := o
		o.Clock = c.now
		return openKV(t, o)
	}
}

func openTimed(t testing.TB, c *testClock, open func(testing.TB, *testClock) counter.Store,
	nodes ...rueidis.ClientOption) timedStore {
	t.Helper()
	s := timedStore{clock: c, begin: minuteStart * 1_000_000, Store: open(t, c), another: open}
	for _, n := range nodes {
		n.DisableCache, n.ForceSingleClient = true, true
		client, err := rueidis.NewClient(n)
		must.Succeed(t, err)
		t.Cleanup(client.Close)
		s.nodes = append(s.nodes, client)
	}
	return s
}

// empty drops all counters.
func (s *timedStore) empty(t testing.TB) {
	t.Helper()
	if s.fixedOnly {
		s.begin += (72 * time.Hour).Microseconds() // no counter is met again
	} else if s.nodes == nil {
		s.Store = memory.New(memory.Options{Clock: s.clock.now})
	}
	for _, node := range s.nodes {
		must.Succeed(t, node.Do(t.Context(), node.B().Flushdb().Build()).Error())
	}
}

// forgetScripts has the servers forget what they were sent, as after a restart or a failover.
func (s *timedStore) forgetScripts(t testing.TB) {
	t.Helper()
	for _, node := range s.nodes {
		must.Succeed(t, node.Do(t.Context(), node.B().ScriptFlush().Build()).Error())
	}
}

// keep takes the expiry off all keys, each of which must have one: the test's time is not the server's.
func (s *timedStore) keep(t testing.TB) (keys map[string]string) {
	t.Helper()
	keys = map[string]string{}
	for _, node := range s.nodes {
		names, err := node.Do(t.Context(), node.B().Keys().Pattern("*").Build()).AsStrSlice()
		must.Succeed(t, err)
		for _, key := range names {
			must.Succeed(t, node.Do(t.Context(), node.B().Persist().Key(key).Build()).Error())
			value, err := node.Do(t.Context(), node.B().Get().Key(key).Build()).ToString()
			must.Succeed(t, err)
			keys[key] = value
		}
	}
	return keys
}

// raw is what Redis holds for a sliding window or a token bucket.
func raw(h *counter.Hit) string {
	text := strconv.FormatInt(h.State.At, 10) + " "
	if h.Algorithm == counter.TokenBucket {
		return text + strconv.FormatUint(uint64(h.State.Rest), 10)
	}
	return text + strconv.FormatUint(uint64(h.State.Current), 10) + " " +
		strconv.FormatUint(uint64(h.State.Previous), 10)
}

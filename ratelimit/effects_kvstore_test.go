package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gatehouse/shared/localserver"
	"gatehouse/shared/testdb"
)

// on is the environment for a store of some type. A machine busy with other tests is not a dead store.
func on(kind, url string, more ...string) map[string]string {
	env := map[string]string{"BACKEND_TYPE": "redis", "KVSTORE_TYPE": kind, "KVSTORE_URL": url, "STORE_STALL": "0"}
	for i := 0; i < len(more); i += 2 {
		env[more[i]] = more[i+1]
	}
	return env
}

// stored is what the servers hold of counters whose key contains part, all together.
func stored(t testing.TB, servers []*localserver.Server, part string) (sum int) {
	t.Helper()
	for _, s := range servers {
		role, err := localserver.RedisCommand(t.Context(), s.Addr(), "", "ROLE")
		if err != nil || !strings.HasPrefix(role, "master") {
			continue
		}
		keys, err := localserver.RedisCommand(t.Context(), s.Addr(), "", "KEYS", "*"+part+"*")
		if err != nil {
			t.Fatal(err)
		}
		for key := range strings.FieldsSeq(keys) {
			value, err := localserver.RedisCommand(t.Context(), s.Addr(), "", "GET", key)
			if err != nil {
				t.Fatal(err)
			}
			var n int
			fmt.Sscan(value, &n)
			sum += n
		}
	}
	return sum
}

var _ = effect("KVSTORE_TYPE", func(t *testing.T) {
	const rules = `[{key: k, @5/y}]`
	f := func(kind, url string, servers []*localserver.Server) {
		t.Helper()
		c := start(t, rules, on(kind, url)).dial(t)
		for i := range 3 * 6 { // of three values, so that a cluster needs several nodes
			got := decide1(t, c, "k", fmt.Sprint("type", i%3))
			if want := i/3 < 5; (got.OverallCode == pb.RateLimitResponse_OK) != want {
				t.Errorf("%s, round %d: %v", kind, i/3, got.OverallCode)
			}
		}
		if n := stored(t, servers, "_type"); n != 3*6 {
			t.Errorf("%s: the servers hold %d hits, want 18", kind, n)
		}
	}
	cluster := testdb.Cluster(t)
	f("cluster", cluster.Nodes[1].Addr(), cluster.Nodes)
	set := testdb.Sentinels(t)
	f("Sentinel", set.URL(), set.Servers)

	// One node of a cluster is no single store: most keys are elsewhere.
	c := start(t, rules, on("single", cluster.Nodes[0].Addr())).dial(t)
	failed := 0
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if _, err := c.ShouldRateLimit(ctx, request("k", fmt.Sprint("other", i))); err != nil {
			failed++
		}
		cancel()
	}
	if failed == 0 {
		t.Error("a single store found all keys of a cluster")
	}
})

var _ = effect("KVSTORE_SENTINEL_AUTH", func(t *testing.T) {
	set, err := localserver.RedisSentinels(t.Context(), localserver.SentinelOptions{Password: "server", SentinelPassword: "sentinel"})
	if err != nil {
		t.Skip(err) // testdb.Sentinels fails where it may not be missing
	}
	t.Cleanup(set.Close)
	const rules = `[{key: k, @5/y}]`
	p := start(t, rules, on("sentinel", set.URL(), "KVSTORE_AUTH", "server", "KVSTORE_SENTINEL_AUTH", "default:sentinel"))
	decide1(t, p.dial(t), "k", "v")
	for name, env := range map[string]map[string]string{
		"no password": on("sentinel", set.URL(), "KVSTORE_AUTH", "server"),
		"a wrong one": on("sentinel", set.URL(), "KVSTORE_AUTH", "server", "KVSTORE_SENTINEL_AUTH", "server"),
	} {
		p := launch(t, rules, env)
		p.log.await(t, "does not answer yet", nil)
		if text := p.log.text(); strings.Contains(text, `"ready"`) || !strings.Contains(text, "NOAUTH") && !strings.Contains(text, "WRONGPASS") {
			t.Errorf("%s: %s", name, text)
		}
	}
})

var _ = effect("KVSTORE_CLUSTER_PIPELINE_PARALLELISM", func(t *testing.T) {
	cluster := testdb.Cluster(t)
	slow, fast := cluster.Nodes[0], cluster.Nodes[1]
	// Keys carry a tag that puts them where they are wanted: b is in slot 3300, a in 15495, c in 7365.
	two := &pb.RateLimitRequest{Domain: "d"}
	for _, value := range []string{"{b}", "{c}"} {
		two.Descriptors = append(two.Descriptors, &ratelimitpb.RateLimitDescriptor{
			Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: "k", Value: value}}})
	}
	f := func(parallelism string, want int) {
		t.Helper()
		c := start(t, `[{key: k, @500/y}]`, on("cluster", cluster.URL(), "KVSTORE_CLUSTER_PIPELINE_PARALLELISM", parallelism)).dial(t)
		decide1(t, c, "k", "{b}")
		decide1(t, c, "k", "{c}")
		before := stored(t, []*localserver.Server{fast}, "{c}")
		if _, err := cluster.Do(t.Context(), slow, "CLIENT", "PAUSE", "60000", "WRITE"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.ShouldRateLimit(ctx, two); err == nil {
			t.Error("a paused node has counted")
		}
		if _, err := cluster.Do(t.Context(), slow, "CLIENT", "UNPAUSE"); err != nil {
			t.Fatal(err)
		}
		if got := stored(t, []*localserver.Server{fast}, "{c}") - before; got != want {
			t.Errorf("parallelism %s: the other node was asked %d times while the first was paused, want %d", parallelism, got, want)
		}
	}
	f("1", 0)
	f("0", 1)
	f("2", 1)
})

// poolCase is a Redis that holds up every hit, and a daemon on it.
func poolCase(t *testing.T, more ...string) (c pb.RateLimitServiceClient, conns func() string, unpause func()) {
	t.Helper()
	redis := testdb.Private(t, localserver.RedisOptions{})
	p := start(t, `[{key: k, @500/y}]`, on("single", redis.Addr(), more...))
	c = p.dial(t)
	decide1(t, c, "k", "v")
	do := func(args ...string) {
		t.Helper()
		if _, err := localserver.RedisCommand(context.Background(), redis.Addr(), "", args...); err != nil {
			t.Fatal(err)
		}
	}
	do("CLIENT", "PAUSE", "60000", "WRITE")
	return c, func() string {
			_, body := get(t, p.debug+"/stats")
			_, rest, _ := strings.Cut(body, "ratelimit.redis_pool.cx_active: ")
			line, _, _ := strings.Cut(rest, "\n")
			return line
		}, func() {
			t.Helper()
			do("CLIENT", "UNPAUSE")
		}
}

// callers are n calls one after another in short distance, each with its time. On a busy machine some
// arrive together and share a batch, so there are to be more of them than slots.
func callers(c pb.RateLimitServiceClient, n int, within time.Duration) (wait func() (errs []codes.Code, took []time.Duration)) {
	errs, took := make([]codes.Code, n), make([]time.Duration, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * 10 * time.Millisecond)
			ctx, cancel := context.WithTimeout(context.Background(), within)
			defer cancel()
			begun := time.Now()
			_, err := c.ShouldRateLimit(ctx, request("k", fmt.Sprint("v", i)))
			errs[i], took[i] = status.Code(err), time.Since(begun)
		})
	}
	return func() ([]codes.Code, []time.Duration) { wg.Wait(); return errs, took }
}

func countCodes(all []codes.Code, code codes.Code) (n int) {
	for _, c := range all {
		if c == code {
			n++
		}
	}
	return n
}

var _ = effect("KVSTORE_POOL_SIZE", func(t *testing.T) {
	for _, size := range []string{"1", "3"} {
		c, conns, unpause := poolCase(t, "KVSTORE_POOL_SIZE", size, "KVSTORE_POOL_ON_EMPTY_BEHAVIOR", "WAIT")
		wait := callers(c, 100, 20*time.Second)
		eventually(t, "all "+size+" connections are in use", func() bool { return conns() == size })
		time.Sleep(300 * time.Millisecond) // in which no more may come
		if got := conns(); got != size {
			t.Errorf("size %s: %s connections", size, got)
		}
		unpause()
		if errs, _ := wait(); countCodes(errs, codes.OK) != 100 {
			t.Errorf("size %s: %v", size, errs)
		}
	}
})

var _ = effect("KVSTORE_POOL_ON_EMPTY_BEHAVIOR KVSTORE_POOL_ON_EMPTY_WAIT_DURATION", func(t *testing.T) {
	pool := func(behaviour, wait string) (pb.RateLimitServiceClient, func() string, func()) {
		t.Helper()
		return poolCase(t, "KVSTORE_POOL_SIZE", "2", "KVSTORE_POOL_ON_EMPTY_BEHAVIOR", behaviour, "KVSTORE_POOL_ON_EMPTY_WAIT_DURATION", wait)
	}
	// CREATE: as many connections again, no more.
	c, conns, unpause := pool("CREATE", "50ms")
	wait := callers(c, 100, 20*time.Second)
	eventually(t, "CREATE opens overflow connections", func() bool { return conns() == "4" })
	time.Sleep(300 * time.Millisecond)
	if got := conns(); got != "4" {
		t.Errorf("CREATE: %s connections, want 4", got)
	}
	unpause()
	if errs, _ := wait(); countCodes(errs, codes.OK) != 100 {
		t.Errorf("CREATE: %v", errs)
	}
	// ERROR: a store failure after the wait, for all but those in the store.
	c, conns, unpause = pool("ERROR", "300ms")
	wait = callers(c, 100, 20*time.Second)
	time.Sleep(1500 * time.Millisecond) // while the last come
	unpause()
	errs, took := wait()
	refused := countCodes(errs, codes.Unavailable)
	if refused == 0 || refused+countCodes(errs, codes.OK) != 100 || conns() != "2" {
		t.Errorf("ERROR: %v, %s connections", errs, conns())
	}
	for i := range errs {
		if errs[i] == codes.Unavailable && took[i] < 290*time.Millisecond {
			t.Errorf("ERROR: refused after %v, before the wait of 300 ms was over", took[i])
		}
	}
	// WAIT: nobody is refused before the deadline.
	c, conns, unpause = pool("WAIT", "50ms")
	errs, took = callers(c, 8, time.Second)()
	unpause()
	if countCodes(errs, codes.DeadlineExceeded) != 8 || conns() != "2" {
		t.Errorf("WAIT: %v, %s connections", errs, conns())
	}
	for i := range took {
		if took[i] < 900*time.Millisecond {
			t.Errorf("WAIT: given up after %v of 1 s", took[i])
		}
	}
})

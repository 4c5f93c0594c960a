package test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// on is the environment for a store of some type. A machine busy with other tests is not a dead store.
func on(kind, url string, more ...string) map[string]string {
	return with(map[string]string{"BACKEND_TYPE": "redis", "KVSTORE_TYPE": kind, "KVSTORE_URL": url, "STORE_STALL": "0"},
		"", more...)
}

// place is one of the two stores that a daemon may have, each with settings of the same names.
type place struct {
	prefix string // of its settings
	rules  string // of a key k that is counted there
	pool   string // of its statistics
}

var places = []place{
	{"KVSTORE_", `[{key: k, @500/y}]`, "redis_pool"},
	// A rule of the unit second whose window does not end during a test.
	{"KVSTORE_PERSECOND_", `[{key: k, rate_limit: {requests_per_unit: 500, unit: second, unit_multiplier: 100000000}}]`,
		"redis_per_second_pool"},
}

// both registers a test of a variable that each of the stores has. The name is the variable's without its prefix.
func both(name string, test func(t *testing.T, at place)) bool {
	for _, at := range places {
		effect(at.prefix+name, func(t *testing.T) { test(t, at) })
	}
	return true
}

// on is the environment with a store of some type in this place, and more settings by their names without the prefix.
func (at place) on(t *testing.T, kind, url string, more ...string) map[string]string {
	t.Helper()
	env := on(kind, url)
	if at.prefix != "KVSTORE_" {
		env = on("single", testdb.Redis(t).URL(), "KVSTORE_PERSECOND", "true", at.prefix+"TYPE", kind,
			at.prefix+"URL", url)
	}
	return with(env, at.prefix, more...)
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
		must.Succeed(t, err)
		for key := range strings.FieldsSeq(keys) {
			value, err := localserver.RedisCommand(t.Context(), s.Addr(), "", "GET", key)
			must.Succeed(t, err)
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
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		if _, err := c.ShouldRateLimit(ctx, request("k", fmt.Sprint("other", i))); err != nil {
			failed++
		}
		cancel()
	}
	if failed == 0 {
		t.Error("a single store found all keys of a cluster")
	}
})

// poolCase is a Redis that holds up every hit, and a daemon on it.
func (at place) poolCase(t *testing.T,
	more ...string) (c pb.RateLimitServiceClient, conns func() string, unpause func()) {
	t.Helper()
	redis := testdb.Private(t, localserver.RedisOptions{})
	p := start(t, at.rules, at.on(t, "single", redis.Addr(), more...))
	c = p.dial(t)
	decide1(t, c, "k", "v")
	do := func(args ...string) {
		t.Helper()
		must.Succeed(t, must.ErrOf(localserver.RedisCommand(context.Background(), redis.Addr(), "", args...)))
	}
	do("CLIENT", "PAUSE", "60000", "WRITE")
	return c, func() string {
			_, body := get(t, p.debug+"/stats")
			_, rest, _ := strings.Cut(body, "ratelimit."+at.pool+".cx_active: ")
			line, _, _ := strings.Cut(rest, "\n")
			return line
		}, func() {
			t.Helper()
			do("CLIENT", "UNPAUSE")
		}
}

// callers are n calls one after another in short distance, each with its time. On a busy machine some
// arrive together and share a batch, so there are to be more of them than slots.
func callers(c pb.RateLimitServiceClient, n int,
	within time.Duration) (wait func() (errs []codes.Code, took []time.Duration)) {
	errs, took := make([]codes.Code, n), make([]time.Duration, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * 10 * time.Millisecond)
			begun := time.Now() // before the deadline's own clock
			ctx, cancel := context.WithTimeout(context.Background(), within)
			defer cancel()
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

var _ = both("POOL_ON_EMPTY_BEHAVIOR", func(t *testing.T, at place) {
	// CREATE: as many connections again, no more.
	c, conns, unpause := at.poolCase(t, "POOL_SIZE", "2", "POOL_ON_EMPTY_BEHAVIOR", "CREATE",
		"POOL_ON_EMPTY_WAIT_DURATION", "50ms")
	wait := callers(c, 100, 20*time.Second)
	await.True(t, "CREATE opens overflow connections", func() bool { return conns() == "4" })
	time.Sleep(300 * time.Millisecond)
	if got := conns(); got != "4" {
		t.Errorf("CREATE: %s connections, want 4", got)
	}
	unpause()
	if errs, _ := wait(); countCodes(errs, codes.OK) != 100 {
		t.Errorf("CREATE: %v", errs)
	}
	// WAIT: no call is refused before the deadline.
	c, conns, unpause = at.poolCase(t, "POOL_SIZE", "2", "POOL_ON_EMPTY_BEHAVIOR", "WAIT",
		"POOL_ON_EMPTY_WAIT_DURATION", "50ms")
	errs, took := callers(c, 8, time.Second)()
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

var _ = both("POOL_ON_EMPTY_WAIT_DURATION", func(t *testing.T, at place) {
	// ERROR: a store failure after the wait, for all but those in the store.
	c, conns, unpause := at.poolCase(t, "POOL_SIZE", "2", "POOL_ON_EMPTY_BEHAVIOR", "ERROR",
		"POOL_ON_EMPTY_WAIT_DURATION", "300ms")
	wait := callers(c, 100, 20*time.Second)
	time.Sleep(1500 * time.Millisecond) // the last have come and waited
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
})

var _ = effect("KVSTORE_URL", func(t *testing.T) {
	tcp, socket := testdb.Private(t, localserver.RedisOptions{Users: map[string]string{"ann": "a:b"}}),
		testdb.Private(t, localserver.RedisOptions{Socket: true})
	for i, url := range []string{tcp.Addr(), "redis://ann:a%3Ab@" + tcp.Addr(),
		"redis://" + tcp.Addr() + "/0?username=ann&password=a:b"} {
		decide1(t, start(t, places[0].rules, on("single", url)).dial(t), "k", "url")
		if n := stored(t, []*localserver.Server{tcp}, "_url_"); n != i+1 {
			t.Errorf("%s: the server holds %d hits, want %d", url, n, i+1)
		}
	}
	p := start(t, places[0].rules, on("single", socket.Addr()))
	decide1(t, p.dial(t), "k", "url")
	if n := stored(t, []*localserver.Server{tcp}, "_url_"); n != 3 {
		t.Errorf("with the socket's path the other server holds %d hits", n)
	}
})

var _ = both("PIPELINE_LIMIT", func(t *testing.T, at place) {
	p := start(t, at.rules, at.on(t, "single", testdb.Redis(t).URL(), "PIPELINE_LIMIT", "8"))
	p.log.await(t, at.prefix+"PIPELINE_LIMIT has no effect", nil)
	decide1(t, p.dial(t), "k", "v")
})

var _ = effect("KVSTORE_HEALTH_CHECK_ACTIVE_CONNECTION", func(t *testing.T) {
	for _, setting := range []string{"true", "false"} {
		for i, at := range places {
			redis := testdb.Private(t, localserver.RedisOptions{})
			env := at.on(t, "single", redis.Addr())
			env["KVSTORE_HEALTH_CHECK_ACTIVE_CONNECTION"] = setting
			p := start(t, at.rules, env)
			healthy := func() bool { code, _ := get(t, p.http+"/healthcheck"); return code == 200 }
			if !healthy() {
				t.Errorf("%s, store %d: unhealthy with a connection", setting, i)
			}
			redis.Kill()
			await.True(t, "the loss is noticed", func() bool {
				post(t, p, "k=v")
				return stat(t, p, "ratelimit."+at.pool+".breaker_open") == 1
			})
			if setting == "true" {
				await.True(t, "unhealthy without a connection", func() bool { return !healthy() })
			} else if !healthy() {
				t.Errorf("store %d: unhealthy though nobody asked for it", i)
			}
			must.Succeed(t, redis.Restart(t.Context()))
			await.True(t, "healthy again", healthy)
		}
	}
})

// absent is the environment for a store without a listener, with settings of KVSTORE_STARTUP_.
func absent(more ...string) map[string]string {
	return with(on("single", "127.0.0.1:1"), "KVSTORE_STARTUP_", more...)
}

// Without a store the daemon serves by its failure mode, healthy unless the connection counts, and counts
// as soon as the store has come.
var _ = effect("KVSTORE_STARTUP_REQUIRED", func(t *testing.T) {
	for _, at := range places {
		redis := testdb.Private(t, localserver.RedisOptions{})
		redis.Kill()
		env := at.on(t, "single", redis.Addr())
		env["KVSTORE_STARTUP_REQUIRED"], env["KVSTORE_STARTUP_INITIAL_INTERVAL"], env["KVSTORE_STARTUP_MAX_INTERVAL"] =
			"false", "10ms", "20ms"
		f := func(mode, byConnection string) *process {
			env["STORE_FAILURE_MODE"], env["KVSTORE_HEALTH_CHECK_ACTIVE_CONNECTION"] = mode, byConnection
			return start(t, at.rules, env)
		}
		strict, open := f("error", "true"), f("allow", "false")
		if status, body := post(t, strict, "k=v"); status != 503 ||
			!strings.Contains(body, "rate limit store is unavailable") {
			t.Errorf("%s: without a store: %d %s", at.prefix, status, body)
		}
		if status, body := post(t, open, "k=v"); status != 200 {
			t.Errorf("%s: without a store, by allow: %d %s", at.prefix, status, body)
		}
		health := func(p *process) int { code, _ := get(t, p.http+"/healthcheck"); return code }
		if a, b := health(strict), health(open); a != 500 || b != 200 {
			t.Errorf("%s: /healthcheck %d where the connection counts, %d where not; want 500 and 200", at.prefix, a, b)
		}
		if stat(t, strict, "ratelimit."+at.pool+".breaker_open") != 1 {
			t.Errorf("%s: breaker_open is 0 without a store", at.prefix)
		}
		stopped := f("deny", "false")
		if err := stopped.Stop(time.Minute); err != nil {
			t.Errorf("%s: stopping without a store: %v", at.prefix, err)
		}
		must.Succeed(t, redis.Restart(t.Context()))
		for _, p := range []*process{strict, open} {
			await.True(t, "hits are counted", func() bool {
				_, body := post(t, p, "k=counted")
				return strings.Contains(body, `"limitRemaining":`)
			})
			await.True(t, "healthy", func() bool { return health(p) == 200 })
		}
		if n := stored(t, []*localserver.Server{redis}, "_counted"); n == 0 {
			t.Errorf("%s: the store holds no hit", at.prefix)
		}
	}
})

var _ = effect("KVSTORE_STARTUP_INITIAL_INTERVAL", func(t *testing.T) {
	for _, first := range []string{"1h0m0s", "3ms"} {
		p := launch(t, places[0].rules, absent("INITIAL_INTERVAL", first, "MAX_INTERVAL", "1h"))
		p.log.await(t, `"next try in":"`+first+`"`, nil)
	}
})

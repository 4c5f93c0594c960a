//go:build !race

package redis

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// commandCounts returns how often a server executed each command since the last time.
func commandCounts(t *testing.T, peer rueidis.Client) map[string]int {
	t.Helper()
	info, err := peer.Do(t.Context(), peer.B().Info().Section("commandstats").Build()).ToString()
	must.Succeed(t, err)
	must.Succeed(t, peer.Do(t.Context(), peer.B().ConfigResetstat().Build()).Error())
	counts := map[string]int{}
	for line := range strings.Lines(info) {
		name, rest, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		calls, _, _ := strings.Cut(rest, ",")
		switch n, _ := strconv.Atoi(calls); name {
		case "set", "get", "incrby", "expire", "evalsha", "eval", "del", "decrby", "pttl", "setrange":
			counts[name] = n
		}
	}
	return counts
}

// Commands per request are a budget: one INCRBY per distinct key, and SET or EXPIRE only where a key is new.
func TestCommands(t *testing.T) {
	server := testdb.Private(t, localserver.RedisOptions{})
	peer := redisClient(t, server.Addr(), 0)
	s := newTestStore(t, Options{Settings: Settings{URL: server.Addr()}})
	// f carries out the requests one after another and compares the commands they cost.
	f := func(want string, requests ...counter.Request) {
		t.Helper()
		commandCounts(t, peer)
		for _, req := range requests {
			req.Now = now()
			must.Succeed(t, s.Add(t.Context(), &req))
		}
		if got := commandCounts(t, peer); fmt.Sprint(got) != "map["+want+"]" {
			t.Errorf("commands %v, want %s", got, want)
		}
	}
	one := func(hits ...counter.Hit) counter.Request { return counter.Request{Hits: hits} }
	f("incrby:1 set:1", one(h("a", 1)))
	f("incrby:1", one(h("a", 1)))
	f("incrby:1", one(h("a", 1), h("a", 3)))
	f("incrby:4 set:3", one(h("a", 1), h("b", 1), h("c", 1), h("d", 1)))
	f("incrby:4", one(h("a", 1), h("b", 1), h("c", 1), h("d", 1)))
	f("get:1", one(h("a", 0)))
	f("incrby:1", one(h("a", 0), h("a", 1), h("a", 0)))
	f("", one())
	f("decrby:1 eval:1 get:2", one(refund(h("a", 1))))
	must.Succeed(t, peer.Do(t.Context(), peer.B().Flushall().Build()).Error())
	f("expire:1 incrby:1", one(h("a", 1)))
	f("incrby:1", one(h("a", 1)))

	// A hot key that 64 callers hit at once, while the store is held up by a batch of its own.
	hot := func() int {
		commandCounts(t, peer)
		await.Together(64, func(int) {
			if err := s.Add(context.Background(),
				&counter.Request{Hits: []counter.Hit{h("hot", 1)}, Now: now()}); err != nil {
				t.Error(err)
			}
		})
		counts := commandCounts(t, peer)
		return counts["incrby"] + counts["set"]
	}
	hot()
	var worst, sum int
	for range 20 {
		n := hot()
		worst, sum = max(worst, n), sum+n
	}
	t.Logf("64 hits on one key at once: %d commands at worst, %.1f on average", worst, float64(sum)/20)
	if sum > 4*20 {
		t.Errorf("%.1f commands for 64 hits on one key at once, want at most 4", float64(sum)/20)
	}
}

// A sliding window or a token bucket costs one call of a script for each key and batch. A second
// connection, which a slow machine would have the store open, would load the scripts.
func TestCommands_meters(t *testing.T) {
	server := testdb.Private(t, localserver.RedisOptions{})
	peer := redisClient(t, server.Addr(), 0)
	s := newTestStore(t, Options{Settings: Settings{URL: server.Addr(), PoolSize: 1}, Stall: -1})
	f := func(want string, stop counter.Stop, hits ...counter.Hit) {
		t.Helper()
		commandCounts(t, peer)
		must.Succeed(t, s.Add(t.Context(), &counter.Request{Hits: hits, Now: now(), Stop: stop}))
		if got := commandCounts(t, peer); fmt.Sprint(got) != "map["+want+"]" {
			t.Errorf("commands %v, want %s", got, want)
		}
	}
	w := func(key string, n, limit uint64) counter.Hit { return daily(sliding(key, n, limit)) }
	b := func(key string, n, limit uint64) counter.Hit { return daily(bucket(key, n, limit, limit)) }
	none := counter.StopNone
	// Of scripts that the server does not know, the first is sent with its text, and what counts is not sent again.
	must.Succeed(t, peer.Do(t.Context(), peer.B().ScriptFlush().Build()).Error())
	f("eval:2 evalsha:8 get:5 incrby:1 set:6", none, w("a", 1, 10), w("b", 1, 10), w("c", 1, 10), b("d", 1, 10),
		b("e", 1, 10), h("f", 1))
	f("evalsha:5 get:5 incrby:1 set:5", none, w("a", 1, 10), w("b", 1, 10), w("c", 1, 10), b("d", 1, 10), b("e", 1, 10),
		h("f", 1))
	f("evalsha:1 get:1 set:1", none, w("a", 1, 10))
	f("evalsha:1 get:1 set:1", none, w("a", 1, 10), w("a", 2, 10), w("a", 0, 10), refund(w("a", 1, 10)), w("a", 1, 9))
	f("evalsha:1 get:1 set:1", none, b("d", 1, 10), b("d", 2, 10), b("d", 0, 10), refund(b("d", 1, 10)))
	// One behind the other must not find the server without the script.
	f("eval:1 evalsha:1 get:2 set:2", none, b("d", 1, 10), b("d", 1, 11)) // as of two sets of rules during a reload
	f("evalsha:2 get:2", none, w("a", 0, 10), b("d", 0, 10))              // peeks
	f("evalsha:2 get:2", none, w("a", 9, 10), b("d", 9, 10))              // refused
	f("evalsha:2 get:2", none, w("a", 99, 10), b("d", 99, 10))
	f("del:2 evalsha:2 get:2", none, refund(w("a", 99, 10)), refund(b("d", 99, 10)))
	// The stop option: one script, which reads each counter and writes it once.
	f("eval:1 evalsha:1 get:4 incrby:1 set:2", counter.StopAll, w("a", 1, 10), b("d", 1, 10), h("f", 1))
	f("evalsha:1 get:4 incrby:1 set:2", counter.StopAll, w("a", 1, 10), b("d", 1, 10), h("f", 1))
	f("evalsha:1 get:3", counter.StopAll, w("a", 99, 10), b("d", 1, 10), h("f", 1))
	f("eval:1 evalsha:3 get:4 incrby:1 set:2", counter.StopEach, w("a", 1, 10), b("d", 1, 10), h("f", 1))

	hot := func() int {
		commandCounts(t, peer)
		await.Together(64, func(int) {
			req := counter.Request{Hits: []counter.Hit{b("hot", 1, 1<<20)}, Now: now()}
			if err := s.Add(context.Background(), &req); err != nil {
				t.Error(err)
			}
		})
		return commandCounts(t, peer)["evalsha"]
	}
	hot()
	sum := 0
	for range 20 {
		sum += hot()
	}
	t.Logf("64 hits on one token bucket at once: %.1f commands on average", float64(sum)/20)
	if sum > 4*20 {
		t.Errorf("%.1f commands for 64 hits on one token bucket at once, want at most 4", float64(sum)/20)
	}
}

// A cluster costs the same: one command for each distinct key, wherever it is.
func TestCommands_cluster(t *testing.T) {
	cluster := testdb.Cluster(t)
	var masters []rueidis.Client
	for _, n := range cluster.Nodes {
		role, err := cluster.Do(t.Context(), n, "ROLE")
		must.Succeed(t, err)
		must.Succeed(t, must.ErrOf(cluster.Do(t.Context(), n, "SCRIPT", "FLUSH")))
		if strings.HasPrefix(role, "master") {
			masters = append(masters, redisClient(t, n.Addr(), 0))
		}
	}
	s := openTest(t, Options{Settings: Settings{Type: InCluster, URL: cluster.URL()}, Stall: -1})
	counts := func() map[string]int {
		sum := map[string]int{}
		for _, m := range masters {
			for name, n := range commandCounts(t, m) {
				sum[name] += n
			}
		}
		return sum
	}
	f := func(want string, stop bool, hits ...counter.Hit) {
		t.Helper()
		counts()
		must.Succeed(t, s.Add(t.Context(),
			&counter.Request{Hits: hits, Now: now(), Stop: counter.StopWhen(stop)}))
		if got := counts(); fmt.Sprint(got) != "map["+want+"]" {
			t.Errorf("commands %v, want %s", got, want)
		}
	}
	tags := tagsOfNodes()
	a, b, c := tags[0], tags[1], tags[2]
	f("incrby:1 set:1", false, h(a, 1))
	f("incrby:1", false, h(a, 1))
	f("incrby:3 set:2", false, h(a, 1), h(b, 1), h(c, 1), h(a, 2))
	f("incrby:3", false, h(a, 1), h(b, 1), h(c, 1), h(b, 2))
	f("get:1 incrby:2", false, h(a, 0), h(b, 1), h(c, 1))
	// The stop option, with all counters on one node though in several slots: one script, which reads twice.
	other := tagIn(moving, slots/3-1, 1)
	f("evalsha:1 get:4 incrby:1 set:1", true, h(a, 1), h(other, 1))
	f("evalsha:1 get:4 incrby:2", true, h(a, 1), h(other, 1))
	f("evalsha:1 get:2", true, h(a, 1), limit(0, h(other, 1)))
	// On two: all are read, and each write reads again; nothing more when one is over.
	f("evalsha:2 get:6 incrby:2", true, h(a, 1), h(b, 1))
	f("get:2", true, h(a, 1), limit(0, h(b, 1)))
	// Sliding windows and token buckets: one script each, and under the stop option one for all on a node.
	w, u := daily(sliding(a+"w", 1, 9)), daily(bucket(b+"b", 1, 9, 9))
	f("evalsha:2 get:2 set:2", false, w, u)
	f("evalsha:1 get:3 incrby:1 set:1", true, w, h(other, 1))
	f("evalsha:4 get:4 set:2", true, w, u)
	full := u
	full.N = 9
	f("evalsha:2 get:2", true, w, full)
}

// Allocations of ours, with a stub below the batcher: none in steady state, 2 are allowed.
func TestKVStoreAlloc(t *testing.T) {
	s := newStubStore(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req := &counter.Request{Hits: []counter.Hit{h("a", 1), h("b", 1), refund(h("c", 1)), h("d", 0)}, Now: noon}
	if n := testing.AllocsPerRun(2000, func() {
		must.Succeed(t, s.Add(ctx, req))
	}); n > 0 {
		t.Errorf("%v allocations for one request, want 0", n)
	}
}

// Nor do sliding windows and token buckets.
func TestKVStoreAlloc_meters(t *testing.T) {
	s := newStubStore(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req := &counter.Request{Hits: []counter.Hit{sliding("a", 1, 10), bucket("b", 1, 10, 5), refund(sliding("c", 1, 10)),
		bucket("d", 0, 10, 10), h("e", 1), sliding("a", 2, 10)}, Now: noon}
	if n := testing.AllocsPerRun(2000, func() {
		must.Succeed(t, s.Add(ctx, req))
	}); n > 0 {
		t.Errorf("%v allocations for one request, want 0", n)
	}
}

// A cluster adds nothing, on one node or on several.
func TestClusterAlloc(t *testing.T) {
	c := &Cluster{o: Options{}.withDefaults(), nodes: map[string]*clusterNode{}, width: 2}
	c.ctx, c.stop = context.WithCancel(t.Context())
	defer c.Close()
	c.splits.New = func() any { return new(split) }
	for i := range c.slots {
		addr := fmt.Sprint("node", i*3/slots)
		if c.nodes[addr] == nil {
			s := newServer(c.o)
			s.newLink = func(time.Duration) connection { return new(stubLink) }
			s.run(s.newLink(0))
			c.nodes[addr] = &clusterNode{server: s, addr: addr}
		}
		c.slots[i].Store(c.nodes[addr])
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tags := tagsOfNodes()
	f := func(hits ...counter.Hit) {
		t.Helper()
		req := &counter.Request{Hits: hits, Now: noon}
		if n := testing.AllocsPerRun(2000, func() {
			must.Succeed(t, c.Add(ctx, req))
		}); n > 0 {
			t.Errorf("%v allocations for one request of %d hits, want 0", n, len(hits))
		}
	}
	f(h(tags[0], 1))
	f(h(tags[0], 1), refund(h(tags[0]+"r", 1)))
	f(h(tags[0], 1), h(tags[1], 1), h(tags[2], 1), h(tags[1]+"d", 0))
	f(sliding(tags[0], 1, 5), bucket(tags[1], 1, 5, 5))
}

// newSingleConnStore returns a store for tests that count allocations. On a slow machine, whose replies take longer
// than minSpacing, another store would open further connections meanwhile, each of which costs some 200 allocations.
func newSingleConnStore(t *testing.T) *Server {
	return newTestStore(t, Options{Settings: Settings{URL: testdb.Redis(t).URL(), PoolSize: 1}, Stall: -1})
}

// A whole batch through rueidis: at most 5.
func TestKVStoreAlloc_batch(t *testing.T) {
	s := newSingleConnStore(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, hits := range []int{1, 10, 200} {
		req := &counter.Request{Now: now()}
		for i := range hits {
			req.Hits = append(req.Hits, h(fmt.Sprint("alloc", i), 150))
		}
		n := testing.AllocsPerRun(500, func() {
			must.Succeed(t, s.Add(ctx, req))
		})
		t.Logf("a batch of %d: %v allocations", hits, n)
		if n > 5 {
			t.Errorf("a batch of %d: %v allocations, want at most 5", hits, n)
		}
	}
}

// A call of a script through rueidis: at most 4 for it and its batch.
func TestKVStoreAlloc_script(t *testing.T) {
	s := newSingleConnStore(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, calls := range []int{1, 10} {
		for _, of := range []func(string) counter.Hit{
			func(key string) counter.Hit { return daily(sliding(key, 1, 1<<30)) },
			func(key string) counter.Hit { return daily(bucket(key, 1, 1<<30, 1<<30)) },
		} {
			req := &counter.Request{Now: now()}
			for i := range calls {
				req.Hits = append(req.Hits, of(fmt.Sprint("alloc", of("").Algorithm, i)))
			}
			n := testing.AllocsPerRun(500, func() {
				must.Succeed(t, s.Add(ctx, req))
			})
			t.Logf("%d calls for a %s: %v allocations", calls, of("").Algorithm, n)
			if n > float64(4*calls) {
				t.Errorf("%d calls for a %s: %v allocations, want at most %d", calls, of("").Algorithm, n, 4*calls)
			}
		}
	}
}

// Hits and refunds of one key take effect in the order of the requests, also in the batch that finds out that the
// server has lost its scripts.
func TestOrder_lostScripts(t *testing.T) {
	server := testdb.Private(t, localserver.RedisOptions{})
	peer := redisClient(t, server.Addr(), 0)
	s := newTestStore(t, Options{Settings: Settings{URL: server.Addr(), Timeout: patience}, Stall: -1})
	flush := func() {
		t.Helper()
		must.Succeed(t, peer.Do(t.Context(), peer.B().ScriptFlush().Build()).Error())
	}
	// f wants what each hit of one request answers, and what a look then finds.
	f := func(name string, left int64, want []int64, hits ...counter.Hit) {
		t.Helper()
		for _, lose := range []bool{false, true} {
			each := make([]counter.Hit, len(hits))
			for i, of := range hits {
				each[i] = of
				each[i].Key = fmt.Appendf(nil, "%s %s %t", of.Key, name, lose)
			}
			for _, warm := range []counter.Hit{sliding("warm", 1, 9), bucket("warmer", 1, 1, 9)} {
				add(t, s, now(), warm)
			}
			if lose {
				flush()
			}
			req := counter.Request{Hits: each, Now: now()}
			must.Succeed(t, s.Add(t.Context(), &req))
			var got []int64
			for i := range req.Hits {
				got = append(got, req.Hits[i].After)
			}
			look := each[len(each)-1]
			if err := s.Peek(t.Context(), &look); err != nil || !slices.Equal(got, want) || look.After != left {
				t.Errorf("%s, scripts lost %t: %v, then %d (%v); want %v, then %d", name, lose, got, look.After, err,
					want, left)
			}
		}
	}
	w := func(n, limit uint64) counter.Hit { return daily(sliding("w", n, limit)) }
	b := func(n, size uint64) counter.Hit { return daily(bucket("b", n, 1, size)) }
	gone := func(h counter.Hit) counter.Hit { h.N, h.Delete, h.End = 0, true, now()+h.Window; return h }
	f("first a refund", 1, []int64{0, 1}, refund(h("k", 1)), h("k", 1))
	f("a refund between", 2, []int64{3, 0, 2}, h("k", 3), refund(h("k", 5)), h("k", 2))
	f("a sliding window is deleted", 1, []int64{2, 0, 1}, w(2, 10), gone(w(0, 10)), w(1, 10))
	f("buckets of two sizes", 5, []int64{3, 5}, b(3, 3), b(2, 8))
}

// A server that forbids loading scripts is given their texts when they are needed.
func TestScriptLoad_forbidden(t *testing.T) {
	server := testdb.Private(t, localserver.RedisOptions{Config: []string{"user limited on >pw ~* +@all -script"}})
	s := newTestStore(t, Options{Settings: Settings{URL: "redis://limited:pw@" + server.Addr(), Timeout: patience},
		Stall: -1})
	for i := range 2 {
		req := counter.Request{Now: now(), Stop: counter.StopWhen(i == 1),
			Hits: []counter.Hit{h("fixed", 1), daily(sliding("w", 1, 10)), daily(bucket("b", 1, 10, 10))}}
		must.Succeed(t, s.Add(t.Context(), &req))
		for _, h := range req.Hits {
			if h.After != int64(i+1) {
				t.Errorf("%s stands at %d, want %d", h.Key, h.After, i+1)
			}
		}
	}
}

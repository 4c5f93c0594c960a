package memcached

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/countertest"
	"gatehouse/ratelimit/internal/counter/link"
	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

func newTestMemcache(t testing.TB, o Options) *Store {
	t.Helper()
	return countertest.Opened(t, func() (*Store, error) { return New(t.Context(), o) })
}

// threeNodes are three memcached of t's own.
func threeNodes(t testing.TB) (servers []*localserver.Server, addrs []string) {
	t.Helper()
	for range 3 {
		s := testdb.Memcached(t, localserver.MemcachedOptions{})
		servers, addrs = append(servers, s), append(addrs, s.Addr())
	}
	return servers, addrs
}

// What the tests of all stores share, by the names of this package's tests.
var (
	now, h, limit = countertest.Now, countertest.Hit, countertest.Limit
	add           = countertest.Add
)

const patience = countertest.Patience

func patient3(addrs []string) Options {
	return Options{Settings: Settings{Nodes: addrs, Timeout: patience}, Stall: -1}
}

func TestMemcache(t *testing.T) {
	_, addrs := threeNodes(t)
	o := patient3(addrs)
	o.HashKeys = true // some of the test's keys are none that memcached takes
	countertest.Run(t, func(t *testing.T) counter.Store { return newTestMemcache(t, o) })
	o.Settings.Nodes = []string{testdb.Memcached(t, localserver.MemcachedOptions{}).Addr()}
	o.Settings.MaxIdleConns = 1
	s := newTestMemcache(t, o)
	t.Run("one node", func(t *testing.T) { countertest.Concurrent(t, s) })
}

// settled waits until everything has been written to the nodes.
func settled(t testing.TB, s *Store) {
	t.Helper()
	await.True(t, "the queue to empty", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, n := range s.nodes {
			if len(n.due) > 0 || n.writing {
				return false
			}
		}
		return true
	})
}

// Another client of the same list, as the replaced service has it, finds the counters where we left them,
// with their totals and an expiry; and we find its.
func TestMemcache_shared(t *testing.T) {
	_, addrs := threeNodes(t)
	s := newTestMemcache(t, patient3(addrs))
	peer := newPeer(t, addrs...)
	for i := range 100 {
		key := fmt.Sprint("key_", i)
		if got := add(t, s, now(), h(key, uint64(i+1))); got != int64(i+1) {
			t.Errorf("%s: %d", key, got)
		}
	}
	settled(t, s)
	for i := range 100 {
		key := fmt.Sprint("key_", i)
		if got := peer.get(key); got != fmt.Sprint(i+1) {
			t.Fatalf("%s: %q, want %d", key, got, i+1)
		}
		if got, want := peer.command(key, "incr %s 1000", key), fmt.Sprint(i+1001); got != want {
			t.Fatalf("%s: incr answers %q, want %s", key, got, want)
		}
		if got := add(t, s, now(), h(key, 1)); got != int64(i+1002) {
			t.Errorf("%s: %d, want %d", key, got, i+1002)
		}
	}
	settled(t, s)
	if n := s.Dropped(); n != 0 {
		t.Errorf("%d hits dropped", n)
	}
	if st := s.Stats(); st.Increment.Miss.Load() != 100 || st.Add.Success.Load() != 100 ||
		st.Increment.Success.Load() != 100 || st.KeysFound.Load() != 100 {
		t.Errorf("%d misses, %d adds, %d increments, %d found; want 100 of each", st.Increment.Miss.Load(),
			st.Add.Success.Load(), st.Increment.Success.Load(), st.KeysFound.Load())
	}
}

// Two processes on the same nodes count together, and nothing is lost between them.
func TestMemcache_twoProcesses(t *testing.T) {
	_, addrs := threeNodes(t)
	a, b := newTestMemcache(t, patient3(addrs)), newTestMemcache(t, patient3(addrs))
	var wg sync.WaitGroup
	for _, s := range []*Store{a, b} {
		for range 8 {
			wg.Go(func() {
				for range 50 {
					req := counter.Request{Hits: []counter.Hit{h("hot", 2), h("hot", 1), h("other", 1)}, Now: now()}
					if err := s.Add(context.Background(), &req); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	settled(t, a)
	settled(t, b)
	for _, s := range []*Store{a, b} {
		for key, want := range map[string]int64{"hot": 2400, "other": 800} {
			if got, err := countertest.Peek(t.Context(), s, key); got != want || err != nil {
				t.Errorf("%s stands at %d (%v), want %d", key, got, err, want)
			}
		}
	}
}

// pick chooses as the library of the replaced service does: testdata/ring.txt was written with it.
func TestRing(t *testing.T) {
	text, err := os.ReadFile("testdata/ring.txt")
	must.Succeed(t, err)
	digits := ""
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			digits += strings.TrimSpace(line)
		}
	}
	addrs := []string{"10.0.0.1:11211", "10.0.0.2:11211", "10.0.0.1:11211", "10.0.0.3:1", "10.0.0.4:1"}
	const keys = 1000
	if len(digits) != len(addrs)*keys {
		t.Fatalf("%d choices, want %d for each of %d lists", len(digits), keys, len(addrs))
	}
	for n := 1; n <= len(addrs); n++ {
		var r ring
		for _, a := range addrs[:n] {
			r.nodes = append(r.nodes, &node{addr: link.Endpoint{Network: "tcp", Addr: a}})
		}
		for i := range keys {
			key := strings.Repeat("k", i%250) + fmt.Sprint(i)
			want := addrs[digits[(n-1)*keys+i]-'0']
			if got := r.pick(key).addr.Addr; got != want {
				t.Fatalf("%d nodes: %q is on %v, the library says %v", n, key, got, want)
			}
		}
	}
}

// At rest no more connections than MaxIdleConns are kept for lookups, and a hot counter costs few of them.
func TestMemcache_hotKey(t *testing.T) {
	server := testdb.Memcached(t, localserver.MemcachedOptions{})
	o := patient3([]string{server.Addr()})
	o.Settings.MaxIdleConns = 3
	s := newTestMemcache(t, o)
	if err := server.Stop(); err != nil { // all arrive before the first is answered
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			if err := s.Add(context.Background(),
				&counter.Request{Hits: []counter.Hit{h("hot", 1)}, Now: now()}); err != nil {
				t.Error(err)
			}
		})
	}
	await.True(t, "all to have asked", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.nodes[0].counts) == 1 && s.nodes[0].counts["hot"].pins == 64
	})
	must.Succeed(t, server.Cont())
	wg.Wait()
	settled(t, s)
	if got, _ := countertest.Peek(t.Context(), s, "hot"); got != 64 {
		t.Errorf("stands at %d, want 64", got)
	}
	st := s.Stats()
	if looks := st.KeysRequested.Load(); looks > 8 {
		t.Errorf("%d look-ups for 64 hits at once", looks)
	}
	s.nodes[0].hangUpIdle()
	if n := s.ActiveConns(); n < 1 || n > 3 {
		t.Errorf("%d connections rest, want at most 3", n)
	}
}

// A unix socket is a node too.
func TestMemcache_socket(t *testing.T) {
	server := testdb.Memcached(t, localserver.MemcachedOptions{Socket: true})
	s := newTestMemcache(t, patient3([]string{server.Addr()}))
	if got := add(t, s, now(), h("a", 1)); got != 1 {
		t.Errorf("%d", got)
	}
}

func BenchmarkMemcache(b *testing.B) {
	server := testdb.Memcached(b, localserver.MemcachedOptions{})
	s, err := New(b.Context(), patient3([]string{server.Addr()}))
	must.Succeed(b, err)
	defer s.Close()
	b.ReportAllocs()
	b.SetParallelism(128)
	var next atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		g := next.Add(1)
		for i := 0; pb.Next(); i++ {
			hits := [1]counter.Hit{h(fmt.Sprint("k", (g*7919+int64(i))%10_000), 1)}
			req := counter.Request{Hits: hits[:], Now: now()}
			if err := s.Add(context.Background(), &req); err != nil || req.Hits[0].After < 1 {
				b.Error(err)
				return
			}
		}
	})
}

// A call with ten hits, alone: what one lookup costs from the call to the totals.
func BenchmarkMemcache_tenHits(b *testing.B) {
	server := testdb.Memcached(b, localserver.MemcachedOptions{})
	s, err := New(b.Context(), patient3([]string{server.Addr()}))
	must.Succeed(b, err)
	defer s.Close()
	var hits [10]counter.Hit
	for i := range hits {
		hits[i] = h(fmt.Sprint("k", i), 1)
	}
	must.Succeed(b, s.Add(b.Context(), &counter.Request{Hits: hits[:], Now: now()}))
	settled(b, s)
	for i := range hits {
		hits[i].N = 0 // nothing is written
	}
	b.ReportAllocs()
	for b.Loop() {
		req := counter.Request{Hits: hits[:], Now: now()}
		if err := s.Add(context.Background(), &req); err != nil || req.Hits[9].After != 1 {
			b.Fatal(err, req.Hits[9].After)
		}
	}
}

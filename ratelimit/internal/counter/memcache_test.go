package counter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/google/go-cmp/cmp"

	"gatehouse/shared/chaos"
	"gatehouse/shared/localserver"
	"gatehouse/shared/testdb"
)

func newTestMemcache(t testing.TB, o MemcacheOptions) *Memcache {
	t.Helper()
	return opened(t, func() (*Memcache, error) { return NewMemcache(t.Context(), o) })
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

// patience is for tests that are not about time-outs, on a machine that is busy.
const patience = 20 * time.Second

func patient3(addrs []string) MemcacheOptions {
	return MemcacheOptions{Nodes: addrs, Timeout: patience, Stall: -1}
}

func TestMemcache(t *testing.T) {
	_, addrs := threeNodes(t)
	o := patient3(addrs)
	o.HashKeys = true // some of the test's keys are none that memcached takes
	testStore(t, newTestMemcache(t, o))
	o.Nodes = []string{testdb.Memcached(t, localserver.MemcachedOptions{}).Addr()}
	o.MaxIdleConns = 1
	s := newTestMemcache(t, o)
	t.Run("one node", func(t *testing.T) { testConcurrent(t, s) })
}

// settled waits until the nodes have been told of everything.
func settled(t testing.TB, s *Memcache) {
	t.Helper()
	await(t, "the queue to empty", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, n := range s.nodes {
			if len(n.due)+n.tellers > 0 {
				return false
			}
		}
		return true
	})
}

func await(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// Another client of the same list, as the replaced service has it, finds the counters where we left them,
// with their totals and an expiry; and we find its.
func TestMemcache_shared(t *testing.T) {
	_, addrs := threeNodes(t)
	s := newTestMemcache(t, patient3(addrs))
	peer := memcache.New(addrs...)
	defer peer.Close()
	peer.Timeout = patience
	for i := range 100 {
		key := fmt.Sprint("key_", i)
		if got := add(t, s, now(), h(key, uint64(i+1))); got != int64(i+1) {
			t.Errorf("%s: %d", key, got)
		}
	}
	settled(t, s)
	for i := range 100 {
		key := fmt.Sprint("key_", i)
		item, err := peer.Get(key)
		if err != nil || string(item.Value) != fmt.Sprint(i+1) {
			t.Fatalf("%s: %v %v, want %d", key, item, err, i+1)
		}
		if _, err := peer.Increment(key, 1000); err != nil {
			t.Fatal(err)
		}
		if got := add(t, s, now(), h(key, 1)); got != int64(i+1002) {
			t.Errorf("%s: %d, want %d", key, got, i+1002)
		}
	}
	settled(t, s)
	if n := s.Dropped(); n != 0 {
		t.Errorf("%d hits dropped", n)
	}
	if st := s.Stats(); st.Increment.Miss.Load() != 100 || st.Add.Success.Load() != 100 || st.Increment.Success.Load() != 100 || st.KeysFound.Load() != 100 {
		t.Errorf("%d misses, %d adds, %d increments, %d found; want 100 of each", st.Increment.Miss.Load(), st.Add.Success.Load(), st.Increment.Success.Load(), st.KeysFound.Load())
	}
}

// Two processes on the same nodes count together, and nothing is lost between them.
func TestMemcache_twoProcesses(t *testing.T) {
	_, addrs := threeNodes(t)
	a, b := newTestMemcache(t, patient3(addrs)), newTestMemcache(t, patient3(addrs))
	var wg sync.WaitGroup
	for _, s := range []*Memcache{a, b} {
		for range 8 {
			wg.Go(func() {
				for range 50 {
					req := Request{Hits: []Hit{h("hot", 2), h("hot", 1), h("other", 1)}, Now: now()}
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
	for _, s := range []*Memcache{a, b} {
		for key, want := range map[string]int64{"hot": 2400, "other": 800} {
			if got, err := s.Peek(t.Context(), []byte(key), 60); got != want || err != nil {
				t.Errorf("%s stands at %d (%v), want %d", key, got, err, want)
			}
		}
	}
}

// pick chooses as the library's own list does.
func TestRing(t *testing.T) {
	addrs := []string{"10.0.0.1:11211", "10.0.0.2:11211", "10.0.0.1:11211", "10.0.0.3:1", "10.0.0.4:1"}
	for n := 1; n <= len(addrs); n++ {
		var list memcache.ServerList
		if err := list.SetServers(addrs[:n]...); err != nil {
			t.Fatal(err)
		}
		var r ring
		for _, a := range addrs[:n] {
			r.nodes = append(r.nodes, &node{addr: nodeAddr{"tcp", a}})
		}
		for i := range 1000 {
			key := strings.Repeat("k", i%250) + fmt.Sprint(i)
			want, err := list.PickServer(key)
			if err != nil {
				t.Fatal(err)
			}
			if got := r.pick(key).addr; got.String() != want.String() {
				t.Fatalf("%d nodes: %q is on %v, the library says %v", n, key, got, want)
			}
		}
	}
}

func TestMemcacheKey(t *testing.T) {
	f := func(key, want, why string) {
		t.Helper()
		got, err := memcacheKey([]byte(key), false)
		if got != want || why != "" && fmt.Sprint(err) != "the counter key "+why || why == "" && err != nil {
			t.Errorf("%.20q: %q %v", key, got, err)
		}
		got, err = memcacheKey([]byte(key), true)
		if err != nil || (why == "") != (got == key) || keyTrouble([]byte(got)) != "" {
			t.Errorf("%.20q hashed: %q %v", key, got, err)
		}
	}
	long := strings.Repeat("x", 250)
	f("d_k_v_1700000000", "d_k_v_1700000000", "")
	f("d_k_\xff\xc3\xa9_1", "d_k_\xff\xc3\xa9_1", "")
	f(long, long, "")
	f(long+"x", "", "has 251 bytes, memcached takes at most 250")
	f("", "", "is empty")
	for _, c := range []string{" ", "\t", "\r\n", "\x00", "\x7f", "\x1f"} {
		f("a"+c+"b", "", "holds white space or a control character, which memcached does not take")
	}
	a, _ := memcacheKey([]byte("a b"), true)
	if a != "sha256:c8687a08aa5d6ed2044328fa6a697ab8e96dc34291e8c034ba24ef6fcf5da1dc" && len(a) != 71 {
		t.Errorf("%q", a)
	}
	if b, _ := memcacheKey([]byte("a c"), true); a == b {
		t.Error("two keys, one hash")
	}
	if CheckMemcachePrefix("") != nil || CheckMemcachePrefix("p_") != nil || CheckMemcachePrefix("p ") == nil {
		t.Error("CheckMemcachePrefix")
	}
}

func TestMemcacheExpiry(t *testing.T) {
	f := func(ends, now int64, want int32, alive bool) {
		t.Helper()
		if got, ok := memcacheExpiry(ends, now); got != want || ok != alive {
			t.Errorf("%d at %d: %d %v, want %d %v", ends, now, got, ok, want, alive)
		}
	}
	const day, noon = 86400, 1700000000
	f(noon+1, noon, 1, true)
	f(noon, noon, 0, false)
	f(noon-5, noon, 0, false)
	f(noon+30*day, noon, 30*day, true)
	f(noon+30*day+1, noon, noon+30*day+1, true) // a date
	f(noon+365*day, noon, noon+365*day, true)
	f(noon+100*365*day, noon, math.MaxInt32, true) // 2038
	f(math.MaxInt32+100*day, math.MaxInt32-10*day, longestRelative, true)
	f(math.MaxInt32+100*day, math.MaxInt32+10*day, longestRelative, true)
}

func FuzzMemcacheTotal(f *testing.F) {
	for _, s := range []string{"0", "17", "9  ", "18446744073709551615", "18446744073709551616", "-1", "x", "", " 1", "1\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		n, err := memcacheTotal(value)
		if n < 0 || err != nil && (n != 0 || !errors.Is(err, ErrUnavailable)) {
			t.Errorf("%q: %d %v", value, n, err)
		}
		digits := bytes.TrimRight(value, " ")
		if err == nil && (len(digits) == 0 || len(bytes.Trim(digits, "0123456789")) > 0) {
			t.Errorf("%q is read as %d", value, n)
		}
	})
}

// Long windows: memcached takes more than 30 days for a date.
func TestMemcache_longWindows(t *testing.T) {
	server := testdb.Memcached(t, localserver.MemcachedOptions{})
	o := patient3([]string{server.Addr()})
	o.JitterMax = 300
	s := newTestMemcache(t, o)
	f := func(key string, window, left int64) {
		t.Helper()
		hit := func() Hit { return Hit{Key: []byte(key), N: 1, Limit: 10, Window: window, End: now() + left} }
		add(t, s, now(), hit())
		settled(t, s)
		if got := add(t, s, now(), hit()); got != 2 {
			t.Errorf("%s: %d, want 2: the first is gone", key, got)
		}
		settled(t, s)
		// "me" tells the time to live in seconds, as a negative number.
		var ttl int64
		if _, err := fmt.Sscanf(metaDebug(t, server.Addr(), key), "exp=-%d", &ttl); err != nil || ttl < left-60 || ttl > left+5+300+1 {
			t.Errorf("%s lives for %d s (%v), want about %d", key, ttl, err, left+5)
		}
	}
	f("second", 1, 100)
	f("month", 30*86400, 30*86400)
	f("year", 365*86400, 300*86400)
}

// metaDebug is what memcached's meta debug command says of a key, from exp= on.
func metaDebug(t *testing.T, addr, key string) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "me %s\r\n", key)
	buf := make([]byte, 1000)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(buf[:n]), " ")
	if i := strings.Index(after, "exp="); i >= 0 {
		return after[i:]
	}
	t.Fatalf("me answers %q", buf[:n])
	return ""
}

// A bad key fails alone: its request's other hits are counted.
func TestMemcache_badKey(t *testing.T) {
	_, addrs := threeNodes(t)
	s := newTestMemcache(t, patient3(addrs))
	for _, stop := range []bool{false, true} {
		good := fmt.Sprint("good", stop)
		for round := range 3 {
			req := Request{Hits: []Hit{h(good, 1), h("has space", 1), h(strings.Repeat("x", 251), 1), h(good, 1)}, Now: now(), Stop: stop}
			if err := s.Add(t.Context(), &req); !errors.Is(err, ErrPartial) {
				t.Fatalf("%v, want ErrPartial", err)
			}
			for i := range req.Hits {
				_, bad := errors.AsType[*KeyError](req.Hits[i].Err)
				if bad != (i == 1 || i == 2) || !bad && req.Hits[i].Err != nil {
					t.Errorf("hit %d: %v", i, req.Hits[i].Err)
				}
			}
			if a, b := req.Hits[0].After, req.Hits[3].After; a != int64(2*round+1) || b != a+1 {
				t.Errorf("totals %d %d in round %d", a, b, round)
			}
		}
	}
	if err := s.Add(t.Context(), &Request{Hits: []Hit{h("a b", 1)}, Now: now()}); !errors.Is(err, ErrPartial) {
		t.Errorf("%v", err)
	}
	if _, err := s.Peek(t.Context(), []byte("a b"), 60); err == nil || err.Error() != "the counter key holds white space or a control character, which memcached does not take" {
		t.Errorf("Peek: %v", err)
	}
}

// A counter that is no number fails those who ask for it, and nobody else; a padded or huge one does not.
func TestMemcache_foreignValue(t *testing.T) {
	server := testdb.Memcached(t, localserver.MemcachedOptions{})
	s := newTestMemcache(t, patient3([]string{server.Addr()}))
	peer := memcache.New(server.Addr())
	defer peer.Close()
	for key, value := range map[string]string{"text": "secret words", "padded": "10", "huge": "18446744073709551614"} {
		if err := peer.Set(&memcache.Item{Key: key, Value: []byte(value)}); err != nil {
			t.Fatal(err)
		}
	}
	peer.Decrement("padded", 1)
	if got := add(t, s, now(), h("padded", 1)); got != 10 {
		t.Errorf("padded: %d, want 10", got)
	}
	if got := add(t, s, now(), h("huge", 1)); got != math.MaxInt64 {
		t.Errorf("huge: %d, want 2^63-1", got)
	}
	for range 2 * breakerFailures {
		req := Request{Hits: []Hit{h("good", 1), h("text", 1)}, Now: now()}
		if err := s.Add(t.Context(), &req); !errors.Is(err, ErrPartial) || req.Hits[0].Err != nil || !errors.Is(req.Hits[1].Err, ErrUnavailable) {
			t.Fatalf("%v %v %v", err, req.Hits[0].Err, req.Hits[1].Err)
		}
	}
	if got := add(t, s, now(), h("good", 1)); got != 2*breakerFailures+1 {
		t.Errorf("good: %d", got)
	}
	if _, lost := s.Nodes(); lost != 0 {
		t.Error("the breaker has opened: the node is sound")
	}
}

// One of three nodes is killed: its keys fail at once, the others count on, and when it is back its
// counters begin at 0.
func TestMemcache_nodeKilled(t *testing.T) {
	servers, addrs := threeNodes(t)
	s := newTestMemcache(t, MemcacheOptions{Nodes: addrs, Timeout: 5 * time.Second, Stall: -1})
	on := func(i int) (keys []string) {
		for k := 0; len(keys) < 5; k++ {
			if key := fmt.Sprint("k", k); s.ring.Load().pick(key).addr.text == addrs[i] {
				keys = append(keys, key)
			}
		}
		return keys
	}
	keys := [][]string{on(0), on(1), on(2)}
	for _, ks := range keys {
		for _, k := range ks {
			add(t, s, now(), h(k, 1))
		}
	}
	settled(t, s)
	servers[1].Kill()
	want := int64(1)
	for round := range 20 {
		want++
		req := Request{Hits: []Hit{h(keys[0][0], 1), h(keys[1][0], 1), h(keys[2][0], 1)}, Now: now(), Stop: round%2 == 1}
		for i := range req.Hits {
			req.Hits[i].Limit = 1000
		}
		if err := s.Add(t.Context(), &req); !errors.Is(err, ErrPartial) {
			t.Fatalf("round %d: %v, want ErrPartial", round, err)
		}
		if e := req.Hits[1].Err; !errors.Is(e, ErrUnavailable) && !errors.Is(e, ErrOpen) {
			t.Errorf("the dead node's: %v", e)
		}
		if req.Hits[0].Err != nil || req.Hits[2].Err != nil || req.Hits[0].After != want || req.Hits[2].After != want {
			t.Errorf("round %d: the others' %v %v, %d %d; want %d", round, req.Hits[0].Err, req.Hits[2].Err, req.Hits[0].After, req.Hits[2].After, want)
		}
	}
	if err := s.Add(t.Context(), &Request{Hits: []Hit{h(keys[1][1], 1)}, Now: now()}); !errors.Is(err, ErrOpen) {
		t.Errorf("a request for the dead node alone: %v, want ErrOpen after so many failures", err)
	}
	if all, lost := s.Nodes(); all != 3 || lost != 1 {
		t.Errorf("%d nodes, %d lost; want 3 and 1", all, lost)
	}
	if err := servers[1].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "the node to be found again", func() bool { _, lost := s.Nodes(); return lost == 0 })
	if got := add(t, s, now(), h(keys[1][0], 1)); got != 1 {
		t.Errorf("%d, want 1 from an empty node", got)
	}
	if got := add(t, s, now(), h(keys[0][0], 1)); got != want+1 {
		t.Errorf("%d, want %d", got, want+1)
	}
}

// A node that was restarted while its connections rested fails nobody.
func TestMemcache_restarted(t *testing.T) {
	server := testdb.Memcached(t, localserver.MemcachedOptions{})
	s := newTestMemcache(t, patient3([]string{server.Addr()}))
	add(t, s, now(), h("a", 1))
	settled(t, s)
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := add(t, s, now(), h("a", 1)); got != 1 {
		t.Errorf("%d, want 1", got)
	}
	settled(t, s)
	if got, err := s.Peek(t.Context(), []byte("a"), 60); got != 1 || err != nil || s.Dropped() != 0 {
		t.Errorf("stands at %d (%v), %d dropped", got, err, s.Dropped())
	}
}

// A node that says nothing: callers leave by their deadline, and all who wait when its breaker opens
// are answered then.
func TestMemcache_stopped(t *testing.T) {
	server := testdb.Memcached(t, localserver.MemcachedOptions{})
	other := testdb.Memcached(t, localserver.MemcachedOptions{})
	o := MemcacheOptions{Nodes: []string{server.Addr(), other.Addr()}, Timeout: patience, Stall: -1}
	s := newTestMemcache(t, o)
	var key, fine string
	for i := 0; key == "" || fine == ""; i++ {
		k := fmt.Sprint("k", i)
		if s.ring.Load().pick(k).addr.text == server.Addr() {
			key = k
		} else {
			fine = k
		}
	}
	add(t, s, now(), h(key, 1))
	settled(t, s)
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	// A caller who leaves while one node is silent: the other one's hit is counted.
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		await(t, "the other node's answer", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.nodes[0].out) == 1 && s.stats.Multiget.Success.Load() == 2
		})
	}()
	req := Request{Hits: []Hit{h(key, 1), h(fine, 1)}, Now: now()}
	if err := s.Add(ctx, &req); !errors.Is(err, ErrPartial) || !errors.Is(req.Hits[0].Err, ErrTimeout) || req.Hits[1].After != 1 {
		t.Errorf("%v: %v, %d; want the other node's hit counted", err, req.Hits[0].Err, req.Hits[1].After)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Add(ctx, &Request{Hits: []Hit{h(key, 1)}, Now: now()}); !errors.Is(err, ErrTimeout) {
		t.Errorf("its time was up: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if err := s.Add(ctx, &Request{Hits: []Hit{h(key, 1)}, Now: now()}); !errors.Is(err, ErrTimeout) {
		t.Errorf("canceled: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), -time.Second)
	defer cancel()
	if err := s.Add(ctx, &Request{Hits: []Hit{h(key, 1)}, Now: now()}); !errors.Is(err, ErrTimeout) {
		t.Errorf("too late: %v", err)
	}
	o.Stall = 100 * time.Millisecond
	stalls := newTestMemcache(t, o)
	var open atomic.Int64
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if err := stalls.Add(context.Background(), &Request{Hits: []Hit{h(key, 1)}, Now: now()}); errors.Is(err, ErrOpen) {
				open.Add(1)
			} else {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if open.Load() != 20 {
		t.Errorf("%d answered by the breaker, want 20", open.Load())
	}
	if err := server.Cont(); err != nil {
		t.Fatal(err)
	}
	await(t, "the node to be found again", func() bool { _, lost := stalls.Nodes(); return lost == 0 })
	again := Request{Hits: []Hit{h(key, 1)}, Now: now()}
	await(t, "an answer within the stall", func() bool { return stalls.Add(context.Background(), &again) == nil })
	if got := again.Hits[0].After; got != 2 {
		t.Errorf("%d, want 2: of those who left none is counted", got)
	}
	// Those who left let go of what they looked at.
	await(t, "the look-ups of those who left to end", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.nodes[0].tallies)+len(s.nodes[0].out)+len(s.nodes[0].looks) == 0
	})
}

// The queue is bounded; what does not fit is answered, dropped and counted.
func TestMemcache_queueFull(t *testing.T) {
	server := testdb.Memcached(t, localserver.MemcachedOptions{})
	o := patient3([]string{server.Addr()})
	o.QueueSize = 3
	s := newTestMemcache(t, o)
	var hits []Hit
	for i := range 10 {
		hits = append(hits, h(fmt.Sprint("k", i), 5))
	}
	req := Request{Hits: hits, Now: now()}
	if err := s.Add(t.Context(), &req); err != nil { // one lock from the first to the last: nobody takes from the queue
		t.Fatal(err)
	}
	for i := range hits {
		if hits[i].After != 5 {
			t.Errorf("hit %d: %d", i, hits[i].After)
		}
	}
	settled(t, s)
	if n := s.Dropped(); n != 7*5 {
		t.Errorf("%d hits dropped, want 35", n)
	}
	var totals []int64
	for i := range 10 {
		n, err := s.Peek(t.Context(), []byte(fmt.Sprint("k", i)), 60)
		if err != nil {
			t.Fatal(err)
		}
		totals = append(totals, n)
	}
	if d := cmp.Diff([]int64{5, 5, 5, 0, 0, 0, 0, 0, 0, 0}, totals); d != "" {
		t.Error(d)
	}
	if s.Waiting() != 0 {
		t.Errorf("%d wait", s.Waiting())
	}
}

// Close waits for what is owed.
func TestMemcache_closeTells(t *testing.T) {
	_, addrs := threeNodes(t)
	s := newTestMemcache(t, patient3(addrs))
	var hits []Hit
	for i := range 200 {
		hits = append(hits, h(fmt.Sprint("k", i), 1))
	}
	if err := s.Add(t.Context(), &Request{Hits: hits, Now: now()}); err != nil {
		t.Fatal(err)
	}
	s.Close()
	again := newTestMemcache(t, patient3(addrs))
	for i := range hits {
		hits[i].N = 0
	}
	if err := again.Add(t.Context(), &Request{Hits: hits, Now: now()}); err != nil {
		t.Fatal(err)
	}
	for i := range hits {
		if hits[i].After != 1 {
			t.Errorf("%s stands at %d, want 1", hits[i].Key, hits[i].After)
		}
	}
	if s.Dropped() != 0 {
		t.Errorf("%d dropped", s.Dropped())
	}
	if err := s.Add(t.Context(), &Request{Hits: hits, Now: now()}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("after Close: %v", err)
	}
}

// At rest no more connections than MaxIdleConns are kept for look-ups, and a hot counter costs few of them.
func TestMemcache_hotKey(t *testing.T) {
	server := testdb.Memcached(t, localserver.MemcachedOptions{})
	o := patient3([]string{server.Addr()})
	o.MaxIdleConns = 3
	s := newTestMemcache(t, o)
	if err := server.Stop(); err != nil { // all arrive before the first is answered
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			if err := s.Add(context.Background(), &Request{Hits: []Hit{h("hot", 1)}, Now: now()}); err != nil {
				t.Error(err)
			}
		})
	}
	await(t, "all to have asked", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.nodes[0].tallies) == 1 && s.nodes[0].tallies["hot"].pins == 64
	})
	if err := server.Cont(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	settled(t, s)
	if got, _ := s.Peek(t.Context(), []byte("hot"), 60); got != 64 {
		t.Errorf("stands at %d, want 64", got)
	}
	st := s.Stats()
	if looks := st.KeysRequested.Load(); looks > 8 {
		t.Errorf("%d look-ups for 64 hits at once", looks)
	}
	s.nodes[0].teller.Close()
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

// Nodes that are killed, frozen and restarted at random under load: callers get an answer or a reason,
// totals never pass what was sent, and afterwards nothing is left behind.
func TestMemcache_chaos(t *testing.T) {
	servers, addrs := threeNodes(t)
	s := newTestMemcache(t, MemcacheOptions{Nodes: addrs, Timeout: 200 * time.Millisecond, Stall: 50 * time.Millisecond})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var sent [8]atomic.Int64 // by key
	var answered, failed atomic.Int64
	for g := range 16 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				a, b := (g+i)%len(sent), (g+3*i+1)%len(sent)
				sent[a].Add(1)
				sent[b].Add(1)
				ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
				req := Request{Hits: []Hit{limit(1<<40, h(fmt.Sprint("chaos", a), 1)), limit(1<<40, h(fmt.Sprint("chaos", b), 1))}, Now: now(), Stop: i%4 == 0}
				err := s.Add(ctx, &req)
				cancel()
				for j, key := range []int{a, b} {
					switch e := req.Hits[j].Err; {
					case err != nil && !errors.Is(err, ErrPartial), err != nil && e != nil:
						failed.Add(1)
						if e == nil {
							e = err
						}
						if !errors.Is(e, ErrUnavailable) && !errors.Is(e, ErrTimeout) && !errors.Is(e, ErrOpen) {
							t.Errorf("an error that says nothing: %v", e)
						}
					default:
						answered.Add(1)
						if got, most := req.Hits[j].After, sent[key].Load(); got < 1 || got > most {
							t.Errorf("key %d: total %d of %d sent", key, got, most)
						}
					}
				}
			}
		})
	}
	for end := time.Now().Add(chaos.Time(t, 2*time.Second)); time.Now().Before(end); {
		server := servers[rand.IntN(len(servers))]
		if rand.IntN(2) == 0 {
			server.Kill()
			time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
			if err := server.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		} else {
			server.Stop()
			time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond)
			server.Cont()
		}
		time.Sleep(time.Duration(rand.IntN(50)) * time.Millisecond)
	}
	close(stop)
	wg.Wait()
	t.Logf("%d hits answered, %d failed, %d dropped", answered.Load(), failed.Load(), s.Dropped())
	if answered.Load() == 0 {
		t.Error("nothing was answered")
	}
	await(t, "all nodes to be found again, and told of everything", func() bool {
		_, lost := s.Nodes()
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, n := range s.nodes {
			lost += int64(len(n.due) + n.tellers + n.lookers + len(n.out) + len(n.looks) + len(n.tallies))
		}
		return lost == 0 && s.waiting == 0
	})
	for i := range sent {
		await(t, "an answer", func() bool {
			_, err := s.Peek(context.Background(), fmt.Appendf(nil, "chaos%d", i), 60)
			return err == nil
		})
	}
}

func BenchmarkMemcache(b *testing.B) {
	server := testdb.Memcached(b, localserver.MemcachedOptions{})
	s, err := NewMemcache(b.Context(), patient3([]string{server.Addr()}))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	b.ReportAllocs()
	b.SetParallelism(128)
	var next atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		g := next.Add(1)
		for i := 0; pb.Next(); i++ {
			hits := [1]Hit{h(fmt.Sprint("k", (g*7919+int64(i))%10_000), 1)}
			req := Request{Hits: hits[:], Now: now()}
			if err := s.Add(context.Background(), &req); err != nil || req.Hits[0].After < 1 {
				b.Error(err)
				return
			}
		}
	})
}

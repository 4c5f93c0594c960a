package redis

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/countertest"
	"gatehouse/ratelimit/internal/counter/link"
	"gatehouse/shared/await"
	"gatehouse/shared/chaos"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

func TestCluster(t *testing.T) {
	cluster := testdb.Cluster(t)
	for _, parallelism := range []int{1, 0} {
		t.Run(fmt.Sprint("parallelism=", parallelism), func(t *testing.T) {
			must.Succeed(t, cluster.Flush(t.Context()))
			countertest.Run(t, func(t *testing.T) counter.Store {
				return openTest(t,
					Options{Settings: Settings{Type: InCluster, URL: cluster.Nodes[0].Addr(), Parallelism: parallelism},
						Stall: -1})
			})
		})
	}
}

// tagIn is a hash tag whose keys are in the slots first to last.
func tagIn(first, last, n int) string {
	for i := 0; ; i++ {
		tag := fmt.Sprintf("{t%d}", i)
		if slot := int(slotOf([]byte(tag))); slot >= first && slot <= last {
			if n == 0 {
				return tag
			}
			n--
		}
	}
}

// moving is how many slots TestCluster_reshard moves: the first ones.
const moving = 1000

// tagsOfNodes are hash tags of the three masters, one each.
func tagsOfNodes() (tags [3]string) {
	for i := range tags {
		tags[i] = tagIn(i*slots/3+moving, (i+1)*slots/3-1, 0)
	}
	return tags
}

// resharder moves slots from one node to another as redis-cli does, key by key.
type resharder struct {
	t            *testing.T
	cluster      *localserver.Cluster
	from, to     *localserver.Server
	fromID, toID string
}

func newResharder(t *testing.T, c *localserver.Cluster, from, to *localserver.Server) resharder {
	r := resharder{t: t, cluster: c, from: from, to: to}
	r.fromID, r.toID = strings.TrimSpace(r.do(from, "CLUSTER", "MYID")), strings.TrimSpace(r.do(to, "CLUSTER", "MYID"))
	return r
}

// move moves one slot; between is called while it is half moved.
func (r resharder) move(slot int, between func()) {
	n := strconv.Itoa(slot)
	r.do(r.to, "CLUSTER", "SETSLOT", n, "IMPORTING", r.fromID)
	r.do(r.from, "CLUSTER", "SETSLOT", n, "MIGRATING", r.toID)
	host, port, _ := strings.Cut(r.to.Addr(), ":")
	for first := true; ; first = false {
		keys := strings.Fields(r.do(r.from, "CLUSTER", "GETKEYSINSLOT", n, "1"))
		if len(keys) == 0 {
			break
		}
		if first {
			between()
		}
		r.do(r.from, "MIGRATE", host, port, keys[0], "0", "5000")
		between()
	}
	r.do(r.to, "CLUSTER", "SETSLOT", n, "NODE", r.toID)
	r.do(r.from, "CLUSTER", "SETSLOT", n, "NODE", r.toID)
}

func (r resharder) do(s *localserver.Server, args ...string) string {
	r.t.Helper()
	text, err := r.cluster.Do(r.t.Context(), s, args...)
	if err != nil {
		r.t.Fatalf("%q: %v", args, err)
	}
	return text
}

// A thousand slots change their master under load: no call fails, no total is returned twice or left out, no hit
// passes beyond a limit.
func TestCluster_reshard(t *testing.T) {
	cluster := testdb.Cluster(t)
	s := openTest(t, Options{Settings: Settings{Type: InCluster, URL: cluster.URL(), Parallelism: 2}, Stall: -1})
	from, to := cluster.Nodes[0], cluster.Nodes[1]
	const limitOf = 200

	var tags []string // of slots on the move
	for i := range 20 {
		tags = append(tags, tagIn(0, moving-1, i*5))
	}
	stays := tagsOfNodes()[2]
	var mu sync.Mutex
	seen := map[string]map[int64]bool{} // the totals returned for each counter
	passed := map[string]int{}          // hits within the limit
	var failed, calls atomic.Int64
	var done atomic.Bool
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for i := g; !done.Load(); i++ {
				tag := tags[i%len(tags)]
				stop := i%3 == 0
				key, beside, far := tag+"count", tag+"beside", stays
				if stop { // counters of their own: what is given back makes totals that were returned before
					key, beside, far = tag+"stop", tag+"besidestop", stays+"stop"
				}
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				req := &counter.Request{Hits: []counter.Hit{limit(limitOf, h(key, 1)), limit(1<<40, h(beside, 1)),
					limit(1<<40, h(far, 1))}, Now: now(), Stop: counter.StopWhen(stop)}
				err := s.Add(ctx, req)
				cancel()
				if calls.Add(1); err != nil {
					failed.Add(1)
					t.Error(err)
					time.Sleep(50 * time.Millisecond)
					continue
				}
				mu.Lock()
				if after := req.Hits[0].After; after <= limitOf {
					passed[key]++
				}
				for _, h := range req.Hits {
					if h.Spared || stop {
						continue
					}
					if seen[string(h.Key)] == nil {
						seen[string(h.Key)] = map[int64]bool{}
					}
					if seen[string(h.Key)][h.After] {
						t.Errorf("%s: the total %d is told twice", h.Key, h.After)
					}
					seen[string(h.Key)][h.After] = true
				}
				mu.Unlock()
				time.Sleep(time.Millisecond)
			}
		})
	}
	defer wg.Wait()
	defer done.Store(true)
	hot := map[int]bool{}
	for _, tag := range tags {
		hot[int(slotOf([]byte(tag)))] = true
	}
	there, back := newResharder(t, cluster, from, to), newResharder(t, cluster, to, from)
	begun := time.Now()
	for slot := range moving {
		there.move(slot, func() { time.Sleep(5 * time.Millisecond) })
	}
	t.Logf("%d slots moved in %v, %d calls meanwhile", moving, time.Since(begun).Round(time.Millisecond), calls.Load())
	// And a few back again, to a node that has seen their keys before.
	for slot := range hot {
		back.move(slot, func() { time.Sleep(time.Millisecond) })
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		mu.Lock()
		full := 0
		for _, n := range passed {
			if n == limitOf {
				full++
			}
		}
		mu.Unlock()
		if full == 2*len(tags) || time.Now().After(end) {
			break
		}
	}
	done.Store(true)
	wg.Wait()
	for _, tag := range tags {
		for _, key := range []string{tag + "count", tag + "stop"} {
			if passed[key] != limitOf {
				t.Errorf("%s: %d hits passed the limit of %d", key, passed[key], limitOf)
			}
		}
		// The counter next to one that stops has grown with what passed, and with nothing else.
		if total, err := countertest.Peek(t.Context(), s, tag+"besidestop"); err != nil || total != limitOf {
			t.Errorf("%sbesidestop: %d, %v; want %d", tag, total, err, limitOf)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(seen)) {
		if strings.HasSuffix(key, "count") {
			for n := range int64(len(seen[key])) {
				if !seen[key][n+1] {
					t.Errorf("%s: nobody was told the total %d of %d", key, n+1, len(seen[key]))
					break
				}
			}
		}
	}
	for _, n := range cluster.Nodes[:3] {
		immortal(t, redisClient(t, n.Addr(), 0))
	}
	told := there.do(from, "INFO", "errorstats")
	t.Logf("%d calls, %d failed; the server told %q", calls.Load(), failed.Load(), told)
	if !strings.Contains(told, "errorstat_MOVED") || !strings.Contains(told, "errorstat_ASK") {
		t.Error("nobody was redirected: too quiet to prove anything")
	}
}

// A master killed under load: its replica counts in its place, and the keys of the others fail for the
// shortest time only (a cluster is down as a whole until the replica is elected).
func TestCluster_failover(t *testing.T) {
	cluster := testdb.Cluster(t)
	const nodeTimeout = time.Second
	setTimeout := func(d time.Duration) {
		for _, n := range cluster.Nodes {
			must.Succeed(t, must.ErrOf(cluster.Do(t.Context(), n, "CONFIG", "SET", "cluster-node-timeout",
				strconv.FormatInt(d.Milliseconds(), 10))))
		}
	}
	setTimeout(nodeTimeout)
	s := openTest(t, Options{Settings: Settings{Type: InCluster, URL: cluster.URL(), Timeout: time.Second}})
	const deadline = 400 * time.Millisecond
	l := startLoad(s, 32, deadline, time.Millisecond)
	l.awaitOK(t, time.Now())
	works := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		for _, tag := range tagsOfNodes() {
			if s.Add(ctx, &counter.Request{Hits: []counter.Hit{h(tag, 1)}, Now: now()}) != nil {
				return false
			}
		}
		return true
	}
	if !works() {
		t.Fatal("a key of each node cannot be counted")
	}
	f := func(how string, gone, replica *localserver.Server, away, back func() error) {
		begun := time.Now()
		must.Succeed(t, away())
		await.True(t, "election", func() bool {
			role, err := cluster.Do(t.Context(), replica, "ROLE")
			return err == nil && strings.HasPrefix(role, "master")
		})
		elected := time.Since(begun)
		await.True(t, "normal answers", works)
		took := time.Since(begun)
		t.Logf("%s: another master after %v, all keys count after %v", how, elected.Round(time.Millisecond),
			took.Round(time.Millisecond))
		must.Succeed(t, back())
		must.Succeed(t, cluster.Await(t.Context(), "cluster_state:ok"))
		must.Succeed(t, cluster.AwaitReplica(t.Context(), gone))
	}
	master, replica := cluster.Nodes[2], cluster.Nodes[5]
	for rounds, end := 0, time.Now().Add(chaos.Time(t, 0)); rounds < 1 || time.Now().Before(end); rounds++ {
		f("killed", master, replica, func() error { master.Kill(); return nil },
			func() error { return master.Restart(t.Context()) })
		f("frozen", replica, master, replica.Stop, replica.Cont)
	}
	l.end()
	total, err := countertest.Peek(t.Context(), s, "hot")
	t.Logf("%d OK, %d failed, %d late, slowest %v, total %d; %v", l.ok.Load(), l.failed.Load(), l.late.Load(),
		time.Duration(l.slowest.Load()), total, l.errors)
	if err != nil || total > l.ok.Load()+l.failed.Load() {
		t.Errorf("total %d (%v) of %d hits: some count twice", total, err, l.ok.Load()+l.failed.Load())
	}
	if total := slidingTotal(t, s); total > l.ok.Load()+l.failed.Load() {
		t.Errorf("sliding window at %d of %d hits: some count twice", total, l.ok.Load()+l.failed.Load())
	}
	for text := range l.errors {
		for _, word := range []string{"READONLY", "MOVED", "ASK", "CLUSTERDOWN"} {
			if strings.Contains(text, word) {
				t.Errorf("a caller was told %q", text)
			}
		}
	}
	setTimeout(15 * time.Second)
}

// A node that is lost fails its own hits; the others of the request are counted. Under the stop option the
// request fails as a whole, and nothing is counted.
func TestCluster_partial(t *testing.T) {
	cluster := testdb.Cluster(t)
	for _, parallelism := range []int{1, 0} {
		must.Succeed(t, cluster.Flush(t.Context()))
		s := openTest(t, Options{Settings: Settings{Type: InCluster, URL: cluster.URL(), Parallelism: parallelism},
			Stall: -1}).(*Cluster)
		tags := tagsOfNodes()
		hits := func() []counter.Hit { return []counter.Hit{h(tags[0]+"p", 1), h(tags[1]+"p", 1), h(tags[0]+"q", 2)} }
		lost := s.slots[slotOf([]byte(tags[1]))].Load()
		for range link.BreakerFailures {
			lost.server.breaker.Failed(1 << 60) // no probe
		}
		req := &counter.Request{Hits: hits(), Now: now()}
		if err := s.Add(t.Context(), req); err != counter.ErrPartial {
			t.Fatalf("%v, want ErrPartial", err)
		}
		for i, want := range []error{nil, counter.ErrOpen, nil} {
			if req.Hits[i].Err != want {
				t.Errorf("hit %d: %v, want %v", i, req.Hits[i].Err, want)
			}
		}
		if req.Hits[0].After != 1 || req.Hits[2].After != 2 {
			t.Errorf("totals %d and %d, want 1 and 2", req.Hits[0].After, req.Hits[2].After)
		}
		req = &counter.Request{Hits: hits(), Now: now(), Stop: counter.StopAll}
		if err := s.Add(t.Context(), req); err != counter.ErrOpen {
			t.Errorf("the stop option: %v, want ErrOpen", err)
		}
		if err := s.Add(t.Context(), &counter.Request{Hits: hits()[1:2], Now: now()}); err != counter.ErrOpen {
			t.Errorf("alone: %v, want ErrOpen", err)
		}
		lost.server.breaker.Probed(true)
		req = &counter.Request{Hits: hits(), Now: now()}
		if err := s.Add(t.Context(), req); err != nil || req.Hits[0].After != 2 || req.Hits[1].After != 1 {
			t.Errorf("afterwards: %v %+v", err, req.Hits)
		}
	}
}

// A node that is retired, since it has had no slot for a while, fails no call that is about to use it.
func TestCluster_retire(t *testing.T) {
	s := openTest(t, Options{Settings: Settings{Type: InCluster, URL: testdb.Cluster(t).URL()}, Stall: -1}).(*Cluster)
	tags := tagsOfNodes()
	for i := range 5 {
		for _, stop := range []bool{false, true} {
			s.mu.Lock()
			old := slices.Collect(maps.Values(s.nodes))
			for _, n := range old {
				n.wanted = time.Now().Add(-2 * unwanted)
			}
			s.mu.Unlock()
			s.retire()
			for _, n := range old { // hits that are out just then are lost, which after half a minute there are none of
				s.mu.Lock()
				stays := s.nodes[n.addr] == n // it was wanted again at that moment
				s.mu.Unlock()
				if !stays {
					<-n.server.ctx.Done()
				}
			}
			req := &counter.Request{Hits: []counter.Hit{h(tags[0], 1), h(tags[1], 1), h(tags[2], 1)}[:1+i%3],
				Now:  now(),
				Stop: counter.StopWhen(stop)}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			if err := s.Add(ctx, req); err != nil {
				t.Errorf("round %d, stop %v: %v", i, stop, err)
			}
			cancel()
		}
	}
}

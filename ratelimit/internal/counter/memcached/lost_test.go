package memcached

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/countertest"
	"gatehouse/shared/await"
	"gatehouse/shared/chaos"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// One of three nodes is killed: its keys fail at once, the others count on, and when it is back its
// counters begin at 0.
func TestMemcache_nodeKilled(t *testing.T) {
	servers, addrs := threeNodes(t)
	s := newTestMemcache(t, Options{Settings: Settings{Nodes: addrs, Timeout: 5 * time.Second}, Stall: -1})
	on := func(i int) (keys []string) {
		for k := 0; len(keys) < 5; k++ {
			if key := fmt.Sprint("k", k); s.ring.Load().pick(key).addr.Addr == addrs[i] {
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
		req := counter.Request{Hits: []counter.Hit{h(keys[0][0], 1), h(keys[1][0], 1), h(keys[2][0], 1)}, Now: now(),
			Stop: counter.StopWhen(round%2 == 1)}
		for i := range req.Hits {
			req.Hits[i].Limit = 1000
		}
		if err := s.Add(t.Context(), &req); !errors.Is(err, counter.ErrPartial) {
			t.Fatalf("round %d: %v, want ErrPartial", round, err)
		}
		if e := req.Hits[1].Err; !errors.Is(e, counter.ErrUnavailable) && !errors.Is(e, counter.ErrOpen) {
			t.Errorf("the dead node's: %v", e)
		}
		if req.Hits[0].Err != nil || req.Hits[2].Err != nil || req.Hits[0].After != want || req.Hits[2].After != want {
			t.Errorf("round %d: the others' %v %v, %d %d; want %d", round, req.Hits[0].Err, req.Hits[2].Err,
				req.Hits[0].After, req.Hits[2].After, want)
		}
	}
	if err := s.Add(t.Context(), &counter.Request{Hits: []counter.Hit{h(keys[1][1], 1)}, Now: now()}); !errors.Is(err,
		counter.ErrOpen) {
		t.Errorf("a request for the dead node alone: %v, want ErrOpen after so many failures", err)
	}
	if all, lost := s.Nodes(); all != 3 || lost != 1 {
		t.Errorf("%d nodes, %d lost; want 3 and 1", all, lost)
	}
	must.Succeed(t, servers[1].Restart(t.Context()))
	await.True(t, "the node to be found again", func() bool { _, lost := s.Nodes(); return lost == 0 })
	if got := add(t, s, now(), h(keys[1][0], 1)); got != 1 {
		t.Errorf("%d, want 1 from an empty node", got)
	}
	if got := add(t, s, now(), h(keys[0][0], 1)); got != want+1 {
		t.Errorf("%d, want %d", got, want+1)
	}
}

// A node that was restarted while its connections were idle fails no request.
func TestMemcache_restarted(t *testing.T) {
	server := testdb.Memcached(t, localserver.MemcachedOptions{})
	s := newTestMemcache(t, patient3([]string{server.Addr()}))
	add(t, s, now(), h("a", 1))
	settled(t, s)
	must.Succeed(t, server.Restart(t.Context()))
	if got := add(t, s, now(), h("a", 1)); got != 1 {
		t.Errorf("%d, want 1", got)
	}
	settled(t, s)
	if got, err := countertest.Peek(t.Context(), s, "a"); got != 1 || err != nil || s.Dropped() != 0 {
		t.Errorf("stands at %d (%v), %d dropped", got, err, s.Dropped())
	}
}

// A node that does not answer: callers leave at their deadline, and all that wait when its breaker opens are answered
// then.
func TestMemcache_stopped(t *testing.T) {
	server := testdb.Memcached(t, localserver.MemcachedOptions{})
	other := testdb.Memcached(t, localserver.MemcachedOptions{})
	o := Options{Settings: Settings{Nodes: []string{server.Addr(), other.Addr()}, Timeout: patience}, Stall: -1}
	s := newTestMemcache(t, o)
	var key, fine string
	for i := 0; key == "" || fine == ""; i++ {
		k := fmt.Sprint("k", i)
		if s.ring.Load().pick(k).addr.Addr == server.Addr() {
			key = k
		} else {
			fine = k
		}
	}
	add(t, s, now(), h(key, 1))
	settled(t, s)
	must.Succeed(t, server.Stop())
	// A caller that leaves while one node does not answer: the hit on the other node is counted.
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		await.True(t, "the other node's answer", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.nodes[0].out) == 1 && s.stats.Multiget.Success.Load() == 2
		})
	}()
	req := counter.Request{Hits: []counter.Hit{h(key, 1), h(fine, 1)}, Now: now()}
	if err := s.Add(ctx, &req); !errors.Is(err, counter.ErrPartial) ||
		!errors.Is(req.Hits[0].Err, counter.ErrTimeout) ||
		req.Hits[1].After != 1 {
		t.Errorf("%v: %v, %d; want the other node's hit counted", err, req.Hits[0].Err, req.Hits[1].After)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Add(ctx, &counter.Request{Hits: []counter.Hit{h(key, 1)}, Now: now()}); !errors.Is(err,
		counter.ErrTimeout) {
		t.Errorf("its time was up: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if err := s.Add(ctx, &counter.Request{Hits: []counter.Hit{h(key, 1)}, Now: now()}); !errors.Is(err,
		counter.ErrTimeout) {
		t.Errorf("canceled: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), -time.Second)
	defer cancel()
	if err := s.Add(ctx, &counter.Request{Hits: []counter.Hit{h(key, 1)}, Now: now()}); !errors.Is(err,
		counter.ErrTimeout) {
		t.Errorf("too late: %v", err)
	}
	o.Stall = 100 * time.Millisecond
	stalls := newTestMemcache(t, o)
	var open atomic.Int64
	await.Together(20, func(int) {
		if err := stalls.Add(context.Background(),
			&counter.Request{Hits: []counter.Hit{h(key, 1)}, Now: now()}); errors.Is(err, counter.ErrOpen) {
			open.Add(1)
		} else {
			t.Error(err)
		}
	})
	if open.Load() != 20 {
		t.Errorf("%d answered by the breaker, want 20", open.Load())
	}
	must.Succeed(t, server.Cont())
	await.True(t, "the node to be found again", func() bool { _, lost := stalls.Nodes(); return lost == 0 })
	again := counter.Request{Hits: []counter.Hit{h(key, 1)}, Now: now()}
	await.True(t, "an answer within the stall", func() bool { return stalls.Add(context.Background(), &again) == nil })
	if got := again.Hits[0].After; got != 2 {
		t.Errorf("%d, want 2: of those who left none is counted", got)
	}
	// Calls that ended early have released their local counts.
	await.True(t, "the look-ups of those who left to end", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.nodes[0].counts)+len(s.nodes[0].out)+len(s.nodes[0].lookups) == 0
	})
}

// The queue is bounded; what does not fit is answered, dropped and counted.
func TestMemcache_queueFull(t *testing.T) {
	server := testdb.Memcached(t, localserver.MemcachedOptions{})
	o := patient3([]string{server.Addr()})
	o.Settings.QueueSize = 3
	s := newTestMemcache(t, o)
	var hits []counter.Hit
	for i := range 10 {
		hits = append(hits, h(fmt.Sprint("k", i), 5))
	}
	req := counter.Request{Hits: hits, Now: now()}
	if err := s.Add(t.Context(), &req); err != nil {
		// one lock from the first to the last: nothing is taken from the queue
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
		n, err := countertest.Peek(t.Context(), s, fmt.Sprint("k", i))
		must.Succeed(t, err)
		totals = append(totals, n)
	}
	if d := cmp.Diff([]int64{5, 5, 5, 0, 0, 0, 0, 0, 0, 0}, totals); d != "" {
		t.Error(d)
	}
	if s.Waiting() != 0 {
		t.Errorf("%d wait", s.Waiting())
	}
}

// Close waits for what is pending.
func TestMemcache_closeFlushes(t *testing.T) {
	_, addrs := threeNodes(t)
	s := newTestMemcache(t, patient3(addrs))
	var hits []counter.Hit
	for i := range 200 {
		hits = append(hits, h(fmt.Sprint("k", i), 1))
	}
	must.Succeed(t, s.Add(t.Context(), &counter.Request{Hits: hits, Now: now()}))
	s.Close()
	again := newTestMemcache(t, patient3(addrs))
	for i := range hits {
		hits[i].N = 0
	}
	must.Succeed(t, again.Add(t.Context(), &counter.Request{Hits: hits, Now: now()}))
	for i := range hits {
		if hits[i].After != 1 {
			t.Errorf("%s stands at %d, want 1", hits[i].Key, hits[i].After)
		}
	}
	if s.Dropped() != 0 {
		t.Errorf("%d dropped", s.Dropped())
	}
	if err := s.Add(t.Context(), &counter.Request{Hits: hits, Now: now()}); !errors.Is(err, counter.ErrUnavailable) {
		t.Errorf("after Close: %v", err)
	}
}

// Nodes that are killed, frozen and restarted at random under load: callers get an answer or a reason,
// totals never pass what was sent, and afterwards nothing is left behind.
func TestMemcache_chaos(t *testing.T) {
	servers, addrs := threeNodes(t)
	s := newTestMemcache(t, Options{Settings: Settings{Nodes: addrs, Timeout: 200 * time.Millisecond},
		Stall: 50 * time.Millisecond})
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
				req := counter.Request{Hits: []counter.Hit{limit(1<<40, h(fmt.Sprint("chaos", a), 1)),
					limit(1<<40, h(fmt.Sprint("chaos", b), 1))}, Now: now(), Stop: counter.StopWhen(i%4 == 0)}
				err := s.Add(ctx, &req)
				cancel()
				for j, key := range []int{a, b} {
					switch e := req.Hits[j].Err; {
					case err != nil && !errors.Is(err, counter.ErrPartial), err != nil && e != nil:
						failed.Add(1)
						if e == nil {
							e = err
						}
						if !errors.Is(e, counter.ErrUnavailable) && !errors.Is(e, counter.ErrTimeout) &&
							!errors.Is(e, counter.ErrOpen) {
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
			must.Succeed(t, server.Restart(t.Context()))
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
	await.True(t, "all nodes to be found again, and told of everything", func() bool {
		_, lost := s.Nodes()
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, n := range s.nodes {
			lost += int64(len(n.due) + n.workers + len(n.out) + len(n.lookups) + len(n.counts))
			if n.writing {
				lost++
			}
		}
		return lost == 0 && s.waiting == 0
	})
	for i := range sent {
		await.True(t, "an answer", func() bool {
			_, err := countertest.Peek(context.Background(), s, fmt.Sprint("chaos", i))
			return err == nil
		})
	}
}

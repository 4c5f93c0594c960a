package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/countertest"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// Requests that are started, and not waited for, get the same answers.
func TestAsync(t *testing.T) {
	f := func(name string, open func(t *testing.T) counter.Store) {
		t.Run(name, func(t *testing.T) {
			var all []*countertest.Async
			countertest.Run(t, func(t *testing.T) counter.Store {
				s := &countertest.Async{Store: open(t)}
				all = append(all, s)
				return s
			})
			for _, s := range all {
				if s.Started.Load() == 0 {
					t.Error("no request was started")
				}
			}
		})
	}
	f("single", func(t *testing.T) counter.Store {
		return newTestStore(t, Options{Settings: Settings{URL: testdb.Redis(t).URL()}, Stall: -1})
	})
	cluster := testdb.Cluster(t)
	f("cluster", func(t *testing.T) counter.Store {
		must.Succeed(t, cluster.Flush(t.Context()))
		return openTest(t, Options{Settings: Settings{Type: InCluster, URL: cluster.Nodes[0].Addr()}, Stall: -1})
	})
}

// collector is an owner that records its notifications.
type collector struct {
	mu   sync.Mutex
	done map[*counter.Pending]int
	came chan struct{}
}

func newCollector() *collector {
	return &collector{done: map[*counter.Pending]int{}, came: make(chan struct{}, 1<<16)}
}

// Complete implements counter.Owner.
func (c *collector) Complete(done []*counter.Pending) {
	for _, st := range done {
		c.mu.Lock()
		c.done[st]++
		c.mu.Unlock()
		c.came <- struct{}{}
	}
}

func (c *collector) wait(t *testing.T, n int) {
	t.Helper()
	end := time.After(patience)
	for i := range n {
		select {
		case <-c.came:
		case <-end:
			t.Fatalf("%d of %d requests were completed", i, n)
		}
	}
}

func started(o counter.Owner, n int, deadline time.Time) []*counter.Pending {
	var all []*counter.Pending
	for i := range n {
		req := &counter.Request{Now: now(), Hits: []counter.Hit{h(fmt.Sprintf("started-%d", i%7), 1)}}
		all = append(all, &counter.Pending{Req: req, Deadline: deadline, Owner: o})
	}
	return all
}

// A store that stops answering has each request completed once: by the deadline, by the breaker or by Close.
func TestAsync_silentStore(t *testing.T) {
	t.Parallel()
	server := testdb.Private(t, localserver.RedisOptions{})
	s, err := NewServer(t.Context(), Options{Settings: Settings{URL: server.Addr(), Timeout: time.Minute}, Stall: -1})
	must.Succeed(t, err)
	must.Succeed(t, server.Stop())
	t.Cleanup(func() { server.Cont() })
	c := newCollector()
	soon := started(c, 20, time.Now().Add(100*time.Millisecond))
	late := started(c, 20, time.Time{})
	if n := len(s.Start(append([]*counter.Pending(nil), soon...))) + len(s.Start(append([]*counter.Pending(nil),
		late...))); n != 0 {
		t.Fatalf("%d were refused", n)
	}
	c.wait(t, len(soon))
	for _, st := range soon {
		if !errors.Is(st.Err, counter.ErrTimeout) {
			t.Errorf("a request whose deadline passed: %v, want %v", st.Err, counter.ErrTimeout)
		}
	}
	s.Close()
	c.wait(t, len(late))
	for st, n := range c.done {
		if n != 1 {
			t.Errorf("%v was completed %d times", st.Req.Hits[0], n)
		}
	}
	if refused := s.Start(started(c, 3, time.Time{})); len(refused) != 3 || refused[0].Err == nil {
		t.Errorf("a closed store refuses %d of 3", len(refused))
	}
}

// What is due at once is left to Add, which has a timer of its own.
func TestAsync_shortDeadline(t *testing.T) {
	t.Parallel()
	s := newSecondStore(t, Options{Settings: Settings{URL: testdb.Redis(t).URL()}, Stall: -1})
	refused := s.Start(started(newCollector(), 2, time.Now().Add(5*time.Millisecond)))
	if len(refused) != 2 || refused[0].Err != nil || refused[1].Err != nil {
		t.Errorf("%d refused, want 2 without an error", len(refused))
	}
}

// A peer with thousands of requests does not have whole batches to itself.
func TestAsync_fairness(t *testing.T) {
	t.Parallel()
	s := newSecondStore(t, Options{Settings: Settings{URL: testdb.Redis(t).URL()}, Stall: -1})
	c := newCollector()
	greedy, other := started(c, 2*maxBatchHits, time.Time{}), started(c, 1, time.Time{})
	for _, st := range greedy {
		st.From = 1
	}
	other[0].From = 2
	var calls []*call
	for _, st := range append(greedy, other...) {
		x := newCall()
		x.fill(st.Req, nil, s.hash)
		x.started = st
		calls = append(calls, x)
	}
	taken, rest := inTurns(nil, calls)
	if len(taken)+len(rest) != len(calls) {
		t.Fatalf("%d taken and %d left of %d", len(taken), len(rest), len(calls))
	}
	if n := len(taken); taken[n-1].started != other[0] || n != turn+1 {
		t.Errorf("the batch has %d requests, want %d of one and 1 of the other", n, turn)
	}
}

// A request is started with a context's end in mind, too.
func TestAsync_context(t *testing.T) {
	t.Parallel()
	s := &countertest.Async{
		Store: newSecondStore(t, Options{Settings: Settings{URL: testdb.Redis(t).URL()}, Stall: -1})}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.Add(ctx, &counter.Request{Now: now(), Hits: []counter.Hit{h("context", 1)}}); err != nil ||
		s.Started.Load() != 1 {
		t.Errorf("%v, %d started", err, s.Started.Load())
	}
}

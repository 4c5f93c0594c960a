package redis

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/countertest"
	"gatehouse/shared/await"
	"gatehouse/shared/logtest"
	"gatehouse/shared/testdb"
)

// Broken replies neither crash nor hang the store, nor let anything pass a limit, and the store answers soon after the
// last of them.
func TestNonsense(t *testing.T) {
	for _, g := range countertest.RESPGarbles {
		t.Run(g.Name, func(t *testing.T) {
			t.Parallel()
			kv := testdb.Redis(t)
			proxy := countertest.NewGarbler(t, kv.Addr)
			s := newSecondStore(t, Options{Settings: Settings{URL: fmt.Sprintf("redis://%s/%d", proxy.Addr(), kv.DB),
				Timeout: time.Second}})
			lost := func() uint64 { return 0 }
			countertest.Nonsense{Store: s, Proxy: proxy, Garble: g, Lost: lost, Hits: func(i int) []counter.Hit {
				return []counter.Hit{limit(50, h(fmt.Sprint("fixed", i%5), 1)),
					daily(sliding(fmt.Sprint("sliding", i%5), 1, 50)), daily(bucket(fmt.Sprint("bucket", i%5), 1, 1, 50))}
			}}.Run(t)
		})
	}
}

// A thousand connections that end with a broken reply leave neither goroutines nor sockets behind.
func TestNonsense_reconnects(t *testing.T) {
	kv := testdb.Redis(t)
	proxy := countertest.NewGarbler(t, kv.Addr)
	s := newTestStore(t, Options{Settings: Settings{URL: fmt.Sprintf("redis://%s/%d", proxy.Addr(), kv.DB)}})
	descriptors := func() int {
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(open)
	}
	add(t, s, now(), h("key", 1))
	goroutines, files := runtime.NumGoroutine(), descriptors()
	hurt := 0
	for i := 0; s.TotalConns() < 1000; i++ {
		proxy.Once(countertest.RESPGarbles[i%7]) // those that are noticed at once
		if err := s.Add(t.Context(), &counter.Request{Hits: []counter.Hit{h("key", 1)}, Now: now()}); err != nil {
			hurt++
		}
	}
	if hurt == 0 {
		t.Error("no broken reply was noticed")
	}
	proxy.At(0, countertest.Garble{})
	await.True(t, "goroutines and sockets are back to what they were", func() bool {
		return runtime.NumGoroutine() <= goroutines+10 && descriptors() <= files+10
	}, func() string {
		return fmt.Sprintf("%d goroutines, before %d; %d files, before %d", runtime.NumGoroutine(), goroutines,
			descriptors(), files)
	})
}

// Broken replies of a sentinel, or of a node that is queried for the slots, are errors of that query.
func TestNonsense_topology(t *testing.T) {
	f := func(name, server string, query func(ctx context.Context, addr string) error) {
		t.Run(name, func(t *testing.T) {
			proxy := countertest.NewGarbler(t, server)
			once := func() error {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				return query(ctx, proxy.Addr().String())
			}
			for _, g := range countertest.RESPGarbles {
				if g.After == countertest.Hang {
					continue // is TestSentinel_failover's, and TestCluster_failover's
				}
				before := proxy.Garbled()
				for range 10 {
					proxy.Once(g)
					once()
				}
				if proxy.Garbled() == before {
					t.Errorf("nothing was garbled by %q", g.Name)
				}
			}
			proxy.At(0, countertest.Garble{})
			if err := once(); err != nil {
				t.Errorf("after the last broken reply: %v", err)
			}
		})
	}
	set := testdb.Sentinels(t)
	find := &sentinels{name: strings.Split(set.URL(), ",")[0], kick: make(chan struct{}, 1),
		a: Options{}.withDefaults().access(target{}, time.Second, nil)}
	f("a sentinel", set.Sentinels[0].Addr(), func(ctx context.Context, addr string) error {
		_, err := find.askOne(ctx, addr)
		return err
	})
	f("a sentinel's messages", set.Sentinels[0].Addr(), func(ctx context.Context, addr string) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		if err := find.subscribe(ctx, addr); ctx.Err() == nil {
			return err
		}
		return nil // it listened until the end
	})
	nodes := testdb.Cluster(t).Nodes
	c := openTest(t, Options{Settings: Settings{Type: InCluster, URL: nodes[0].Addr()}, Stall: -1}).(*Cluster)
	f("a node's slots", nodes[0].Addr(), func(ctx context.Context, addr string) error {
		_, err := c.ask(ctx, addr)
		return err
	})
	add(t, c, now(), h("key", 1))
}

// A server that answers every probe and then hangs makes the breaker flap.
func TestFlapping(t *testing.T) {
	t.Parallel()
	kv := testdb.Redis(t)
	proxy := countertest.NewGarbler(t, kv.Addr)
	var log logtest.Buffer
	s := newSecondStore(t, Options{Settings: Settings{URL: fmt.Sprintf("redis://%s/%d", proxy.Addr(), kv.DB)},
		Stall: 20 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil))})
	silent := countertest.Garble{Name: "silence", After: countertest.Hang,
		Apply: func([]byte, *rand.Rand) []byte { return nil }}
	await.True(t, "the breaker flaps", func() bool {
		proxy.Once(silent)
		s.Add(t.Context(), &counter.Request{Hits: []counter.Hit{h("key", 1)}, Now: now()})
		proxy.At(0, silent)
		await.True(t, "the breaker closes", func() bool { return !s.Open() })
		return s.Flapping()
	})
	if n := strings.Count(log.String(), "over and over"); n != 1 {
		t.Errorf("%d warnings, want 1", n)
	}
}

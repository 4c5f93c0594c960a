package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// CREATE, ERROR and WAIT differ in the same way whatever the deployment. The server holds up every hit,
// and answers a PING all the same.
func TestPool_types(t *testing.T) {
	f := func(o Options, server *localserver.Server, key string) {
		t.Run(o.Settings.Type, func(t *testing.T) {
			o.Settings.PoolSize, o.Stall, o.Settings.Timeout = 2, -1, 20*time.Second
			hold := func(args ...string) {
				t.Helper()
				must.Succeed(t, must.ErrOf(localserver.RedisCommand(context.Background(), server.Addr(), "",
					append([]string{"CLIENT"}, args...)...)))
			}
			// held starts 100 callers at intervals of 2 ms while the server holds up what they bring, and calls
			// meanwhile. On a busy machine some share a batch.
			held := func(o Options, within time.Duration, meanwhile func(s Store,
				before int64)) (errs []error, took []time.Duration) {
				t.Helper()
				s := openTest(t, o)
				tags := tagsOfNodes() // all nodes of a cluster get their first connection
				must.Succeed(t, s.Add(t.Context(),
					&counter.Request{Hits: []counter.Hit{h(key, 1), h(tags[0], 1), h(tags[1], 1),
						h(tags[2], 1)}, Now: now()}))
				before := s.ActiveConns()
				hold("PAUSE", "60000", "WRITE")
				defer hold("UNPAUSE")
				errs, took = make([]error, 100), make([]time.Duration, 100)
				var wg sync.WaitGroup
				for i := range errs {
					wg.Go(func() {
						time.Sleep(time.Duration(i) * 2 * time.Millisecond)
						begun := time.Now() // before the deadline's own clock
						ctx, cancel := context.WithTimeout(context.Background(), within)
						defer cancel()
						errs[i] = s.Add(ctx, &counter.Request{Hits: []counter.Hit{h(key, 1)}, Now: now()})
						took[i] = time.Since(begun)
					})
				}
				meanwhile(s, before)
				wg.Wait()
				return errs, took
			}

			o.OnEmpty, o.OnEmptyWait = Create, 30*time.Millisecond
			errs, _ := held(o, 20*time.Second, func(s Store, before int64) {
				// One connection to this server was open.
				await.True(t, "two overflow connections", func() bool { return s.ActiveConns() == before+3 })
				time.Sleep(200 * time.Millisecond) // in which no more may come
				if n := s.ActiveConns(); n != before+3 {
					t.Errorf("CREATE: %d connections more, want 3", n-before)
				}
				hold("UNPAUSE")
			})
			if n := count(errs, nil); n != 100 {
				t.Errorf("CREATE: %d of 100 counted", n)
			}

			o.OnEmpty, o.OnEmptyWait = Refuse, 200*time.Millisecond
			errs, took := held(o, 20*time.Second, func(Store, int64) {
				time.Sleep(500 * time.Millisecond) // the last have come and waited
				hold("UNPAUSE")
			})
			refused := count(errs, counter.ErrBusy)
			if refused == 0 || refused+count(errs, nil) != 100 {
				t.Errorf("ERROR: %d refused, %d counted of 100", refused, count(errs, nil))
			}
			for i := range errs {
				if errors.Is(errs[i], counter.ErrBusy) && took[i] < 195*time.Millisecond {
					t.Errorf("ERROR: refused after %v of 200 ms", took[i])
				}
			}

			o.OnEmpty, o.OnEmptyWait = Wait, 10*time.Millisecond
			errs, took = held(o, 500*time.Millisecond, func(s Store, before int64) {
				time.Sleep(300 * time.Millisecond)
				if n := s.ActiveConns(); n > before+1 {
					t.Errorf("WAIT: %d connections more, want 1 at most", n-before)
				}
			})
			if n := count(errs, counter.ErrTimeout); n != 100 {
				t.Errorf("WAIT: %d of 100 timed out", n)
			}
			for i := range took {
				if took[i] < 480*time.Millisecond {
					t.Errorf("WAIT: given up after %v of 500 ms", took[i])
				}
			}
		})
	}
	single := testdb.Private(t, localserver.RedisOptions{})
	f(Options{Settings: Settings{Type: Single, URL: single.Addr()}}, single, "key")
	set := testdb.Sentinels(t)
	master, err := set.Master(t.Context())
	must.Succeed(t, err)
	f(Options{Settings: Settings{Type: Sentinel, URL: set.URL()}}, master, "key")
	cluster := testdb.Cluster(t)
	tag := tagsOfNodes()[1]
	f(Options{Settings: Settings{Type: InCluster, URL: cluster.URL()}}, cluster.Nodes[1], fmt.Sprint(tag, "key"))
}

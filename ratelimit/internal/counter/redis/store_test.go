package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

func TestKVStore_auth(t *testing.T) {
	tcp := testdb.Private(t, localserver.RedisOptions{Password: "se:cret",
		Users: map[string]string{"alice": "wonder:land"}})
	unix := testdb.Private(t, localserver.RedisOptions{Socket: true, Password: "secret"})
	f := func(o Options) {
		t.Helper()
		s := newTestStore(t, o)
		if got := add(t, s, now(), h("key", 1)); got < 1 {
			t.Errorf("total %d", got)
		}
	}
	f(Options{Settings: Settings{URL: "redis://:se%3Acret@" + tcp.Addr()}})
	f(Options{Settings: Settings{URL: "redis://default:se%3Acret@" + tcp.Addr() + "/5"}})
	f(Options{Settings: Settings{URL: "redis://" + tcp.Addr() + "/5?username=alice&password=wonder:land"}})
	f(Options{Settings: Settings{URL: tcp.Addr(), Auth: "alice:wonder:land"}})
	f(Options{Settings: Settings{URL: "redis://alice:wrong@" + tcp.Addr(), Auth: "default:se:cret"}})
	f(Options{Settings: Settings{URL: unix.Addr(), Auth: "secret"}})
	f(Options{Settings: Settings{URL: unix.Addr(), Auth: "default:secret", SocketType: "unix"}})

	refused := func(o Options) {
		t.Helper()
		var log bytes.Buffer
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
		o.Start.Initial, o.Start.Max, o.Start.MaxElapsed = time.Millisecond, 5*time.Millisecond, 50*time.Millisecond
		_, err := NewServer(t.Context(), o)
		if !errors.Is(err, counter.ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
		said := log.String() + fmt.Sprint(err)
		if !strings.Contains(said, "WRONGPASS") && !strings.Contains(said, "NOAUTH") {
			t.Errorf("said %s; want the reason", said)
		}
		if strings.Contains(said, "guess") {
			t.Errorf("said %s: that is the password", said)
		}
	}
	refused(Options{Settings: Settings{URL: tcp.Addr(), Auth: "guess"}})
	refused(Options{Settings: Settings{URL: tcp.Addr(), Auth: "alice:guess"}})
	refused(Options{Settings: Settings{URL: tcp.Addr()}})
}

func TestNewKVStore_waits(t *testing.T) {
	server := testdb.Private(t, localserver.RedisOptions{})
	server.Kill()
	o := Options{Settings: Settings{URL: server.Addr()},
		Start: StartSettings{Initial: time.Millisecond, Max: 20 * time.Millisecond}}

	// It stops when its context ends.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := NewServer(ctx, o); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the context's error", err)
	}
	o.Start.MaxElapsed = 30 * time.Millisecond
	if _, err := NewServer(t.Context(), o); !errors.Is(err, counter.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	// And comes up when the store does.
	o.Start.MaxElapsed = 0
	var s *Server
	var wg sync.WaitGroup
	wg.Go(func() { s = newTestStore(t, o) })
	must.Succeed(t, server.Restart(t.Context()))
	wg.Wait()
	if got := add(t, s, now(), h("key", 1)); got != 1 {
		t.Errorf("total %d", got)
	}
}

// A server that accepts and says nothing must not keep the start from being stopped.
func TestNewKVStore_silentServer(t *testing.T) {
	server := testdb.Private(t, localserver.RedisOptions{})
	must.Succeed(t, server.Stop())
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	begun := time.Now()
	if _, err := NewServer(ctx, Options{Settings: Settings{URL: server.Addr()}}); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Errorf("%v, want the context's error", err)
	}
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("stopping took %v", took)
	}
}

// What the store leaves in Redis: the totals, and an expiry on each.
func TestKVStore_ttl(t *testing.T) {
	kv := testdb.Redis(t)
	peer := redisClient(t, kv.Addr, kv.DB)
	s := newTestStore(t, Options{Settings: Settings{URL: kv.URL()}, JitterMax: 300})
	ttl := func(key string, least, most int64) {
		t.Helper()
		got, err := peer.Do(t.Context(), peer.B().Ttl().Key(key).Build()).AsInt64()
		if err != nil || got < least || got > most {
			t.Errorf("%s lives for %d s (%v), want %d..%d", key, got, err, least, most)
		}
	}
	window := func(key string, size, left int64) counter.Hit {
		return counter.Hit{Key: []byte(key), N: 1, Meter: counter.Meter{Limit: 10, Window: size}, End: now() + left}
	}
	add(t, s, now(), window("second", 1, 1))
	ttl("second", 5, 6) // a tenth of a second is no jitter
	add(t, s, now(), window("minute", 60, 40))
	ttl("minute", 44, 45+5)
	add(t, s, now(), window("day", 86400, 6400))
	ttl("day", 6404, 6405+299)
	add(t, s, now(), window("day", 86400, 86000)) // the second hit changes nothing
	ttl("day", 6404, 6405+299)

	// A key that vanished under us gets its expiry with the hit that creates it again.
	peer.Do(t.Context(), peer.B().Del().Key("day").Build())
	if got := add(t, s, now(), window("day", 86400, 6400)); got != 1 {
		t.Errorf("total %d, want 1", got)
	}
	ttl("day", 6404, 6405+299)

	// Refunds and the stop script keep it or set it.
	add(t, s, now(), refund(window("day", 86400, 6400)))
	ttl("day", 6403, 6405+299)
	add(t, s, now(), window("day", 86400, 6400))
	refundAll := refund(window("day", 86400, 6400))
	refundAll.N = 99
	add(t, s, now(), refundAll)
	ttl("day", 6403, 6405+299)
	req := counter.Request{Hits: []counter.Hit{window("day", 86400, 6400), window("stop", 60, 40)}, Now: now(),
		Stop: counter.StopAll}
	must.Succeed(t, s.Add(t.Context(), &req))
	ttl("stop", 44, 45+5)
	huge := window("day", 86400, 6400)
	huge.N = 1<<63 - 1
	add(t, s, now(), huge)
	ttl("day", 6403, 6405+299)

	// Scripts survive a store that has forgotten them.
	must.Succeed(t, peer.Do(t.Context(), peer.B().ScriptFlush().Build()).Error())
	if got := add(t, s, now(), refund(window("stop", 60, 40))); got != 0 {
		t.Errorf("total %d after a refund, want 0", got)
	}
	req.Hits = []counter.Hit{window("stop", 60, 40)}
	if err := s.Add(t.Context(), &req); err != nil || req.Hits[0].After != 1 {
		t.Errorf("total %d (%v), want 1", req.Hits[0].After, err)
	}
	// Peeking creates nothing.
	add(t, s, now(), h("look", 0))
	if n, _ := peer.Do(t.Context(), peer.B().Exists().Key("look").Build()).AsInt64(); n != 0 {
		t.Error("a look has created a key")
	}
}

// A Redis user without permission for SET, which the replaced service did not need, still leaves no key without an
// expiry.
func TestKVStore_ttlWithoutSET(t *testing.T) {
	redis := testdb.Private(t, localserver.RedisOptions{})
	peer := redisClient(t, redis.Addr(), 0)
	must.Succeed(t, peer.Do(t.Context(), peer.B().Arbitrary("ACL", "SETUSER", "few", "on", ">pw", "~*", "-@all", "+ping",
		"+incrby", "+expire").Build()).Error())
	s := newTestStore(t, Options{Settings: Settings{URL: redis.Addr(), Auth: "few:pw"}})
	for range 2 {
		add(t, s, now(), counter.Hit{Key: []byte("key"), N: 1, Meter: counter.Meter{Limit: 10, Window: 60},
			End: now() + 40})
	}
	if ttl, err := peer.Do(t.Context(), peer.B().Ttl().Key("key").Build()).AsInt64(); err != nil || ttl < 40 {
		t.Errorf("TTL %d s (%v), want at least 40", ttl, err)
	}
}

// A counter that is no number fails the calls for it, and no others.
func TestKVStore_foreignValue(t *testing.T) {
	kv := testdb.Redis(t)
	peer := redisClient(t, kv.Addr, kv.DB)
	s := newTestStore(t, Options{Settings: Settings{URL: kv.URL()}})
	peer.Do(t.Context(), peer.B().Set().Key("text").Value("secret words").Build())
	peer.Do(t.Context(), peer.B().Lpush().Key("list").Element("x").Build())
	for range 2 * link.BreakerFailures {
		for _, hit := range []counter.Hit{h("text", 1), h("text", 0), refund(h("text", 1)),
			h("list", 1), h("list", 0), refund(h("list", 1))} {
			for _, stop := range []counter.Stop{counter.StopNone, counter.StopAll} {
				err := s.Add(t.Context(), &counter.Request{Hits: []counter.Hit{h("good", 1), hit}, Now: now(),
					Stop: stop})
				if !errors.Is(err, counter.ErrUnavailable) || strings.Contains(err.Error(), "secret") {
					t.Fatalf("%s %d stop=%v: %v, want ErrUnavailable", hit.Key, hit.N, stop, err)
				}
			}
		}
	}
	if s.Open() {
		t.Error("the breaker has opened: the link is sound")
	}
	if got := add(t, s, now(), h("fine", 1)); got != 1 {
		t.Errorf("total %d", got)
	}
}

// Callers leave before their deadline, whatever the store does.
func TestKVStore_deadline(t *testing.T) {
	server := testdb.Private(t, localserver.RedisOptions{})
	s := newTestStore(t, Options{Settings: Settings{URL: server.Addr(), Timeout: 100 * time.Millisecond}, Stall: -1})
	must.Succeed(t, server.Stop())
	f := func(within time.Duration) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		err := s.Add(ctx, &counter.Request{Hits: []counter.Hit{h("key", 1)}, Now: now()})
		if ctx.Err() != nil {
			t.Logf("%v: came back after its deadline", within) // timings fail nothing: see the log
		}
		if !errors.Is(err, counter.ErrTimeout) {
			t.Errorf("%v: %v, want ErrTimeout", within, err)
		}
	}
	f(3 * time.Millisecond)
	f(20 * time.Millisecond)
	f(60 * time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(5*time.Millisecond, cancel)
	if err := s.Add(ctx, &counter.Request{Hits: []counter.Hit{h("key", 1)}, Now: now()}); !errors.Is(err,
		counter.ErrTimeout) {
		t.Errorf("canceled: %v, want ErrTimeout", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), -time.Second)
	defer cancel()
	if err := s.Add(ctx, &counter.Request{Hits: []counter.Hit{h("key", 1)}, Now: now()}); !errors.Is(err,
		counter.ErrTimeout) {
		t.Errorf("too late: %v, want ErrTimeout", err)
	}
	// Without a deadline the store's own time-out holds.
	begun := time.Now()
	if err := s.Add(context.Background(), &counter.Request{Hits: []counter.Hit{h("key", 1)}, Now: now()}); err == nil {
		t.Error("no error from a stopped store")
	}
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("took %v, the time-out is 100 ms", took)
	}
}

// Counters that are reset while hits of two processes come are made again with an expiry.
func TestReset_amongHits(t *testing.T) {
	kv := testdb.Redis(t)
	var stores [2]*Server
	for i := range stores {
		var err error
		if stores[i], err = NewServer(t.Context(), Options{Settings: Settings{URL: kv.URL()}, Stall: -1}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stores[i].Close)
	}
	peer := redisClient(t, kv.Addr, kv.DB)
	var wg sync.WaitGroup
	for g := range 8 {
		s := stores[g/2%2]
		wg.Go(func() {
			for i := range 500 {
				hit := h(fmt.Sprint("new", i), 1)
				var err error
				if g < 6 {
					err = s.Add(t.Context(), &counter.Request{Hits: []counter.Hit{hit}, Now: now()})
				} else {
					err = s.Reset(t.Context(), &hit)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for i := range 500 {
		add(t, stores[0], now(), h(fmt.Sprint("new", i), 1))
	}
	if n := immortal(t, peer); n != 500 {
		t.Errorf("%d keys, want 500", n)
	}

	// What one process resets starts again from zero in the other.
	hit := h("k", 1)
	for _, s := range stores {
		add(t, s, now(), hit)
	}
	must.Succeed(t, stores[0].Reset(t.Context(), &hit))
	if n, err := peer.Do(t.Context(), peer.B().Exists().Key("k").Build()).AsInt64(); n != 0 || err != nil {
		t.Errorf("EXISTS after the reset: %d, %v, want 0", n, err)
	}
	if got := add(t, stores[1], now(), hit); got != 1 {
		t.Errorf("total %d after a hit, want 1", got)
	}
	immortal(t, peer)
}

package counter_test

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"go.uber.org/goleak"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/countertest"
	"gatehouse/ratelimit/internal/counter/link"
	"gatehouse/ratelimit/internal/counter/memory"
	"gatehouse/ratelimit/internal/counter/redis"
	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// mixed takes every other key for one of a rule per second.
type mixed struct{ counter.Store }

func (m mixed) route(h *counter.Hit) { h.PerSecond = crc32.ChecksumIEEE(h.Key)%2 == 1 }

func (m mixed) Add(ctx context.Context, req *counter.Request) error {
	for i := range req.Hits {
		m.route(&req.Hits[i])
	}
	return m.Store.Add(ctx, req)
}

func (m mixed) Peek(ctx context.Context, h *counter.Hit) error {
	m.route(h)
	return m.Store.Peek(ctx, h)
}

func (m mixed) Reset(ctx context.Context, h *counter.Hit) error {
	m.route(h)
	return m.Store.Reset(ctx, h)
}

// openPerSecond joins two stores that are closed when t ends, and must leave no goroutine behind.
func openPerSecond(t *testing.T,
	mainURL, perSecondURL string) (router *counter.PerSecondRouter, main, perSecond *redis.Server) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	open := func(url string) *redis.Server {
		s, err := redis.NewServer(t.Context(),
			redis.Options{Settings: redis.Settings{URL: url, Timeout: patience}, Stall: -1})
		must.Succeed(t, err)
		return s
	}
	main, perSecond = open(mainURL), open(perSecondURL)
	router = counter.NewPerSecondRouter(main, perSecond)
	t.Cleanup(func() {
		router.Close()
		goleak.VerifyNone(t, before, testdb.IgnoreServers())
	})
	return router, main, perSecond
}

// newTestPerSecond is a router on two databases, and clients of these.
func newTestPerSecond(t *testing.T) (router *counter.PerSecondRouter, main, perSecond rueidis.Client) {
	t.Helper()
	a, b := testdb.Redis(t), testdb.Redis(t)
	main, perSecond = redisClient(t, a.Addr, a.DB), redisClient(t, b.Addr, b.DB)
	router, _, _ = openPerSecond(t, a.URL(), b.URL())
	return router, main, perSecond
}

func TestPerSecond_router(t *testing.T) {
	router, _, _ := newTestPerSecond(t)
	countertest.Run(t, func(*testing.T) counter.Store { return mixed{router} })
}

// Sliding windows and token buckets of one request may be in two stores.
func TestPerSecond_meters(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		countertest.RunMeters(t, func(_ *testing.T, clock func() int64) counter.Store {
			o := memory.Options{Clock: clock}
			return mixed{counter.NewPerSecondRouter(memory.New(o), memory.New(o))}
		})
	})
	t.Run("redis", func(t *testing.T) {
		countertest.RunMeters(t, func(t *testing.T, clock func() int64) counter.Store {
			open := func() *redis.Server {
				s, err := redis.NewServer(t.Context(), redis.Options{
					Settings: redis.Settings{URL: testdb.Redis(t).URL(), Timeout: patience}, Stall: -1, Clock: clock})
				must.Succeed(t, err)
				return s
			}
			router := counter.NewPerSecondRouter(open(), open())
			t.Cleanup(router.Close)
			return mixed{router}
		})
	})
}

// What the tests of all stores share, by the names of this package's tests.
var (
	now, h, limit, shadow = countertest.Now, countertest.Hit, countertest.Limit, countertest.Shadow
	add, spared           = countertest.Add, countertest.Spared
	redisClient           = countertest.RedisClient
)

type result = countertest.Result

const patience = countertest.Patience

func perSecond(h counter.Hit) counter.Hit { h.PerSecond = true; return h }

// Hits go where their unit belongs, and nowhere else.
func TestPerSecond_routes(t *testing.T) {
	router, main, second := newTestPerSecond(t)
	for _, stop := range []bool{false, true} {
		keys := []string{"second", "minute", "other"}
		for i := range keys {
			keys[i] += fmt.Sprint(stop)
		}
		for i := range 3 {
			req := counter.Request{Hits: []counter.Hit{perSecond(h(keys[0], 1)), h(keys[1], 2),
				perSecond(h(keys[0], 1)), h(keys[2], 0)}, Now: now(), Stop: counter.StopWhen(stop)}
			must.Succeed(t, router.Add(t.Context(), &req))
			want := []int64{int64(2*i + 1), int64(2*i + 2), int64(2*i + 2), 0}
			for j := range want {
				if req.Hits[j].After != want[j] || req.Hits[j].Spared {
					t.Errorf("hit %d: %d %v, want %d", j, req.Hits[j].After, req.Hits[j].Spared, want[j])
				}
			}
		}
		for _, one := range []counter.Hit{perSecond(h(keys[0], 1)), h(keys[1], 1)} { // alone
			if got := add(t, router, now(), one); got != 7 {
				t.Errorf("%s: %d, want 7", one.Key, got)
			}
			if err := router.Peek(t.Context(), &one); one.After != 7 || err != nil {
				t.Errorf("%s: %d (%v), want 7", one.Key, one.After, err)
			}
		}
		f := func(c rueidis.Client, key string, want int64) {
			t.Helper()
			got, err := c.Do(t.Context(), c.B().Get().Key(key).Build()).AsInt64()
			if err != nil && !rueidis.IsRedisNil(err) || got != want {
				t.Errorf("%s: %d (%v), want %d", key, got, err, want)
			}
		}
		f(main, keys[0], 0)
		f(main, keys[1], 7)
		f(second, keys[0], 7)
		f(second, keys[1], 0)
	}
}

// Under the stop option a hit that is over in one store keeps the other one's from being written.
func TestPerSecond_stop(t *testing.T) {
	router, _, _ := newTestPerSecond(t)
	f := func(hits []counter.Hit, want ...result) {
		t.Helper()
		req := counter.Request{Hits: hits, Now: now(), Stop: counter.StopAll}
		must.Succeed(t, router.Add(t.Context(), &req))
		for i := range want {
			if got := (result{After: hits[i].After, Spared: hits[i].Spared}); got != want[i] {
				t.Errorf("hit %d: %v, want %v", i, got, want[i])
			}
		}
	}
	at := func(n int64) result { return result{After: n} }
	f([]counter.Hit{perSecond(limit(1, h("s", 1))), limit(3, h("m", 1))}, at(1), at(1))
	f([]counter.Hit{perSecond(limit(1, h("s", 1))), limit(3, h("m", 1))}, at(2), spared(1))
	f([]counter.Hit{perSecond(limit(9, h("s", 1))), limit(1, h("m", 1))}, spared(1), at(2))
	f([]counter.Hit{shadow(perSecond(limit(1, h("s", 1)))), limit(3, h("m", 1))}, at(2), at(2))
	f([]counter.Hit{perSecond(limit(9, h("s", 0))), limit(3, h("m", 0))}, at(1), at(2))
}

// A store that is unavailable fails only the requests that need it.
func TestPerSecond_oneFails(t *testing.T) {
	server := testdb.Private(t, localserver.RedisOptions{})
	router, main, second := openPerSecond(t, testdb.Redis(t).URL(), server.Addr())
	both := func(stop bool) (*counter.Request, error) {
		req := &counter.Request{Hits: []counter.Hit{h("m", 1), perSecond(h("s", 1)), h("m", 1)}, Now: now(),
			Stop: counter.StopWhen(stop)}
		for i := range req.Hits {
			req.Hits[i].Limit = 1000
		}
		return req, router.Add(t.Context(), req)
	}
	if req, err := both(false); err != nil || req.Hits[2].After != 2 {
		t.Fatalf("%v %+v", err, req.Hits)
	}
	server.Kill()
	for i := range 2 * link.BreakerFailures {
		if err := router.Add(t.Context(), &counter.Request{Hits: []counter.Hit{perSecond(h("s", 1))},
			Now: now()}); err == nil || errors.Is(err, counter.ErrPartial) {
			t.Errorf("per second alone: %v", err)
		}
		if got := add(t, router, now(), limit(1000, h("alone", 1))); got != int64(i+1) {
			t.Errorf("main alone: %d", got)
		}
		req, err := both(false)
		if !errors.Is(err, counter.ErrPartial) || req.Hits[0].Err != nil || req.Hits[1].Err == nil ||
			req.Hits[2].Err != nil {
			t.Errorf("both: %v: %v %v %v", err, req.Hits[0].Err, req.Hits[1].Err, req.Hits[2].Err)
		}
		if got, want := req.Hits[2].After, int64(2*i+4); got != want {
			t.Errorf("the main store's part: %d, want %d", got, want)
		}
		if _, err := both(true); err == nil || errors.Is(err, counter.ErrPartial) {
			t.Errorf("both under the stop option: %v, want the store's error", err)
		}
	}
	if main.Open() || !second.Open() {
		t.Errorf("breakers: main %v, per second %v; want the one that is away open", main.Open(), second.Open())
	}
	must.Succeed(t, server.Restart(t.Context()))
	await.True(t, "the store to be found again", func() bool { return !second.Open() })
	if req, err := both(false); err != nil || req.Hits[1].After != 1 {
		t.Errorf("%v %+v", err, req.Hits)
	}
	main.Close()
	if _, err := both(false); !errors.Is(err, counter.ErrPartial) {
		t.Errorf("the main store closed: %v", err)
	}
	server.Kill()
	second.Close()
	if _, err := both(false); !errors.Is(err, counter.ErrUnavailable) {
		t.Errorf("both closed: %v", err)
	}
}

// halfway is a store of which some keys cannot be reached.
type halfway struct{ counter.Store }

func (h halfway) Add(ctx context.Context, req *counter.Request) error {
	if err := h.Store.Add(ctx, req); err != nil {
		return err
	}
	var out counter.Outcome
	for i := range req.Hits {
		if req.Hits[i].Err = nil; strings.HasPrefix(string(req.Hits[i].Key), "away") {
			out.Fail(&req.Hits[i], counter.ErrOpen)
		}
	}
	return out.Of(req)
}

// What one of the stores can answer in part is answered in part.
func TestPerSecond_partOfOne(t *testing.T) {
	router := counter.NewPerSecondRouter(halfway{memory.New(memory.Options{})}, memory.New(memory.Options{}))
	f := func(stop bool, hits []counter.Hit, want error, failed ...bool) {
		t.Helper()
		req := counter.Request{Hits: hits, Now: now(), Stop: counter.StopWhen(stop)}
		if err := router.Add(t.Context(), &req); !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("%v, want %v", err, want)
		}
		for i := range failed {
			if (hits[i].Err != nil) != failed[i] {
				t.Errorf("hit %d: %v", i, hits[i].Err)
			}
		}
	}
	f(false, []counter.Hit{h("here", 1), perSecond(h("away", 1)), h("away", 1)}, counter.ErrPartial, false, false, true)
	f(false, []counter.Hit{h("here", 1), h("away", 1)}, counter.ErrPartial, false, true)
	f(false, []counter.Hit{h("away", 1)}, counter.ErrOpen)
	f(false, []counter.Hit{h("away", 1), perSecond(h("s", 1))}, counter.ErrPartial, true, false)
	f(true, []counter.Hit{h("away", 1), perSecond(h("s", 1))}, counter.ErrOpen)
	f(true, []counter.Hit{h("here", 1), perSecond(h("s", 1))}, nil)
}

// A request with both is in both stores at the same time.
func TestPerSecond_parallel(t *testing.T) {
	meet := make(chan struct{})
	a, b := &meeting{meet: meet}, &meeting{meet: meet}
	router := counter.NewPerSecondRouter(a, b)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := router.Add(ctx, &counter.Request{Hits: []counter.Hit{h("m", 1), perSecond(h("s", 1))},
		Now: now()}); err != nil {
		t.Errorf("one after the other: %v", err)
	}
}

// meeting is a store that answers once another one is called too.
type meeting struct {
	counter.Store
	meet chan struct{}
}

func (m *meeting) Add(ctx context.Context, req *counter.Request) error {
	select {
	case m.meet <- struct{}{}:
	case <-m.meet:
	case <-ctx.Done():
		return ctx.Err()
	}
	for i := range req.Hits {
		req.Hits[i].After = 1
	}
	return nil
}

func BenchmarkTwin(b *testing.B) {
	router := counter.NewPerSecondRouter(memory.New(memory.Options{}), memory.New(memory.Options{}))
	for _, hits := range [][]counter.Hit{{h("m", 1)}, {h("m", 1), perSecond(h("s", 1))}} {
		b.Run(fmt.Sprint(len(hits)), func(b *testing.B) {
			b.ReportAllocs()
			req := counter.Request{Hits: hits, Now: time.Now().Unix()}
			for b.Loop() {
				must.Succeed(b, router.Add(b.Context(), &req))
			}
		})
	}
}

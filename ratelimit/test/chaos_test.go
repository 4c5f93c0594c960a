package test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/rueidis"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"gatehouse/ratelimit/internal/counter/countertest"
	"gatehouse/shared/await"
	"gatehouse/shared/chaos"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// A hundred callers at once against a limit of 1,000 are let through exactly 1,000 times, by one
// daemon and by three on one Redis.
func TestExactUnderConcurrency(t *testing.T) {
	t.Parallel()
	f := func(name string, daemons int, env func(t *testing.T) map[string]string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := env(t)
			var clients []pb.RateLimitServiceClient
			for range daemons {
				clients = append(clients, start(t, `[{key: k, @1000/y}]`, e).dial(t))
			}
			var ok, over, failed atomic.Int64
			await.Together(100, func(i int) {
				for n := range 15 {
					ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
					got, err := clients[(i+n)%daemons].ShouldRateLimit(ctx, request("k", "v"))
					cancel()
					switch {
					case err != nil:
						failed.Add(1)
						t.Log(err)
					case got.OverallCode == pb.RateLimitResponse_OK:
						ok.Add(1)
					default:
						over.Add(1)
					}
				}
			})
			if ok.Load() != 1000 || over.Load() != 500 || failed.Load() != 0 {
				t.Errorf("%d OK, %d OVER_LIMIT, %d failed; want 1000, 500, 0", ok.Load(), over.Load(), failed.Load())
			}
		})
	}
	redis := func(t *testing.T) map[string]string {
		e := onRedis(testdb.Redis(t).URL())
		e["STORE_STALL"] = "10s" // a machine busy with other tests is not a dead store
		return e
	}
	f("memory", 1, func(*testing.T) map[string]string { return nil })
	f("redis", 1, redis)
	f("three daemons on one redis", 3, redis)
	cluster := func(t *testing.T) map[string]string { return on("cluster", testdb.Cluster(t).URL()) }
	f("two daemons on one cluster", 2, cluster)
	f("the stop option on a cluster", 2, func(t *testing.T) map[string]string {
		e := cluster(t)
		e["STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"] = "true"
		return e
	})
	f("two daemons and sentinels", 2, func(t *testing.T) map[string]string {
		return on("sentinel", testdb.Sentinels(t).URL())
	})
	f("the stop option", 2, func(t *testing.T) map[string]string {
		e := redis(t)
		e["STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"] = "true"
		return e
	})
}

func onRedis(url string) map[string]string {
	return map[string]string{"BACKEND_TYPE": "redis", "KVSTORE_URL": url, "STORE_STALL": "250ms"}
}

// traffic sends requests with a deadline from several goroutines until stop is called, and keeps count.
type traffic struct {
	ok, failed atomic.Int64
	slowest    atomic.Int64 // ns
	cancel     context.CancelFunc
	wg         sync.WaitGroup

	mu     sync.Mutex
	errors map[string]int
}

func startTraffic(c pb.RateLimitServiceClient, workers int, deadline time.Duration) *traffic {
	ctx, cancel := context.WithCancel(context.Background())
	l := &traffic{cancel: cancel, errors: map[string]int{}}
	for i := range workers {
		l.wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				l.once(c, fmt.Sprintf("v%d-%d", i, n%50), deadline)
			}
		})
	}
	return l
}

func (l *traffic) once(c pb.RateLimitServiceClient, value string, deadline time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	begun := time.Now()
	_, err := c.ShouldRateLimit(ctx, request("k", value))
	took := int64(time.Since(begun))
	for old := l.slowest.Load(); took > old && !l.slowest.CompareAndSwap(old, took); old = l.slowest.Load() {
	}
	if err == nil {
		l.ok.Add(1)
		return
	}
	l.failed.Add(1)
	l.mu.Lock()
	l.errors[status.Code(err).String()+": "+status.Convert(err).Message()]++
	l.mu.Unlock()
	time.Sleep(time.Millisecond) // a dead store costs microseconds; the test need not call that often
}

func (l *traffic) stop() {
	l.cancel()
	l.wg.Wait()
}

// Redis killed and Redis frozen: every answer comes within the caller's deadline, with the neutral
// error, and two seconds after Redis is back all is well again.
func TestRedisUnavailable(t *testing.T) {
	t.Parallel()
	f := func(name string, away func(*localserver.Server) error, back func(*localserver.Server) error) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := testdb.Private(t, localserver.RedisOptions{})
			p := start(t, `[{key: k, @1000000/y}]`, onRedis(redis.Addr()))
			c := p.dial(t)
			const deadline = 500 * time.Millisecond
			l := startTraffic(c, 8, deadline)
			defer l.stop()
			await.True(t, "answers", func() bool { return l.ok.Load() > 100 })

			must.Succeed(t, away(redis))
			await.True(t, "the breaker opens", func() bool {
				_, body := get(t, p.debug+"/stats")
				return strings.Contains(body, "ratelimit.redis_pool.breaker_open: 1")
			})
			failed := l.failed.Load()
			await.True(t, "refusals go on", func() bool { return l.failed.Load() > failed+100 })
			must.Succeed(t, back(redis))
			returned := time.Now()
			await.True(t, "normal answers", func() bool {
				ctx, cancel := context.WithTimeout(context.Background(), deadline)
				defer cancel()
				_, err := c.ShouldRateLimit(ctx, request("k", "again"))
				return err == nil
			})
			took := time.Since(returned)
			if took > 15*time.Second { // 2 s is the promise; the rest is for a busy machine
				t.Errorf("normal answers only %v after the return", took)
			}
			if slowest := time.Duration(l.slowest.Load()); slowest > deadline+
				5*time.Second { // its own deadline ends a call; the rest is for a busy machine
				t.Errorf("an answer took %v with a deadline of %v", slowest, deadline)
			}
			l.stop()
			t.Logf("normal answers %v after the return; slowest answer %v; refusals %v", took,
				time.Duration(l.slowest.Load()), l.errors)
			for text := range l.errors {
				if !strings.HasPrefix(text, "Unavailable: rate limit store is unavailable") &&
					!strings.HasPrefix(text, "DeadlineExceeded: ") {
					t.Errorf("a caller was told %q", text)
				}
			}
		})
	}
	f("kill -9", func(s *localserver.Server) error { s.Kill(); return nil },
		func(s *localserver.Server) error { return s.Restart(context.Background()) })
	f("SIGSTOP", (*localserver.Server).Stop, (*localserver.Server).Cont)
}

// Broken replies of Redis neither crash the daemon nor keep it from answering afterwards, nor from ending while they
// come.
func TestRedisNonsense(t *testing.T) {
	t.Parallel()
	for _, g := range countertest.RESPGarbles {
		t.Run(g.Name, func(t *testing.T) {
			t.Parallel()
			redis := testdb.Redis(t)
			proxy := countertest.NewGarbler(t, redis.Addr)
			p := start(t, `[{key: k, @1000000/y}]`, onRedis(fmt.Sprintf("redis://%s/%d", proxy.Addr(), redis.DB)))
			l := startTraffic(p.dial(t), 8, time.Second)
			defer l.stop()
			answers := func(when string) {
				t.Helper()
				since, ok := time.Now(), l.ok.Load()
				await.True(t, "answers "+when, func() bool { return l.ok.Load() > ok+100 })
				if took := time.Since(since); took > 15*time.Second { // 2 s is the promise; the rest is for a busy machine
					t.Errorf("answers %s took %v", when, took)
				}
			}
			answers("at the start")
			proxy.Once(g)
			await.True(t, "a reply is garbled", func() bool { return proxy.Garbled() > 0 })
			answers("after one broken reply")
			if code, body := get(t, p.http+"/healthcheck"); code != http.StatusOK {
				t.Errorf("/healthcheck answers %d %s", code, body)
			}
			proxy.At(0.1, g)
			time.Sleep(200 * time.Millisecond)
			must.Succeed(t, p.Stop(20*time.Second))
		})
	}
}

// The failure modes, with a Redis that is gone.
func TestFailureModes(t *testing.T) {
	t.Parallel()
	f := func(mode, domain string, want codes.Code, verdict pb.RateLimitResponse_Code) {
		t.Helper()
		redis := testdb.Private(t, localserver.RedisOptions{})
		e := on("single", redis.Addr(), "STORE_FAILURE_MODE", mode)
		rules := `[{key: k, @5/y}]`
		if domain != "" {
			rules = "domain: d\non_store_failure: " + domain + "\ndescriptors: " + rules
		}
		c := start(t, rules, e).dial(t)
		decide1(t, c, "k", "v")
		redis.Kill()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		got, err := c.ShouldRateLimit(ctx, request("k", "v"))
		if status.Code(err) != want || got.GetOverallCode() != verdict {
			t.Errorf("mode %s, domain %q: %v %v, want %v %v", mode, domain, got, err, want, verdict)
		}
	}
	f("error", "", codes.Unavailable, pb.RateLimitResponse_UNKNOWN)
	f("allow", "", codes.OK, pb.RateLimitResponse_OK)
	f("deny", "", codes.OK, pb.RateLimitResponse_OVER_LIMIT)
	f("deny", "allow", codes.OK, pb.RateLimitResponse_OK)
}

// Through kills and freezes of Redis, under load, the failure modes allow and deny answer every call, and normal answers
// follow.
func TestFailureModes_loop(t *testing.T) {
	t.Parallel()
	for mode, verdict := range map[string]pb.RateLimitResponse_Code{
		"allow": pb.RateLimitResponse_OK, "deny": pb.RateLimitResponse_OVER_LIMIT} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			redis := testdb.Private(t, localserver.RedisOptions{})
			e := onRedis(redis.Addr())
			e["STORE_FAILURE_MODE"] = mode
			c := start(t, `[{key: k, @1000000/y}]`, e).dial(t)
			var counted, failed atomic.Int64
			var done atomic.Bool
			var callers sync.WaitGroup
			for i := range 8 {
				callers.Go(func() {
					for !done.Load() {
						ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
						got, err := c.ShouldRateLimit(ctx, request("k", fmt.Sprint(i)))
						cancel()
						switch {
						case err != nil:
							t.Error(err)
							return
						case got.Statuses[0].LimitRemaining > 0 && got.OverallCode == pb.RateLimitResponse_OK:
							counted.Add(1)
						case got.OverallCode == verdict: // with nothing remaining
							failed.Add(1)
							time.Sleep(time.Millisecond)
						default:
							t.Errorf("neither counted nor failed: %v", got)
						}
					}
				})
			}
			defer callers.Wait()
			defer done.Store(true)
			more := func(what string, n *atomic.Int64) {
				t.Helper()
				was := n.Load()
				await.True(t, what, func() bool { return n.Load() > was+100 })
			}
			more("counted calls", &counted)
			for round := range 4 {
				away, back := redis.Stop, redis.Cont
				if round%2 == 0 {
					away = func() error { redis.Kill(); return nil }
					back = func() error { return redis.Restart(t.Context()) }
				}
				must.Succeed(t, away())
				more("answers of the failure mode", &failed)
				must.Succeed(t, back())
				more("counted calls again", &counted)
			}
		})
	}
}

// A daemon killed at any moment leaves no key without a time to live.
func TestKilledDaemonLeavesNoImmortalKey(t *testing.T) {
	t.Parallel()
	redis := testdb.Redis(t)
	e := onRedis(redis.URL())
	e["STORE_STALL"] = "10s"
	kills, end := 0, time.Now().Add(chaos.Time(t, 0))
	for kills < 30 || time.Now().Before(end) {
		p := start(t, `[{key: k, @1000000/m}]`, e)
		c := p.dial(t)
		l := &traffic{errors: map[string]int{}}
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 8 { // ever new keys: creating one is where a TTL could be lost
			l.wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					l.once(c, fmt.Sprintf("%d-%d-%d", kills, i, n), time.Second)
				}
			})
		}
		await.True(t, "answers", func() bool { return l.ok.Load() > int64(20+kills*13%200) })
		p.Signal(syscall.SIGKILL)
		<-p.Ended()
		cancel()
		l.wg.Wait()
		kills++
	}
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{redis.Addr}, SelectDB: redis.DB,
		DisableCache: true, ForceSingleClient: true})
	must.Succeed(t, err)
	defer client.Close()
	keys, err := client.Do(t.Context(), client.B().Keys().Pattern("*").Build()).AsStrSlice()
	if err != nil || len(keys) < 1000 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	for _, key := range keys {
		ttl, err := client.Do(t.Context(), client.B().Ttl().Key(key).Build()).AsInt64()
		if err != nil || ttl == -1 || ttl > 60+5+6 {
			t.Errorf("key %s: TTL %d s, %v", key, ttl, err)
		}
	}
	t.Logf("%d kills, %d keys", kills, len(keys))
}

// SIGTERM loses no request in flight. Here they are all waiting for a store that is frozen when the
// signal comes and goes on afterwards.
func TestSIGTERM_waitsForRequestsInFlight(t *testing.T) {
	t.Parallel()
	redis := testdb.Private(t, localserver.RedisOptions{})
	e := onRedis(redis.Addr())
	e["STORE_STALL"] = "0"
	p := start(t, `[{key: k, @1000000/y}]`, e)
	var sent sentCalls
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStatsHandler(&sent))
	must.Succeed(t, err)
	t.Cleanup(func() { conn.Close() })
	c := pb.NewRateLimitServiceClient(conn)
	decide1(t, c, "k", "v")
	must.Succeed(t, redis.Stop())
	const calls = 50
	sent.n.Store(0)
	errs := make(chan error, calls)
	for range calls {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_, err := c.ShouldRateLimit(ctx, request("k", "v"))
			errs <- err
		}()
	}
	await.True(t, "all calls are sent", func() bool { return sent.n.Load() >= calls })
	// An answer to what the connection carries behind them says that the daemon has read them.
	must.Succeed(t, must.ErrOf(healthpb.NewHealthClient(conn).Check(t.Context(), new(healthpb.HealthCheckRequest))))
	must.Succeed(t, p.Signal(syscall.SIGTERM))
	p.log.await(t, `"stopping"`, nil)
	must.Succeed(t, redis.Cont())
	for range calls {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	must.Succeed(t, p.Stop(time.Minute))
}

// sentCalls counts the messages that a client has handed to its connection.
type sentCalls struct{ n atomic.Int64 }

// HandleRPC implements stats.Handler.
func (s *sentCalls) HandleRPC(_ context.Context, e stats.RPCStats) {
	if _, ok := e.(*stats.OutPayload); ok {
		s.n.Add(1)
	}
}

// TagRPC implements stats.Handler.
func (*sentCalls) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements stats.Handler.
func (*sentCalls) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (*sentCalls) HandleConn(context.Context, stats.ConnStats) {}

// Connections that send no request, or only half of one, delay no other connection's GOAWAY: neither port scanners nor
// probes that keep their connection open.
func TestSIGTERM_silentConnections(t *testing.T) {
	t.Parallel()
	p := start(t, `[{key: k, @5/m}]`, map[string]string{"DRAIN_TIMEOUT": "50s"})
	for _, say := range []string{"", "PRI * HTTP/2.0", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00"} {
		conn, err := net.Dial("tcp", p.grpc)
		must.Succeed(t, err)
		defer conn.Close()
		must.Succeed(t, must.ErrOf(conn.Write([]byte(say))))
	}
	decide1(t, p.dial(t), "k", "v") // the others have been accepted before
	begun := time.Now()
	must.Succeed(t, p.Stop(time.Minute))
	if took := time.Since(begun); took > 40*time.Second {
		t.Errorf("stopping took %s", took)
	}
}

// A SIGHUP never ends the daemon, not even while it is about to stop. The profile keeps its last
// phase going for a second.
func TestSIGHUP_whileStopping(t *testing.T) {
	t.Parallel()
	p := start(t, `[{key: k, @5/m}]`, nil)
	go http.Get("http://" + p.debug + "/debug/pprof/profile?seconds=5") // it is cut
	time.Sleep(100 * time.Millisecond)
	must.Succeed(t, p.Signal(syscall.SIGTERM))
	for p.Signal(syscall.SIGHUP) == nil {
		time.Sleep(10 * time.Millisecond)
	}
	must.Succeed(t, p.Stop(0))
}

// Under load, a stopping daemon answers what it has accepted: a caller only ever sees that the listener is closed.
// Health says so first, for as long as DRAIN_DELAY.
func TestSIGTERM_underLoad(t *testing.T) {
	t.Parallel()
	p := start(t, `[{key: k, @1000000/y}]`, map[string]string{"DRAIN_DELAY": "2s"})
	var wg sync.WaitGroup
	for i := range 8 {
		c := p.dial(t)
		wg.Go(func() {
			for n := 0; ; n++ {
				ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				_, err := c.ShouldRateLimit(ctx, request("k", fmt.Sprint(i, n%10)))
				cancel()
				if err == nil {
					time.Sleep(time.Millisecond) // health is queried too
					continue
				}
				if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "connection refused") {
					t.Errorf("a call was lost: %v", err)
				}
				return
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	must.Succeed(t, p.Signal(syscall.SIGTERM))
	p.log.await(t, `"stopping"`, nil)
	if status, _ := get(t, p.http+"/healthcheck"); status != 500 {
		t.Errorf("/healthcheck while draining: %d, want 500", status)
	}
	wg.Wait()
	must.Succeed(t, p.Stop(time.Minute))
}

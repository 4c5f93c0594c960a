package test

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

var _ = effect("BACKEND_TYPE", func(t *testing.T) {
	redis := testdb.Private(t, localserver.RedisOptions{})
	env := on("single", redis.Addr())
	for _, backend := range []string{"redis", "kvstore", "memory"} {
		before := stored(t, []*localserver.Server{redis}, "d_k_v_")
		env["BACKEND_TYPE"] = backend
		decide1(t, start(t, anyLimit, env).dial(t), "k", "v")
		added := stored(t, []*localserver.Server{redis}, "d_k_v_") - before
		if (backend == "memory") != (added == 0) {
			t.Errorf("%s: Redis got %d hits", backend, added)
		}
	}
	out, err := command(map[string]string{"BACKEND_TYPE": "redis"}).CombinedOutput()
	if _, failed := err.(*exec.ExitError); !failed || !strings.Contains(string(out), "needs KVSTORE_URL") {
		t.Errorf("without a URL: %v %s", err, out)
	}
})

// counterKey is the key by which the daemon counts (k, v) of domain d.
func counterKey(t testing.TB, env map[string]string) string {
	t.Helper()
	_, body := get(t, start(t, anyLimit, env).debug+"/explain?domain=d&descriptor=k=v")
	for line := range strings.SplitSeq(body, "\n") {
		if fields := strings.Fields(line); len(fields) > 2 && fields[0] == "counter" && fields[1] == "key" {
			return fields[2]
		}
	}
	t.Errorf("no counter key in %s", body)
	return ""
}

var _ = effect("CACHE_KEY_PREFIX", func(t *testing.T) {
	for prefix, want := range map[string]string{"": "d_k_v_", "gate:": "gate:d_k_v_"} {
		if got := counterKey(t, map[string]string{"CACHE_KEY_PREFIX": prefix}); !strings.HasPrefix(got, want) {
			t.Errorf("%q: %s", prefix, got)
		}
	}
})

var _ = effect("CACHE_KEY_FORMAT", func(t *testing.T) {
	for format, want := range map[string]string{"plain": "d_k_v_", "escaped": "d|k=v|y1|"} {
		if got := counterKey(t, map[string]string{"CACHE_KEY_FORMAT": format}); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s", format, got)
		}
	}
})

// Keys of one window end together without jitter, and at different times with it.
var _ = effect("EXPIRATION_JITTER_MAX_SECONDS", func(t *testing.T) {
	redis := testdb.Private(t, localserver.RedisOptions{})
	for seconds, spread := range map[string]bool{"0": false, "100000": true} {
		env := on("single", redis.Addr(), "EXPIRATION_JITTER_MAX_SECONDS", seconds)
		c := start(t, anyLimit, env).dial(t)
		least, most := 1<<60, 0
		for i := range 20 {
			value := fmt.Sprint("j", seconds, "-", i)
			decide1(t, c, "k", value)
			keys, err := localserver.RedisCommand(t.Context(), redis.Addr(), "", "KEYS", "d_k_"+value+"_*")
			must.Succeed(t, err)
			text, err := localserver.RedisCommand(t.Context(), redis.Addr(), "", "TTL", strings.TrimSpace(keys))
			must.Succeed(t, err)
			ttl, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil || ttl <= 0 {
				t.Fatalf("TTL of %s is %q", keys, text)
			}
			least, most = min(least, ttl), max(most, ttl)
		}
		if (most-least > 1000) != spread { // of a year; 1000 s is more than a slow machine takes
			t.Errorf("%s: times to live from %d to %d", seconds, least, most)
		}
	}
})

var _ = effect("MEMORY_MAX_KEYS", func(t *testing.T) {
	p := start(t, anyLimit, map[string]string{"MEMORY_MAX_KEYS": "100"})
	c := p.dial(t)
	for i := range 400 {
		decide1(t, c, "k", fmt.Sprint(i))
	}
	if keys, evicted := stat(t, p, "ratelimit.memory.keys"), stat(t, p, "ratelimit.memory.evicted"); keys > 100 ||
		evicted < 300 {
		t.Errorf("%d counters are held, %d were dropped", keys, evicted)
	}
})

var _ = effect("LOCAL_CACHE_SIZE_IN_BYTES", func(t *testing.T) {
	for size, want := range map[string]int64{"1000000": 2, "0": 0} {
		p := start(t, `[{key: k, @1/y}]`, map[string]string{"LOCAL_CACHE_SIZE_IN_BYTES": size})
		c := p.dial(t)
		for range 4 { // in, the one that goes over, and two that the cache refuses
			decide1(t, c, "k", "v")
		}
		if got := stat(t, p, "ratelimit.service.rate_limit.d.k.over_limit_with_local_cache"); got != want {
			t.Errorf("%s bytes: %d hits refused by the cache, want %d", size, got, want)
		}
	}
})

var _ = effect("STORE_FAILURE_MODE", func(t *testing.T) {
	for mode, want := range map[string]string{"error": "Unavailable UNKNOWN", "allow": "OK OK",
		"deny": "OK OVER_LIMIT"} {
		redis := testdb.Private(t, localserver.RedisOptions{})
		env := on("single", redis.Addr(), "STORE_FAILURE_MODE", mode)
		c := start(t, anyLimit, env).dial(t)
		decide1(t, c, "k", "v")
		redis.Kill()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		answer, err := c.ShouldRateLimit(ctx, request("k", "v"))
		if got := fmt.Sprint(status.Code(err), " ", answer.GetOverallCode()); got != want {
			t.Errorf("%s: %s, want %s", mode, got, want)
		}
	}
})

// frozen is a daemon whose store says nothing any more.
func frozen(t *testing.T, more ...string) *process {
	t.Helper()
	redis := testdb.Private(t, localserver.RedisOptions{})
	env := on("single", redis.Addr(), more...)
	p := start(t, anyLimit, env)
	decide1(t, p.dial(t), "k", "v")
	must.Succeed(t, redis.Stop())
	t.Cleanup(func() { redis.Cont() })
	return p
}

// A silent store counts as dead after the stall, or, without one, when the caller's own time is up.
var _ = effect("STORE_STALL", func(t *testing.T) {
	const deadline = time.Minute
	for stall, want := range map[string]codes.Code{"1s": codes.Unavailable, "0": codes.DeadlineExceeded} {
		d := deadline
		if stall == "0" {
			d = 300 * time.Millisecond
		}
		c := frozen(t, "STORE_STALL", stall).dial(t)
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		if _, err := c.ShouldRateLimit(ctx, request("k", "v")); status.Code(err) != want {
			t.Errorf("%s: %v, want %v", stall, err, want)
		}
	}
})

// HTTP callers bring no deadline: this one answers before the store's own time-out.
var _ = effect("HTTP_REQUEST_TIMEOUT", func(t *testing.T) {
	p := frozen(t, "HTTP_REQUEST_TIMEOUT", "200ms", "KVSTORE_TIMEOUT", "1h")
	if resp, body := p.post(t, oneDescriptor); resp.StatusCode != 503 || !strings.Contains(body, "DEADLINE_EXCEEDED") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
})

package test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// A daemon that gets no processor finds every answer late, and does not take its store for dead; a store that is
// silent is still found out.
func TestStall_starved(t *testing.T) {
	t.Parallel()
	f := func(name string, server *localserver.Server, env map[string]string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env["STORE_STALL"], env["KVSTORE_TIMEOUT"], env["MCACHE_TIMEOUT"] = "250ms", "20s", "20s"
			p := start(t, `[{key: k, @1000000000/y}]`, env)
			l := startTraffic(p.dial(t), 32, 30*time.Second)
			defer l.stop()
			await.True(t, "answers", func() bool { return l.ok.Load() > 100 })
			for range 8 {
				must.Succeed(t, p.Signal(syscall.SIGSTOP))
				time.Sleep(400 * time.Millisecond)
				must.Succeed(t, p.Signal(syscall.SIGCONT))
				time.Sleep(20 * time.Millisecond)
			}
			ok := l.ok.Load()
			await.True(t, "answers again", func() bool { return l.ok.Load() > ok+100 })
			if text := p.log.text(); strings.Contains(text, "has been out for") || l.failed.Load() > 0 {
				t.Errorf("%d calls failed, %v: the store was taken for dead:\n%s", l.failed.Load(), l.errors, text)
			}

			must.Succeed(t, server.Stop())
			p.log.await(t, "has been out for 250ms", nil)
			must.Succeed(t, server.Cont())
		})
	}
	redis := testdb.Private(t, localserver.RedisOptions{})
	f("redis", redis, onRedis(redis.Addr()))
	nodes := testdb.Memcached(t, localserver.MemcachedOptions{})
	f("memcached", nodes, map[string]string{"BACKEND_TYPE": "memcache", "MCACHE_HOST_PORT": nodes.Addr()})
}

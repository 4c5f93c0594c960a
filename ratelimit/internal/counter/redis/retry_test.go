package redis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/countertest"
	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// fakeRedis counts like a Redis and refuses INCRBY and GET with what refuse says, as often as it says.
type fakeRedis struct {
	addr string

	mu     sync.Mutex
	refuse string // "" : nothing
	times  int
	conns  int
	totals map[string]int64
}

func newFakeRedis(t *testing.T) *fakeRedis {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	f := &fakeRedis{addr: l.Addr().String(), totals: map[string]int64{}}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.conns++
			f.mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				for r := bufio.NewReader(c); ; {
					words, err := readCommand(r)
					if err != nil {
						return
					}
					io.WriteString(c, f.answer(words)) // an error shows at the next read
				}
			})
		}
	})
	return f
}

func readCommand(r *bufio.Reader) (words []string, err error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	n, _ := strconv.Atoi(strings.Trim(line, "*\r\n"))
	for range n {
		if line, err = r.ReadString('\n'); err != nil {
			return nil, err
		}
		size, _ := strconv.Atoi(strings.Trim(line, "$\r\n"))
		word := make([]byte, size+2)
		if _, err = io.ReadFull(r, word); err != nil {
			return nil, err
		}
		words = append(words, string(word[:size]))
	}
	return words, nil
}

func (f *fakeRedis) answer(words []string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch words[0] {
	case "PING":
		return "+PONG\r\n"
	case "INCRBY", "GET":
		if f.times > 0 {
			f.times--
			return "-" + f.refuse + "\r\n"
		}
		if words[0] == "INCRBY" {
			n, _ := strconv.ParseInt(words[2], 10, 64)
			f.totals[words[1]] += n
		}
		return fmt.Sprintf(":%d\r\n", f.totals[words[1]])
	case "SET", "EXPIRE":
		return "+OK\r\n"
	case "ROLE":
		return "*1\r\n$6\r\nmaster\r\n"
	}
	return "-ERR unknown command '" + words[0] + "'\r\n"
}

func (f *fakeRedis) set(refuse string, times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse, f.times = refuse, times
}

// Answers that say that nothing was counted: the hit goes out again, and counts once.
func TestRetry_notExecuted(t *testing.T) {
	server := newFakeRedis(t)
	s := newTestStore(t, Options{Settings: Settings{URL: server.addr, PoolSize: 1}, Stall: -1, OnEmpty: Wait})
	add(t, s, now(), h("known", 1)) // so that no SET goes before
	want := int64(1)
	f := func(refuse string, again bool) {
		t.Helper()
		server.set(refuse, 2)
		server.mu.Lock()
		conns := server.conns
		server.mu.Unlock()
		if got := add(t, s, now(), h("known", 1)); got != want+1 {
			t.Errorf("%s: total %d, want %d", refuse, got, want+1)
		}
		want++
		server.mu.Lock()
		defer server.mu.Unlock()
		if (server.conns > conns) != again {
			t.Errorf("%s: %d connections more, want some: %v", refuse, server.conns-conns, again)
		}
	}
	f("LOADING Redis is loading the dataset in memory", false)
	f("CLUSTERDOWN The cluster is down", false)
	f("READONLY You can't write against a read only replica.", true)
	f("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", true)
	if s.Open() {
		t.Error("two refusals at a time have opened the breaker")
	}

	// Others fail at once.
	for _, refuse := range []string{"OOM command not allowed when used memory > 'maxmemory'.", "MOVED 3999 127.0.0.1:1",
		"NOPERM no", "ERR"} {
		server.set(refuse, 1)
		err := s.Add(t.Context(), &counter.Request{Hits: []counter.Hit{h("known", 1)}, Now: now()})
		if !errors.Is(err, counter.ErrUnavailable) || errors.Is(err, errLater) {
			t.Errorf("%s: %v", refuse, err)
		}
	}

	// The caller's time ends it, with the cause that it is, and five in a row open the breaker.
	server.set("LOADING", 1<<30)
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Millisecond)
	defer cancel()
	if err := s.Add(ctx, &counter.Request{Hits: []counter.Hit{h("known", 1)}, Now: now()}); !errors.Is(err,
		counter.ErrUnavailable) && !errors.Is(err, counter.ErrTimeout) {
		t.Errorf("%v, want ErrUnavailable or ErrTimeout", err)
	}
	if err := s.Add(t.Context(), &counter.Request{Hits: []counter.Hit{h("known", 1)}, Now: now()}); !errors.Is(err,
		counter.ErrOpen) {
		t.Errorf("%v, want ErrOpen", err)
	}
	if !s.Open() {
		t.Error("the breaker is not open")
	}
	server.set("", 0)
	await.True(t, "a probe closes the breaker", func() bool { return !s.Open() })
	if got := add(t, s, now(), h("else", 1)); got != 1 {
		t.Errorf("total %d", got)
	}
}

// Connections that the server ends while they rest lose no hit, and those under way open no breaker.
func TestKVStore_clientKill(t *testing.T) {
	server := testdb.Private(t, localserver.RedisOptions{})
	// Two connections cannot fail five times at two kills, whatever they are doing just then.
	s := newTestStore(t, Options{Settings: Settings{URL: server.Addr(), PoolSize: 2}, Stall: -1, OnEmpty: Wait})
	kill := func() {
		t.Helper()
		must.Succeed(t, must.ErrOf(localserver.RedisCommand(
			t.Context(), server.Addr(), "", "CLIENT", "KILL", "TYPE", "normal", "SKIPME",
			"yes")))
	}
	for i := range 10 {
		if got := add(t, s, now(), h("key", 1)); got != int64(i+1) {
			t.Errorf("total %d, want %d", got, i+1)
		}
		time.Sleep(20 * time.Millisecond)
		kill()
	}
	l := startLoad(s, 64, 5*time.Second, 0)
	defer l.end()
	for range 30 {
		for s.Add(t.Context(), &counter.Request{Hits: []counter.Hit{h("after", 1)}, Now: now()}) != nil {
		}
		kill()
		if s.Open() {
			t.Fatal("the breaker is open though the server takes new connections")
		}
	}
	l.end()
	total, err := countertest.Peek(t.Context(), s, "hot")
	for range 8 { // the last kill may have met the connections that it takes
		if err != nil {
			total, err = countertest.Peek(t.Context(), s, "hot")
		}
	}
	if err != nil || total < l.ok.Load() || total > l.ok.Load()+l.failed.Load() {
		t.Errorf("total %d (%v) after %d hits and %d that may count", total, err, l.ok.Load(), l.failed.Load())
	}
	t.Logf("%d counted, %d failed: %v", l.ok.Load(), l.failed.Load(), l.errors)
	for text := range l.errors {
		if strings.Contains(text, counter.ErrOpen.Error()) {
			t.Errorf("a caller was told %q", text)
		}
	}
}

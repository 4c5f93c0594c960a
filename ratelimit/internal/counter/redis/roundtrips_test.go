package redis

import (
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// relay passes a store's connections on to a server, and counts what the store sends.
type relay struct {
	net.Listener
	server string

	mu       sync.Mutex
	commands []string
	trips    int
	answered bool // since the last command, or nothing was sent yet
}

func newRelay(t *testing.T, server string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	r := &relay{Listener: l, server: server, answered: true}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", server)
			if err != nil {
				t.Error(err)
				client.Close()
				return
			}
			conns.Go(func() { r.requests(server, client); server.Close() })
			conns.Go(func() { r.answers(client, server); client.Close() })
		}
	})
	t.Cleanup(func() { l.Close(); conns.Wait() })
	return r
}

// requests passes on what is written at once, and counts its commands first: their answers come later.
func (r *relay) requests(to io.Writer, from io.Reader) {
	buf, rest := make([]byte, 64<<10), ""
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		rest = r.note(rest + string(buf[:n]))
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// commandName is the name of a command, which is an array of strings.
var commandName = regexp.MustCompile(`\*\d+\r\n\$\d+\r\n([A-Z]+)\r\n`)

// note returns what may be the beginning of a command.
func (r *relay) note(text string) (rest string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rest = text
	for _, m := range commandName.FindAllStringSubmatchIndex(text, -1) {
		rest = text[m[1]:]
		if name := text[m[2]:m[3]]; name != "PING" && name != "HELLO" { // of an idle connection, or a new one
			r.commands = append(r.commands, name)
			if r.answered {
				r.trips++
			}
			r.answered = false
		}
	}
	return rest
}

func (r *relay) answers(to io.Writer, from io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		r.mu.Lock()
		r.answered = true
		r.mu.Unlock()
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// take returns the commands since the last time, and how many times the store waited for answers.
func (r *relay) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprint(r.trips, " ", strings.Join(r.commands, " "))
	r.commands, r.trips = nil, 0
	return text
}

// A request is one round trip, whatever limits it has: one command for each key, and the time to live of a new fixed
// window with it. Only what a server has forgotten costs a second.
func TestRoundTrips(t *testing.T) {
	server := testdb.Private(t, localserver.RedisOptions{})
	peer := redisClient(t, server.Addr(), 0)
	relay := newRelay(t, server.Addr())
	// A second connection, opened when the first is slow to come back, would give the server its scripts too.
	s := newTestStore(t, Options{Settings: Settings{URL: relay.Addr().String(), Timeout: patience, PoolSize: 1}, Stall: -1,
		OnEmpty: Wait})
	f := func(want string, stop counter.Stop, hits ...counter.Hit) {
		t.Helper()
		must.Succeed(t, s.Add(t.Context(), &counter.Request{Hits: hits, Now: now(), Stop: stop}))
		if got := relay.take(); got != want {
			t.Errorf("round trips and commands: %s, want %s", got, want)
		}
	}
	w := func(key string, n uint64) counter.Hit { return daily(sliding(key, n, 100)) }
	b := func(key string, n uint64) counter.Hit { return daily(bucket(key, n, 100, 100)) }
	none, all := counter.StopNone, counter.StopAll
	f("2 SCRIPT SCRIPT SCRIPT SCRIPT SET INCRBY", none, h("warm", 1)) // opens the connection
	f("1 EVALSHA EVALSHA", none, w("w", 1), b("b", 1))
	f("1 EVALSHA EVALSHA SET INCRBY", none, w("w", 1), b("b", 1), h("x", 1)) // a list of three
	f("1 EVALSHA EVALSHA INCRBY", none, w("w", 1), b("b", 1), h("x", 1))
	f("1 EVALSHA", none, w("w", 1), w("w", 0), refund(w("w", 1)), w("w", 99))
	f("1 EVALSHA GET", none, b("b", 0), h("x", 0))
	f("1 EVALSHA", all, w("w", 1), b("b", 1), h("x", 1))
	f("1 EVALSHA", all, w("w", 1), b("b", 99), h("x", 1))
	f("1 EVAL INCRBY", none, refund(h("x", 1)), h("x", 1))
	f("1 EVAL EVALSHA", none, b("b", 1), bucket("b", 1, 100, 50)) // the first must not come second
	must.Succeed(t, peer.Do(t.Context(), peer.B().ScriptFlush().Build()).Error())
	// What counts by itself is not sent again, nor the text of a script for its second key.
	f("2 EVALSHA EVALSHA INCRBY EVALSHA EVAL EVALSHA EVAL", none, w("w", 1), w("v", 1), h("x", 1), b("b", 1))
	f("1 EVALSHA EVALSHA INCRBY EVALSHA", none, w("w", 1), w("v", 1), h("x", 1), b("b", 1))
}

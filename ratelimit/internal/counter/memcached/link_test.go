package memcached

import (
	"fmt"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// One batch of everything that a node can be sent, refusals between the others included.
func TestMemcacheLink(t *testing.T) {
	server := testdb.Memcached(t, localserver.MemcachedOptions{})
	conn, err := net.Dial("tcp", server.Addr())
	must.Succeed(t, err)
	defer conn.Close()
	l := newConnection(conn)
	l.begin(time.Now().Add(time.Minute))
	l.shift("a", 5)
	l.add("a", 7, 60)
	l.add("a", 1, 60)
	l.shift("a", 5)
	l.shift("a", -2)
	l.shift("a", -100)
	l.shift("none", -1)
	l.shift(strings.Repeat("k", 251), 1) // too long: refused
	l.add("text", 1, -1)                 // expired at once
	l.shift("text", 1)
	l.add("big", math.MaxInt64, 60)
	l.shift("big", math.MaxInt64)
	l.shift("a", 3)
	must.Succeed(t, l.flush())
	for i, want := range []string{"missing", "0", "missing", "12", "10", "0", "missing", "refused", "0", "missing", "0",
		fmt.Sprint(int64(math.MaxInt64)), "3"} {
		r, err := l.reply()
		must.Succeed(t, err)
		got := fmt.Sprint(r.total)
		switch {
		case r.missing:
			got = "missing"
		case r.err != nil && !r.fault:
			got = "refused"
		}
		if got != want {
			t.Errorf("reply %d is %q (%+v), want %q", i, got, r, want)
		}
	}
}

// writes counts a connection's.
type writes struct {
	net.Conn
	n atomic.Int64
}

func (c *writes) Write(b []byte) (int, error) {
	c.n.Add(1)
	return c.Conn.Write(b)
}

// However many counters wait, a node is sent them in one write, and in two when they are new.
func TestNode_count(t *testing.T) {
	server := testdb.Memcached(t, localserver.MemcachedOptions{})
	s := newTestMemcache(t, patient3([]string{server.Addr()}))
	n := s.nodes[0]
	n.quiet.Stop() // else a slow test's link is closed for resting
	conn, err := net.Dial("tcp", server.Addr())
	must.Succeed(t, err)
	counted := &writes{Conn: conn}
	n.link = newConnection(counted) // no writer has it
	count := func(change, total, sent int64) {
		t.Helper()
		batch := make([]pendingIncr, 100)
		for i := range batch {
			batch[i] = pendingIncr{count: &localCount{node: n, key: fmt.Sprint("t", i)}, change: change,
				ends: now() + 60}
		}
		before := counted.n.Load()
		n.increment(batch)
		for _, b := range batch {
			if b.err != nil || b.total != total {
				t.Fatalf("%s: %d, %v; want %d", b.count.key, b.total, b.err, total)
			}
		}
		if got := counted.n.Load() - before; got != sent {
			t.Errorf("%d writes, want %d", got, sent)
		}
	}
	count(3, 3, 2)
	count(4, 7, 1)
	count(-2, 5, 1)

	// A link that was closed while idle is opened again, and what was sent on it is sent again.
	conn.(*net.TCPConn).CloseWrite()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Fatal("memcached does not hang up")
	}
	batch := []pendingIncr{{count: &localCount{node: n, key: "t0"}, change: 1, ends: now() + 60}}
	n.increment(batch)
	if batch[0].err != nil || batch[0].total != 6 {
		t.Errorf("%d, %v; want 6", batch[0].total, batch[0].err)
	}
}

func FuzzParseReply(f *testing.F) {
	for _, s := range []string{"0\r\n", "17\r\n", "9  \r\n", "18446744073709551615\r\n", "18446744073709551616\r\n",
		"-1\r\n", "STORED\r\n", "NOT_STORED\r\n",
		"NOT_FOUND\r\n", "ERROR\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
		"SERVER_ERROR out of memory storing object\r\n", "\r\n", "1x\r\n", "HTTP/1.1 400 Bad Request\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := parseReply(line)
		if r.total < 0 || r.missing && r.total > 0 || err != nil && r != (reply{}) {
			t.Errorf("%q: %+v %v", line, r, err)
		}
		if err == nil && r.err == nil && !r.missing && !strings.HasPrefix(string(line), "STORED") &&
			len(strings.Trim(string(line), "0123456789 \r\n")) > 0 {
			t.Errorf("%q is read as %d", line, r.total)
		}
	})
}

//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

// tripCounter stands between a daemon and PostgreSQL and counts the round trips: answers that end with
// ReadyForQuery.
type tripCounter struct {
	dir      string
	upstream string
	listener net.Listener
	trips    atomic.Int64
}

// countTripsTo listens on a unix socket of its own for a PostgreSQL on one.
func countTripsTo(upstream string) (*tripCounter, error) {
	dir, err := os.MkdirTemp("", "gatehouse-trips-")
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", filepath.Join(dir, filepath.Base(upstream)))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	c := &tripCounter{dir: dir, upstream: upstream, listener: listener}
	go c.accept()
	return c, nil
}

// url is DATABASE_URL for a database behind the counter.
func (c *tripCounter) url(database string) string {
	return "postgres://postgres@/" + database + "?host=" + c.dir
}

// close ends the listening; connections end with their daemon.
func (c *tripCounter) close() error {
	return errors.Join(c.listener.Close(), os.RemoveAll(c.dir))
}

func (c *tripCounter) accept() {
	for {
		client, err := c.listener.Accept()
		if err != nil {
			return
		}
		go c.pass(client)
	}
}

func (c *tripCounter) pass(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("unix", c.upstream)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		io.Copy(server, client)
		server.Close()
	}()
	buf := make([]byte, 32<<10)
	var m messages
	for {
		n, err := server.Read(buf)
		c.trips.Add(int64(m.ready(buf[:n])))
		if _, failed := client.Write(buf[:n]); failed != nil || err != nil {
			return
		}
	}
}

// messages follows what a PostgreSQL server writes: a byte for the kind, four for the length, content.
type messages struct {
	head [5]byte
	have int // bytes of head
	skip int // bytes of content still to come
}

// ready counts the ReadyForQuery messages that begin in b.
func (m *messages) ready(b []byte) (n int) {
	for len(b) > 0 {
		if m.skip > 0 {
			k := min(m.skip, len(b))
			m.skip, b = m.skip-k, b[k:]
			continue
		}
		k := copy(m.head[m.have:], b)
		m.have, b = m.have+k, b[k:]
		if m.have == len(m.head) {
			m.have, m.skip = 0, int(binary.BigEndian.Uint32(m.head[1:]))-4
			if m.head[0] == 'Z' {
				n++
			}
		}
	}
	return n
}

// countTrips asks a daemon of its own, on the accounts of its edition's HS256, for each scenario over one connection,
// after a warm-up in which statements are prepared. What the daemon does in the background counts too:
// hence not always whole numbers.
func (s *authSuite) countTrips(ctx context.Context, e edition) (map[string]float64, error) {
	counter, err := countTripsTo(s.db.server.Addr())
	if err != nil {
		return nil, err
	}
	defer counter.close()
	t, err := s.testbed.authOf(e.auth, "counted"+e.suffix, counter.url("HS256"+e.suffix), cheapHash("HS256")...)
	if err != nil {
		return nil, err
	}
	if err := s.testbed.awaitHTTP(ctx, t, "/health", ""); err != nil {
		return nil, err
	}
	crowd, counts := s.crowd["HS256"+e.suffix], map[string]float64{}
	var newcomers []account
	up := signingUp("counted", &newcomers)
	for _, scenario := range []struct {
		name    string
		traffic func() httpTraffic
	}{
		{"user", func() httpTraffic { return asUser(crowd) }},
		{"refresh", func() httpTraffic { return refreshing(crowd) }},
		{"password", func() httpTraffic { return signingIn(authConns, crowd) }},
		{"signup", func() httpTraffic { return up }},
		{"logout", func() httpTraffic { return signingOut(1, newcomers) }},
	} {
		if !s.wanted(scenario.name) && (scenario.name != "signup" || !s.wanted("logout")) {
			continue
		}
		var before int64
		var trips []int64
		l := load{addr: t.addr, traffic: scenario.traffic(), conns: 1, run: time.Minute, warmCalls: 100, calls: 300}
		if scenario.name == "logout" {
			l.calls = 200 // of the 400 who signed up, each once
		}
		l.mark = func() error {
			now := counter.trips.Load()
			trips = append(trips, now-before)
			before = now
			return nil
		}
		r, err := l.drive()
		if err == nil && r.failed > 0 {
			err = errors.New(r.refusal)
		}
		if err != nil {
			return nil, fmt.Errorf("round trips of %s: %w\n%s", scenario.name, err, s.testbed.logTail(t))
		}
		counts[scenario.name] = float64(trips[1]) / float64(r.answered())
	}
	return counts, s.testbed.stop(t)
}

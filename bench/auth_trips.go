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

// tripCounter is a proxy between a daemon and PostgreSQL that counts round trips: answers that end with ReadyForQuery.
type tripCounter struct {
	dir      string
	listener net.Listener
	trips    atomic.Int64
}

// countTripsTo listens on a unix socket of its own for a PostgreSQL on a unix socket.
func countTripsTo(upstream string) (*tripCounter, error) {
	dir, err := os.MkdirTemp("", "gatehouse-trips-")
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", filepath.Join(dir, filepath.Base(upstream)))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	c := &tripCounter{dir: dir, listener: listener}
	go relay(listener, "unix", upstream, c.count)
	return c, nil
}

// url returns DATABASE_URL for a database through the counter.
func (c *tripCounter) url(database string) string {
	return "postgres://postgres@/" + database + "?host=" + c.dir
}

// close ends the listening; connections end with their daemon.
func (c *tripCounter) close() error {
	return errors.Join(c.listener.Close(), os.RemoveAll(c.dir))
}

func (c *tripCounter) count(client io.Writer, server io.Reader) {
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

// messages parses what a PostgreSQL server writes: a byte for the kind, four for the length, content.
type messages struct {
	head [5]byte
	have int // bytes of head that have arrived
	skip int // bytes of content that have not arrived
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

// countTrips sends each scenario's requests over one connection to a daemon of its own, on the accounts of its
// edition's HS256, after a warm-up in which statements are prepared, and adds the round trips to the samples. Round
// trips of the daemon's background work count too, so the numbers are not always whole.
func (s *authSuite) countTrips(ctx context.Context, e edition) error {
	counter, err := countTripsTo(s.db.server.Addr())
	if err != nil {
		return err
	}
	defer counter.close()
	name := "HS256" + e.suffix
	t, err := s.testbed.readyAuth(ctx, e.auth, "counted"+e.suffix, counter.url(name), cheapHash("HS256")...)
	if err != nil {
		return err
	}
	s.targets[t.name], s.crowd[t.name] = t, s.crowd[name]
	for _, scenario := range []string{"user", "refresh", "password", "signup", "logout"} {
		if !s.asks(line{scenario: scenario}) {
			continue
		}
		l := s.load(line{scenario: scenario, target: t.name}, s.rounds)
		l.conns, l.warm, l.warmCalls, l.calls, l.run = 1, 0, 100, 300, time.Minute
		if scenario == "logout" {
			l.traffic, l.calls = signingOut(1, *s.toSignOut[t.name]), 200 // of the 400 that signed up, each once
		}
		counted, err := l.measure(func() (reading, error) { return reading{commands: counter.trips.Load()}, nil })
		if err != nil {
			return fmt.Errorf("round trips of %s: %w\n%s", scenario, err, s.testbed.logTail(t))
		}
		samples := s.samples[line{scenario: scenario, target: name}]
		for i := range samples {
			samples[i].commands = counted.commands
		}
	}
	delete(s.targets, t.name)
	return s.testbed.stop(t)
}

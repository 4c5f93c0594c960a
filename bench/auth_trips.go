//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
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

// count passes on what the server writes, message by message.
func (c *tripCounter) count(client io.Writer, server io.Reader) {
	messages := pgproto3.NewFrontend(io.TeeReader(server, client), io.Discard)
	for {
		message, err := messages.Receive()
		if err != nil {
			return
		}
		if _, ready := message.(*pgproto3.ReadyForQuery); ready {
			c.trips.Add(1)
		}
	}
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
	t, err := s.testbed.auth(ctx, e.auth,
		authDaemon{name: "counted" + e.suffix, database: counter.url(name), settings: cheapHash("HS256")})
	if err != nil {
		return err
	}
	s.targets[t.name], s.crowd[t.name] = t, s.crowd[name]
	for _, scenario := range []string{"user", "refresh", "password", "signup", "logout"} {
		if !s.wants("auth", line{scenario: scenario}) {
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

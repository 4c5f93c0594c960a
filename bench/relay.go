//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// startSink starts a statsd server that discards everything, over TCP and UDP on one port, and returns the daemon's
// settings for it. It runs as long as this program.
func startSink() (settings []string, err error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("statsd sink: %w", err)
	}
	host, port, _ := net.SplitHostPort(listener.Addr().String())
	if _, err := net.ListenPacket("udp4", listener.Addr().String()); err != nil { // the kernel drops what is not read
		return nil, fmt.Errorf("statsd sink: %w", err)
	}
	go serveEach(listener, func(c net.Conn) { io.Copy(io.Discard, c) })
	return []string{"USE_STATSD=true", "STATSD_HOST=" + host, "STATSD_PORT=" + port}, nil
}

// serveEach passes each connection to handle until the listener closes.
func serveEach(listener net.Listener, handle func(net.Conn)) {
	for {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			handle(c)
		}()
	}
}

// delayed returns an address that relays to addr and delays the answers, until ctx ends; addr itself without a delay.
func delayed(ctx context.Context, addr string, delay time.Duration) (string, error) {
	if delay <= 0 {
		return addr, nil
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { listener.Close() })
	go relay(listener, "tcp4", addr, func(client io.Writer, server io.Reader) { copyDelayed(client, server, delay) })
	return listener.Addr().String(), nil
}

// relay passes connections on to an address, and its answers through answers, until the listener closes.
func relay(listener net.Listener, network, addr string, answers func(client io.Writer, server io.Reader)) {
	serveEach(listener, func(client net.Conn) {
		server, err := net.Dial(network, addr)
		if err != nil {
			return
		}
		defer server.Close()
		var answered sync.WaitGroup
		answered.Go(func() { answers(client, server) })
		io.Copy(server, client)
		server.(interface{ CloseWrite() error }).CloseWrite() // its last answers still arrive
		answered.Wait()
	})
}

// copyDelayed copies what arrives, each piece after a delay.
func copyDelayed(to io.Writer, from io.Reader, delay time.Duration) {
	type piece struct {
		due  time.Time
		data []byte
	}
	pieces := make(chan piece, 1024)
	go func() {
		defer close(pieces)
		for {
			data := make([]byte, 16<<10)
			n, err := from.Read(data)
			if n > 0 {
				pieces <- piece{time.Now().Add(delay), data[:n]}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range pieces {
		time.Sleep(time.Until(p.due))
		to.Write(p.data) // the other direction notices a client that has left
	}
}

// tripCounter is a proxy between a daemon and PostgreSQL that counts round trips: answers that end with ReadyForQuery.
type tripCounter struct {
	dir      string
	listener net.Listener
	trips    atomic.Int64
}

// countTripsTo listens on a unix socket in a folder of its own, below parent, for a PostgreSQL on a unix socket.
func countTripsTo(upstream, parent string) (*tripCounter, error) {
	dir, err := os.MkdirTemp(parent, "trips-")
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", filepath.Join(dir, filepath.Base(upstream)))
	if err != nil {
		return nil, err
	}
	c := &tripCounter{dir: dir, listener: listener}
	go relay(listener, "unix", upstream, c.count)
	return c, nil
}

// url returns DATABASE_URL for a database through the counter.
func (c *tripCounter) url(database string) string {
	return "postgres://postgres@/" + database + "?host=" + c.dir
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
	counter, err := countTripsTo(s.db.server.Addr(), s.testbed.dir)
	if err != nil {
		return err
	}
	defer counter.listener.Close() // connections end with their daemon
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

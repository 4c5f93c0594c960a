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

// startSink starts a statsd server that discards everything, with TCP and UDP on the same port. It returns the settings
// with which a daemon sends its statistics to the server, which runs until this program ends.
func startSink() (settings []string, err error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("statsd sink: %w", err)
	}
	host, port, _ := net.SplitHostPort(listener.Addr().String())
	// Nothing reads from it: the kernel drops the datagrams.
	if _, err := net.ListenPacket("udp4", listener.Addr().String()); err != nil {
		return nil, fmt.Errorf("statsd sink: %w", err)
	}
	go serveEach(listener, func(c net.Conn) { io.Copy(io.Discard, c) })
	return []string{"USE_STATSD=true", "STATSD_HOST=" + host, "STATSD_PORT=" + port}, nil
}

// serveEach accepts connections and passes each to handle, until the listener closes.
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

// delayed returns an address that forwards connections to addr and delays the answers, until ctx ends. Without a delay
// it returns addr itself.
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

// relay forwards connections to an address, until the listener closes. It calls the function answers to copy the
// server's answers to the client.
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
		server.(interface{ CloseWrite() error }).CloseWrite() // half-close: the server's last answers still arrive
		answered.Wait()
	})
}

// copyDelayed copies what arrives from one side to the other, each piece after the given delay.
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
		to.Write(p.data) // on an error the client has disconnected, which the other direction notices
	}
}

// tripCounter is a proxy between a daemon and PostgreSQL. It counts round trips: answers that end with the message
// ReadyForQuery.
type tripCounter struct {
	dir      string
	listener net.Listener
	trips    atomic.Int64
}

// countTripsTo returns a tripCounter for a PostgreSQL at the unix socket upstream. It listens on a unix socket in a
// folder of its own, which it creates in parent.
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

// url returns the DATABASE_URL for a database that goes through the proxy.
func (c *tripCounter) url(database string) string {
	return "postgres://postgres@/" + database + "?host=" + c.dir
}

// count copies what the server sends to the client, message by message, and counts round trips.
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

// countTrips counts the round trips to PostgreSQL that each scenario needs, and adds them to the scenario's samples. It
// sends the requests over one connection to a daemon of its own, which uses the database of the edition's daemon HS256,
// after a warm-up in which statements are prepared. Round trips of the daemon's work in the background count, too, so
// the numbers are not always whole.
func (s *authSuite) countTrips(ctx context.Context, e edition) error {
	counter, err := countTripsTo(s.db.server.Addr(), s.testbed.dir)
	if err != nil {
		return err
	}
	defer counter.listener.Close() // open connections end with the daemon
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
			l.traffic, l.calls = signingOut(1, *s.toSignOut[t.name]), 200 // of 400 accounts, each of which can sign out once
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

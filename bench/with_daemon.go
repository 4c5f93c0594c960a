//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"gatehouse/shared/localserver"
)

// withDaemon is a daemon, and its store, with which a command is run.
type withDaemon struct {
	testbed *testbed
	rules   string
	delay   time.Duration
}

// runWith starts a daemon and its store, runs a command with BASE_URL, ADDR and PID in its environment, and ends both.
// For auth there is DATABASE_URL too; ratelimit has a file of rules, and there BASE_URL is that of /json and ADDR that
// of gRPC. The k6 scripts are run this way; a delay shows that they notice it.
func runWith(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	w := withDaemon{testbed: &testbed{statsd: []string{"DISABLE_STATS=true"}}}
	run := w.auth
	if args[0] == "with-ratelimit" {
		run = w.ratelimit
		flags.StringVar(&w.testbed.daemon, "daemon", "bin/ratelimit", "`program` to start")
		flags.StringVar(&w.rules, "rules", "loadtest/ratelimit/rules.yaml", "`file` of rules")
	} else {
		flags.StringVar(&w.testbed.authDaemon, "auth-daemon", "bin/auth", "`program` to start")
	}
	settings := flags.String("env", "", "further settings of the daemon, `NAME=value` separated by spaces")
	flags.DurationVar(&w.delay, "delay", 0, "how much later than it was made each answer arrives")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New(args[0] + ": no command to run")
	}
	w.testbed.settings(*settings)
	if w.testbed.dir, err = os.MkdirTemp("", "gatehouse-load-"); err != nil {
		return err
	}
	return run(ctx, flags.Args())
}

func (w *withDaemon) auth(ctx context.Context, command []string) error {
	db, err := startDatabase(ctx)
	if err != nil {
		return err
	}
	defer db.close()
	url, err := db.create(ctx, "load")
	if err != nil {
		return err
	}
	t, err := w.testbed.auth(ctx, w.testbed.authDaemon,
		authDaemon{name: "auth", database: url, settings: []string{"AUTH_PASSWORD_HASH=bcrypt:4"}})
	if err == nil {
		t.http = t.addr
		err = w.run(ctx, t, command, "DATABASE_URL="+url)
	}
	return errors.Join(err, w.testbed.close()) // before its database
}

func (w *withDaemon) ratelimit(ctx context.Context, command []string) error {
	rules, err := os.ReadFile(w.rules)
	if err != nil {
		return err
	}
	redis, err := localserver.Redis(ctx, localserver.RedisOptions{})
	if err != nil {
		return err
	}
	defer redis.Close()
	t, err := w.testbed.ratelimit(ctx, w.testbed.daemon, "", daemon{"ratelimit", rules, []*localserver.Server{redis}, nil})
	if err == nil {
		err = w.run(ctx, t, command)
	}
	return errors.Join(err, w.testbed.close()) // before its store
}

// run runs the command to its end.
func (w *withDaemon) run(ctx context.Context, t *target, command []string, env ...string) error {
	addr, err := delayed(ctx, t.addr, w.delay)
	if err != nil {
		return err
	}
	http := addr
	if t.http != t.addr {
		if http, err = delayed(ctx, t.http, w.delay); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(append(os.Environ(), "BASE_URL=http://"+http, "ADDR="+addr,
		"PID="+strconv.Itoa(t.process.PID())), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = grace
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", command[0], err)
	}
	return nil
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

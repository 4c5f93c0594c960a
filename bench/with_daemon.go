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

// runWith starts a daemon and its store, runs a command with BASE_URL, ADDR and PID in its environment, and ends both.
// For auth there is DATABASE_URL too; ratelimit has a file of rules, and there BASE_URL is that of /json and ADDR that
// of gRPC. The k6 scripts are run this way; a delay shows that they notice it.
func runWith(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	l, rules := &testbed{statsd: []string{"DISABLE_STATS=true"}}, ""
	grpc := args[0] == "with-ratelimit"
	if grpc {
		flags.StringVar(&l.daemon, "daemon", "bin/ratelimit", "`program` to start")
		flags.StringVar(&rules, "rules", "loadtest/ratelimit/rules.yaml", "`file` of rules")
	} else {
		flags.StringVar(&l.authDaemon, "auth-daemon", "bin/auth", "`program` to start")
	}
	settings := flags.String("env", "", "further settings of the daemon, `NAME=value` separated by spaces")
	delay := flags.Duration("delay", 0, "how much later than it was made each answer arrives")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New(args[0] + ": no command to run")
	}
	l.settings(*settings)
	if l.dir, err = os.MkdirTemp("", "gatehouse-load-"); err != nil {
		return err
	}
	var t *target
	var env []string
	if grpc {
		t, err = l.ratelimitOnRedis(ctx, rules)
	} else {
		t, env, err = l.authOnDatabase(ctx)
	}
	if err == nil {
		err = t.run(ctx, flags.Args(), *delay, env)
	}
	return errors.Join(err, l.close())
}

func (l *testbed) authOnDatabase(ctx context.Context) (t *target, env []string, err error) {
	db, err := startDatabase(ctx, l)
	if err != nil {
		return nil, nil, err
	}
	url, err := db.create(ctx, "load")
	if err != nil {
		return nil, nil, err
	}
	t, err = l.auth(ctx, l.authDaemon,
		authDaemon{name: "auth", database: url, settings: []string{"AUTH_PASSWORD_HASH=bcrypt:4"}})
	return t, []string{"DATABASE_URL=" + url}, err
}

func (l *testbed) ratelimitOnRedis(ctx context.Context, file string) (*target, error) {
	rules, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	redis, err := startServer(ctx, l, localserver.Redis, localserver.RedisOptions{})
	if err != nil {
		return nil, err
	}
	return l.ratelimit(ctx, l.daemon, "", daemon{"ratelimit", rules, []*localserver.Server{redis}, nil})
}

// run runs a command next to a daemon, to its end.
func (t *target) run(ctx context.Context, command []string, delay time.Duration, env []string) error {
	addr, err := delayed(ctx, t.addr, delay)
	if err != nil {
		return err
	}
	http := addr
	if t.http != "" {
		if http, err = delayed(ctx, t.http, delay); err != nil {
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

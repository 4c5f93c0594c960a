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
)

// runWithAuth starts PostgreSQL and auth, runs a command with BASE_URL, ADDR, PID and DATABASE_URL in its
// environment, and ends both. The k6 scripts are run so; a delay shows that they notice.
func runWithAuth(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("with-auth", flag.ContinueOnError)
	program := flags.String("auth-daemon", "bin/auth", "`program` to start")
	settings := flags.String("env", "", "further settings of the daemon, `NAME=value` separated by spaces")
	delay := flags.Duration("delay", 0, "how much later than it was made each answer arrives")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("with-auth: no command to run")
	}
	dir, err := os.MkdirTemp("", "gatehouse-load-")
	if err != nil {
		return err
	}
	l := &lab{dir: dir, authDaemon: *program}
	l.settings(*settings)
	db, err := startDatabase(ctx)
	if err != nil {
		return errors.Join(err, l.close())
	}
	defer db.close()
	defer func() { err = errors.Join(err, l.close()) }() // before its database
	url, err := db.create(ctx, "load")
	if err != nil {
		return err
	}
	t, err := l.auth("auth", url, "AUTH_PASSWORD_HASH=bcrypt:4")
	if err != nil {
		return err
	}
	if err := l.awaitHTTP(ctx, t, "/readyz", ""); err != nil {
		return err
	}
	addr := t.addr
	if *delay > 0 {
		listener, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer listener.Close()
		go relayLate(listener, t.addr, *delay)
		addr = listener.Addr().String()
	}
	cmd := exec.CommandContext(ctx, flags.Arg(0), flags.Args()[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "BASE_URL=http://"+addr, "ADDR="+addr, "DATABASE_URL="+url, "PID="+strconv.Itoa(t.process.PID()))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = grace
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", flags.Arg(0), err)
	}
	return nil
}

// relayLate passes connections on to addr and answers back, each piece of them after a delay, until the
// listener closes.
func relayLate(listener net.Listener, addr string, delay time.Duration) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer client.Close()
			server, err := net.Dial("tcp4", addr)
			if err != nil {
				return
			}
			defer server.Close()
			var answers sync.WaitGroup
			answers.Go(func() { late(client, server, delay) })
			io.Copy(server, client)
			server.(*net.TCPConn).CloseWrite() // its last answers still come
			answers.Wait()
		}()
	}
}

// late copies what comes, each piece a delay after it came.
func late(to io.Writer, from io.Reader, delay time.Duration) {
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
		to.Write(p.data) // a client that has gone is noticed by the other direction
	}
}

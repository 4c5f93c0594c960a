//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"
)

// runCommand runs a command to its end, with further variables in its environment.
func runCommand(ctx context.Context, args []string, env ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = grace
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return nil
}

// delayed is an address from which answers of addr come with a delay, until ctx ends; addr itself without one.
func delayed(ctx context.Context, addr string, delay time.Duration) (string, error) {
	if delay <= 0 {
		return addr, nil
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { listener.Close() })
	go relayDelayed(listener, addr, delay)
	return listener.Addr().String(), nil
}

// relayDelayed passes connections on to addr and answers back, each piece of them after a delay, until the
// listener closes.
func relayDelayed(listener net.Listener, addr string, delay time.Duration) {
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
			answers.Go(func() { copyDelayed(client, server, delay) })
			io.Copy(server, client)
			server.(*net.TCPConn).CloseWrite() // its last answers still come
			answers.Wait()
		}()
	}
}

// copyDelayed copies what comes, each piece a delay after it came.
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
		to.Write(p.data) // a client that has gone is noticed by the other direction
	}
}

//go:build linux

package main

import (
	"context"
	"io"
	"net"
	"sync"
	"time"
)

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
	go relay(listener, "tcp4", addr, func(client io.Writer, server io.Reader) { copyDelayed(client, server, delay) })
	return listener.Addr().String(), nil
}

// relay passes connections on to an address, and what comes back through answers, until the listener closes.
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
		server.(interface{ CloseWrite() error }).CloseWrite() // its last answers still come
		answered.Wait()
	})
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

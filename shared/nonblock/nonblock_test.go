package nonblock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gatehouse/shared/must"
	"gatehouse/shared/nonblock"
)

// pair is a wrapped connection and its peer.
func pair(t testing.TB, network, addr string) (wrapped, peer net.Conn) {
	t.Helper()
	l, err := net.Listen(network, addr)
	must.Succeed(t, err)
	defer l.Close()
	c, err := (&net.Dialer{}).DialContext(context.Background(), network, l.Addr().String())
	must.Succeed(t, err)
	if peer, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	wrapped = nonblock.Wrap(c)
	if _, ok := wrapped.(*nonblock.Conn); !ok {
		t.Fatalf("Wrap returned a %T", wrapped)
	}
	t.Cleanup(func() { c.Close(); peer.Close() })
	return wrapped, peer
}

// A connection that is given up is read by two goroutines for a moment: each gets what it read, in its own buffer.
func TestConn_twoReaders(t *testing.T) {
	c, peer := pair(t, "tcp", "127.0.0.1:0")
	got := make(chan string, 2)
	for range 2 {
		go func() {
			b := make([]byte, 1)
			n, err := c.Read(b)
			got <- fmt.Sprint(string(b[:n]), err)
		}()
	}
	for _, part := range []string{"a", "b"} {
		must.Succeed(t, must.ErrOf(peer.Write([]byte(part))))
		if text := <-got; text != part+"<nil>" {
			t.Errorf("read %q, want %q", text, part)
		}
	}
}

// More than the socket takes at once arrives whole, and in order, in both directions at the same time.
func TestConn(t *testing.T) {
	for network, addr := range map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(t.TempDir(), "socket")} {
		c, peer := pair(t, network, addr)
		sent := make([]byte, 8<<20)
		for i := range sent {
			sent[i] = byte(i * 31 >> 3)
		}
		errs := make(chan error, 3)
		go func() {
			n, err := c.Write(sent)
			if err == nil && n != len(sent) {
				err = io.ErrShortWrite
			}
			errs <- err
		}()
		go func() { _, err := io.CopyN(peer, peer, int64(len(sent))); errs <- err }()
		got := make([]byte, len(sent))
		go func() { _, err := io.ReadFull(c, got); errs <- err }()
		for range cap(errs) {
			if err := <-errs; err != nil {
				t.Fatalf("%s: %v", network, err)
			}
		}
		if !bytes.Equal(got, sent) {
			t.Errorf("%s: what came back differs", network)
		}
		if n, err := c.Read(nil); n != 0 || err != nil {
			t.Errorf("%s: an empty read: %d, %v", network, n, err)
		}
		peer.Close()
		if n, err := c.Read(got); n != 0 || err != io.EOF {
			t.Errorf("%s: a read after the peer's end: %d, %v, want EOF", network, n, err)
		}
	}
}

// Errors are those of package net.
func TestConn_errors(t *testing.T) {
	c, peer := pair(t, "tcp", "127.0.0.1:0")
	b := make([]byte, 1)
	f := func(op string, err, want error) {
		t.Helper()
		var e *net.OpError
		if !errors.As(err, &e) || e.Op != op || !errors.Is(err, want) {
			t.Errorf("got %#v (%v), want a net.OpError of a %s with %v", err, err, op, want)
		}
	}
	c.SetReadDeadline(time.Now().Add(-time.Second))
	_, err := c.Read(b)
	f("read", err, os.ErrDeadlineExceeded)
	if e, ok := err.(net.Error); !ok || !e.Timeout() {
		t.Errorf("%v is no timeout", err)
	}
	c.SetDeadline(time.Time{})

	// What the peer has not read when the deadline comes is not written.
	large := make([]byte, 64<<20) // takes its time on a busy machine
	c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	n, err := c.Write(large)
	f("write", err, os.ErrDeadlineExceeded)
	if n <= 0 || n >= 64<<20 {
		t.Errorf("%d bytes written before the deadline", n)
	}
	c.SetDeadline(time.Time{})

	peer.(*net.TCPConn).SetLinger(0)
	peer.Close()
	_, err = c.Read(b)
	f("read", err, syscall.ECONNRESET)
	if want := "read: connection reset by peer"; !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%q does not end in %q", err, want)
	}
	_, err = c.Write(b)
	f("write", err, syscall.EPIPE)

	c.Close()
	_, err = c.Read(b)
	f("read", err, net.ErrClosed)
	_, err = c.Write(b)
	f("write", err, net.ErrClosed)
}

// Close ends a read that waits.
func TestConn_closeWhileReading(t *testing.T) {
	c, _ := pair(t, "tcp", "127.0.0.1:0")
	errs := make(chan error)
	go func() { _, err := c.Read(make([]byte, 1)); errs <- err }()
	time.AfterFunc(10*time.Millisecond, func() { c.Close() })
	if err := <-errs; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want %v", err, net.ErrClosed)
	}
}

// A connection without a socket stays as it is.
func TestWrap_pipe(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	if c := nonblock.Wrap(a); c != a {
		t.Errorf("Wrap returned a %T", c)
	}
}

func TestConn_allocations(t *testing.T) {
	c, peer := pair(t, "tcp", "127.0.0.1:0")
	b := make([]byte, 64)
	go io.Copy(peer, peer)
	if n := testing.AllocsPerRun(100, func() {
		c.Write(b)
		io.ReadFull(c, b)
	}); n > 0 {
		t.Errorf("%v allocations for a write and the reads of its echo, want 0", n)
	}
}

func BenchmarkConn(b *testing.B) {
	for _, kind := range []string{"net", "nonblock"} {
		b.Run(kind, func(b *testing.B) {
			c, peer := pair(b, "tcp", "127.0.0.1:0")
			if kind == "net" {
				c = c.(*nonblock.Conn).Conn
			}
			go io.Copy(peer, peer)
			buf := make([]byte, 64)
			b.ReportAllocs()
			for b.Loop() {
				c.Write(buf)
				io.ReadFull(c, buf)
			}
		})
	}
}

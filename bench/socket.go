//go:build linux

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"golang.org/x/sys/unix"

	"gatehouse/shared/nonblock"
)

// socket is a TCP connection whose reads and writes do not wait.
type socket struct {
	fd  int
	out []byte // bytes that have not been written yet
}

// connect opens a connection to an IPv4 address on this machine.
func connect(addr string) (socket, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return socket{}, fmt.Errorf("dial: %w", err)
	}
	if !to.Addr().Is4() {
		return socket{}, fmt.Errorf("dial %s: not an IPv4 address", addr)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return socket{}, fmt.Errorf("dial: %w", err)
	}
	if err := errors.Join(
		unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.SetNonblock(fd, true),
	); err != nil {
		unix.Close(fd)
		return socket{}, fmt.Errorf("dial %s: %w", addr, err)
	}
	return socket{fd: fd}, nil
}

// flush writes the bytes in s.out. The bytes that the kernel does not accept now stay in s.out.
func (s *socket) flush() error {
	for len(s.out) > 0 {
		n, err := nonblock.Write(uintptr(s.fd), s.out)
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("write: %w", err)
		}
		s.out = s.out[:copy(s.out, s.out[n:])]
	}
	return nil
}

// read reads bytes that have arrived. If there are none, it returns 0 and no error.
func (s *socket) read(buf []byte) (int, error) {
	n, err := nonblock.Read(uintptr(s.fd), buf)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read: %w", err)
	case n == 0:
		return 0, errors.New("the server closed the connection")
	}
	return n, nil
}

// events returns the poll(2) events for which the connection is waiting.
func (s *socket) events() int16 {
	if len(s.out) > 0 {
		return unix.POLLIN | unix.POLLOUT
	}
	return unix.POLLIN
}

func (s *socket) close() { unix.Close(s.fd) }

// onPunctualThread runs f on an OS thread of its own, which the kernel wakes with microsecond precision, and waits for
// f to return.
func onPunctualThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread, with its changed timer slack, ends with the goroutine
		unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
		done <- f()
	}()
	return <-done
}

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
	out []byte // not yet written
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

// flush writes what the kernel takes; the rest stays in out.
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

// read reads the bytes that have arrived. It returns nothing and no error if there are none.
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

// events returns the events of poll(2) for which the connection waits.
func (s *socket) events() int16 {
	if len(s.out) > 0 {
		return unix.POLLIN | unix.POLLOUT
	}
	return unix.POLLIN
}

func (s *socket) close() { unix.Close(s.fd) }

// onPunctualThread runs f on an OS thread of its own that the kernel wakes to the microsecond, and waits
// for it.
func onPunctualThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its finer timer slack
		unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
		done <- f()
	}()
	return <-done
}

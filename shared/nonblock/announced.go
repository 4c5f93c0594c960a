//go:build unix && (!linux || race)

// The race detector takes what one end of a socket writes and the other reads as synchronized, if
// package syscall does both.

package nonblock

import "syscall"

// Read reads from a socket that does not block. EAGAIN: nothing is there yet; 0 without an
// error: the peer has ended it.
func Read(fd uintptr, b []byte) (int, error) { return again(syscall.Read, fd, b) }

// Write writes to a socket that does not block what it takes. EAGAIN: nothing.
func Write(fd uintptr, b []byte) (int, error) { return again(syscall.Write, fd, b) }

func again(call func(int, []byte) (int, error), fd uintptr, b []byte) (int, error) {
	for {
		n, err := call(int(fd), b)
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}

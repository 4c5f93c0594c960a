//go:build unix && (!linux || race)

// The race detector takes a write at one end of a socket and the read at the other as synchronized, if package syscall
// does both.

package nonblock

import "syscall"

// Read reads from a socket that does not block. EAGAIN: there is nothing to read yet; 0 without an error: the peer has
// ended the stream.
func Read(fd uintptr, b []byte) (int, error) { return again(syscall.Read, fd, b) }

// Write writes as much as a socket that does not block takes. EAGAIN: the socket takes nothing.
func Write(fd uintptr, b []byte) (int, error) { return again(syscall.Write, fd, b) }

func again(call func(int, []byte) (int, error), fd uintptr, b []byte) (int, error) {
	for {
		n, err := call(int(fd), b)
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}

//go:build unix && (!linux || race)

// With the race detector, Read and Write must be those of package syscall: they tell the race detector that a write at
// one end of a socket comes before the read at the other end.

package nonblock

import "syscall"

// Read reads from a non-blocking socket. It returns EAGAIN if there is nothing to read yet, and 0 without an error if
// the peer has ended the stream.
func Read(fd uintptr, b []byte) (int, error) { return again(syscall.Read, fd, b) }

// Write writes to a non-blocking socket and returns how many bytes the socket has accepted. It returns EAGAIN if the
// socket accepts nothing now.
func Write(fd uintptr, b []byte) (int, error) { return again(syscall.Write, fd, b) }

func again(call func(int, []byte) (int, error), fd uintptr, b []byte) (int, error) {
	for {
		n, err := call(int(fd), b)
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}

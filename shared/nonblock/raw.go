//go:build linux && !race

package nonblock

import (
	"syscall"
	"unsafe"
)

// Read reads from a non-blocking socket. It returns EAGAIN if there is nothing to read yet, and 0 without an error if
// the peer has ended the stream.
func Read(fd uintptr, b []byte) (int, error) { return transfer(syscall.SYS_READ, fd, b) }

// Write writes to a non-blocking socket and returns how many bytes the socket has accepted. It returns EAGAIN if the
// socket accepts nothing now.
func Write(fd uintptr, b []byte) (int, error) { return transfer(syscall.SYS_WRITE, fd, b) }

func transfer(call, fd uintptr, b []byte) (int, error) {
	for {
		n, _, errno := syscall.RawSyscall(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		switch errno {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

//go:build unix

package link

import (
	"crypto/tls"
	"net"
	"syscall"
)

// Alive reports whether an idle connection is still open: false if the other side has ended it. It does not block.
func Alive(c net.Conn) bool {
	if counted, ok := c.(*countedConn); ok {
		c = counted.Conn
	}
	secure, isTLS := c.(*tls.Conn)
	if isTLS {
		c = secure.NetConn()
	}
	socket, ok := c.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	live := false
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		// No request is out, so there is nothing to read; TLS 1.3 may send tickets at any time.
		live = err == syscall.EAGAIN || err == syscall.EINTR || err == nil && n > 0 && isTLS
	})
	return err == nil && live
}

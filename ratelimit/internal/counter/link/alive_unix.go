//go:build unix

package link

import (
	"crypto/tls"
	"net"
	"syscall"

	"gatehouse/shared/nonblock"
)

// Aliveness returns a function that reports whether a connection is open and has no unread bytes, as it should be
// between a reply and the next command. If the function returns false, the peer has ended the connection or has sent
// something that was not requested, and the connection must not be used any longer. The function does not block.
func Aliveness(c net.Conn) func() bool {
	isTLS := false
	for {
		wrapper, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		_, secure := c.(*tls.Conn)
		isTLS = isTLS || secure
		c = wrapper.NetConn()
	}
	socket, ok := c.(syscall.Conn)
	if !ok {
		return func() bool { return true }
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return func() bool { return false }
	}
	var alive bool
	var b [1]byte
	look := func(fd uintptr) {
		_, err := nonblock.Read(fd, b[:])
		alive = err == syscall.EAGAIN
	}
	if isTLS {
		look = func(fd uintptr) { // peeks only: TLS 1.3 may send tickets at any time, for the TLS layer to read
			n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
			alive = err == syscall.EAGAIN || err == syscall.EINTR || err == nil && n > 0
		}
	}
	return func() bool {
		alive = false
		return raw.Control(look) == nil && alive
	}
}

//go:build !unix

package link

import "net"

// Alive cannot check on this system: the next batch finds out.
func Alive(net.Conn) bool { return true }

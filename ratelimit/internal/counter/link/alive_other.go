//go:build !unix

package link

import "net"

// Alive cannot look here: the next batch finds out.
func Alive(net.Conn) bool { return true }

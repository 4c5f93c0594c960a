//go:build !unix

package counter

import "net"

// alive cannot look here: the next batch finds out.
func alive(net.Conn) bool { return true }

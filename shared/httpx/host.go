package httpx

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// IsLoopbackHost reports whether a Host header names this machine. A browser's Host header does not if an attacker made
// another name resolve to 127.0.0.1.
func IsLoopbackHost(host string) bool {
	if name, port, err := net.SplitHostPort(host); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return false
		}
		host = name
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	host = strings.ToLower(host)
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// clientIP returns the client's address for audit rows and sessions. It comes from the header Auth-Forwarded-For if
// that is trusted, else from X-Forwarded-For if a trusted proxy sent the request, else from the connection.
func clientIP(s *Settings, r *http.Request) string {
	if ip, ok := forwardedIP(s, r); ok {
		return ip.String()
	}
	if ip := peer(r); ip.IsValid() {
		return ip.String()
	}
	return ""
}

// forwardedIP returns the client's address from a header that a trusted proxy has set.
func forwardedIP(s *Settings, r *http.Request) (netip.Addr, bool) {
	if ip, ok := authForwardedFor(s, r); ok {
		return ip, true
	}
	if len(s.TrustedProxies) == 0 || !trusted(s, peer(r)) {
		return netip.Addr{}, false
	}
	// Each proxy appends the address of the peer from which it got the request. So from the right, the first address
	// that is not a trusted proxy's is the client's. Anything to the left of it may be forged.
	list := strings.Join(r.Header["X-Forwarded-For"], ",")
	for list != "" {
		text := list
		if i := strings.LastIndexByte(list, ','); i >= 0 {
			list, text = list[:i], list[i+1:]
		} else {
			list = ""
		}
		ip := parseIP(text)
		if !ip.IsValid() {
			return ip, false
		}
		if !trusted(s, ip) {
			return ip, true
		}
	}
	return netip.Addr{}, false
}

func authForwardedFor(s *Settings, r *http.Request) (netip.Addr, bool) {
	if !s.ForwardedFor {
		return netip.Addr{}, false
	}
	v := r.Header["Auth-Forwarded-For"]
	if len(v) == 0 {
		return netip.Addr{}, false
	}
	first, _, _ := strings.Cut(v[0], ",")
	ip := parseIP(first)
	return ip, ip.IsValid()
}

// parseIP parses an address, with or without the port that some proxies add. The result is invalid if text is not an
// address.
func parseIP(text string) netip.Addr {
	text = strings.TrimSpace(text)
	if ip, err := netip.ParseAddr(text); err == nil {
		return ip.Unmap().WithZone("")
	}
	if at, err := netip.ParseAddrPort(text); err == nil {
		return at.Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

func peer(r *http.Request) netip.Addr {
	if at, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		return at.Addr().Unmap().WithZone("")
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	return parseIP(host)
}

func trusted(s *Settings, ip netip.Addr) bool {
	return slices.ContainsFunc(s.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// limitKey returns the key under which a client's requests are counted; "" if they are not counted. It warns if the
// header that identifies clients is missing.
func (s *Server) limitKey(c *call) string {
	key, missing := c.limitKey()
	if missing {
		s.warnMissing(c.live.LimitHeader)
	}
	return key
}

// limitKey returns the key for limits by client. missing is set if LimitHeader is configured but the request does not
// have the header.
func (c *call) limitKey() (key string, missing bool) {
	if c.console {
		return "", false
	}
	l := &c.live.Settings
	if ip, ok := authForwardedFor(l, c.r); ok {
		return network(ip), missing
	}
	if l.LimitHeader != "" {
		first, _, _ := strings.Cut(c.r.Header.Get(l.LimitHeader), ",")
		if first = strings.TrimSpace(first); first != "" {
			if ip := parseIP(first); ip.IsValid() {
				return network(ip), missing
			}
			return first, false
		}
		missing = true
	}
	if ip, ok := forwardedIP(l, c.r); ok {
		return network(ip), missing
	}
	if ip := peer(c.r); l.LimitByPeer && ip.IsValid() {
		return network(ip), missing
	}
	return "", missing
}

// network returns the smallest network that a subscriber has: a single IPv4 address, or an IPv6 /64 (RFC 6177), whose
// 2^64 addresses count as one client.
func network(ip netip.Addr) string {
	if ip.Is4() {
		return ip.String()
	}
	return netip.PrefixFrom(ip, 64).Masked().String()
}

// baseURL returns the beginning of links in mails: API_EXTERNAL_URL, or the host that a proxy names if ExternalHosts
// lists it. A host that is not listed never appears in a mail; it is returned in unlisted, for the log, if there is a
// list.
func (l *liveSettings) baseURL(r *http.Request) (base, unlisted string) {
	host := r.Header.Get("X-Forwarded-Host")
	if host == "" || len(l.ExternalHosts) == 0 {
		return l.flows.BaseURL, ""
	}
	if !slices.Contains(l.ExternalHosts, host) {
		return l.flows.BaseURL, cleanText(host, 255)
	}
	name, _, _ := strings.Cut(host, ":")
	if name == "localhost" && r.Header.Get("X-Forwarded-Proto") == "http" {
		return "http://" + host, ""
	}
	return "https://" + host, ""
}

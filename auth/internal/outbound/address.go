package outbound

import "net/netip"

// reserved are the networks inside of 0.0.0.0/0 and 2000::/3 whose addresses belong to no host on the Internet, as
// listed in IANA's special-purpose address registries (RFC 6890). It also has the address of Azure's host machine,
// which only Azure's virtual machines can reach.
var reserved = networks(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
	"198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"168.63.129.16/32", // Azure's host machine, which serves metadata and keys
	"2001::/23",        // protocol assignments; Teredo (2001::/32) leads to any IPv4 address
	"2001:db8::/32", "3fff::/20",
)

var (
	global6  = netip.MustParsePrefix("2000::/3")
	nat64    = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052
	sixTo4   = netip.MustParsePrefix("2002::/16")    // RFC 3056
	anything = netip.MustParsePrefix("0.0.0.0/0")
)

// Public reports whether an address belongs to the Internet at large: not loopback, link-local, private, shared
// (100.64.0.0/10), multicast or reserved. An IPv6 address that contains an IPv4 address (mapped, NAT64, 6to4, ISATAP)
// is public if the IPv4 address is. Addresses of local NAT64 (64:ff9b:1::/48) and Teredo are never public.
func Public(a netip.Addr) bool {
	a = a.WithZone("").Unmap()
	if a.Is6() {
		b := a.As16()
		last := netip.AddrFrom4([4]byte(b[12:]))
		switch {
		case nat64.Contains(a):
			return Public(last)
		case !global6.Contains(a):
			return false
		case sixTo4.Contains(a) && !Public(netip.AddrFrom4([4]byte(b[2:6]))):
			return false
		case b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe && !Public(last): // ISATAP, RFC 5214
			return false
		}
	} else if !anything.Contains(a) { // a is the zero netip.Addr
		return false
	}
	for _, n := range reserved {
		if n.Contains(a) {
			return false
		}
	}
	return true
}

func networks(texts ...string) (all []netip.Prefix) {
	for _, t := range texts {
		all = append(all, netip.MustParsePrefix(t))
	}
	return all
}

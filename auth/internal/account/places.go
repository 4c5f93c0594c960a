package account

import (
	"net/netip"
	"time"

	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
)

// PlaceLife is for how long a place is known from which a user signed in.
const PlaceLife = 90 * 24 * time.Hour

// place is the part of the network that a client's address is in: an IPv4 /24, an IPv6 /64. Providers give
// the next address to the same home from there. "" where the address is unknown.
func (req RequestInfo) place() string {
	if ip, err := netip.ParseAddr(req.Network); err == nil && ip.Is4() {
		return netip.PrefixFrom(ip, 24).Masked().String()
	}
	if p, err := netip.ParsePrefix(req.Network); err == nil {
		return p.String()
	}
	return ""
}

// place is the MAC of the client's place, nil when places are not known, or this one is not.
func placeMAC(f *flow) []byte {
	where := f.req.place()
	if where == "" || !f.settings.KnownPlaces {
		return nil
	}
	return f.core.root.MAC(secret.Limits, "place", where)
}

// placeTries is the bucket like that one, named for an address, of guesses from the client's place.
func placeTries(f *flow, like store.Limit, name ...string) store.Place {
	p := store.Place{MAC: placeMAC(f), Since: f.now.Add(-PlaceLife), Tries: like}
	if p.MAC != nil {
		p.Tries.Key = f.limitKey(append(name, f.req.place())...)
	}
	return p
}

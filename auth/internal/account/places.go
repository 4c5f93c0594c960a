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
func (c Client) place() string {
	if ip, err := netip.ParseAddr(c.Network); err == nil && ip.Is4() {
		return netip.PrefixFrom(ip, 24).Masked().String()
	}
	if p, err := netip.ParsePrefix(c.Network); err == nil {
		return p.String()
	}
	return ""
}

// place is the MAC of the client's place, nil when places are not known, or this one is not.
func (a *Accounts) place(s *Settings, c Client) []byte {
	where := c.place()
	if where == "" || !s.KnownPlaces {
		return nil
	}
	return a.root.MAC(secret.Limits, "place", where)
}

// placeTries is the bucket like that one, named for an address, of guesses from the client's place.
func (a *Accounts) placeTries(s *Settings, c Client, like store.Limit, now time.Time, name ...string) store.Place {
	p := store.Place{MAC: a.place(s, c), Since: now.Add(-PlaceLife), Tries: like}
	if p.MAC != nil {
		p.Tries.Key = a.limitKey(append(name, c.place())...)
	}
	return p
}

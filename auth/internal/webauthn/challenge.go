package webauthn

import (
	"crypto/hmac"
	"crypto/rand"
	"encoding/binary"
	"time"
)

// MACs returns the MACs of the parts: first under the current root key, then under each previous root key.
type MACs func(parts ...string) [][]byte

// Ceremony is what a challenge was made for: a registration or a sign-in on a site. A challenge that was made for
// another ceremony counts as unknown.
type Ceremony struct {
	Kind, RPID string
	// Binding identifies the owner of the challenge, for example by user and session.
	Binding []string
}

// idTag is the index of the tag in the ID of a challenge. The ID is a UUID of version 8: the Unix time of expiry in 4
// bytes, 42 random bits, and the tag, a MAC which proves that this daemon made the ID.
const idTag = 10

func (c *Ceremony) macs(m MACs, use string, id []byte) [][]byte {
	parts := append(make([]string, 0, 8), use, c.Kind, c.RPID)
	return m(append(append(parts, c.Binding...), string(id))...)
}

// NewID returns the ID of a new challenge, which contains its expiry.
func (c *Ceremony) NewID(m MACs, expires time.Time) (id [16]byte) {
	binary.BigEndian.PutUint32(id[:], uint32(expires.Unix()))
	rand.Read(id[4:idTag])
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	copy(id[idTag:], c.macs(m, "id", id[:idTag])[0])
	return id
}

// Expiry returns when the challenge with this ID expires; ok is false if the ID was not made for this ceremony.
func (c *Ceremony) Expiry(m MACs, id [16]byte) (expires time.Time, ok bool) {
	for _, mac := range c.macs(m, "id", id[:idTag]) {
		ok = hmac.Equal(id[idTag:], mac[:len(id)-idTag]) || ok
	}
	return time.Unix(int64(binary.BigEndian.Uint32(id[:])), 0).UTC(), ok
}

// Challenges returns the 32-byte challenges for an ID: under the current root key, then under each previous root key.
// The first one is sent to the authenticator.
func (c *Ceremony) Challenges(m MACs, id [16]byte) [][]byte { return c.macs(m, "challenge", id[:]) }

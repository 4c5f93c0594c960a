package webauthn

import (
	"crypto/sha256"
	"encoding/binary"
)

// The flags of authenticator data (Web Authentication Level 3, section 6.1). Bits 1 and 5 are reserved.
const (
	flagUP = 1 << 0
	flagUV = 1 << 2
	flagBE = 1 << 3
	flagBS = 1 << 4
	flagAT = 1 << 6
	flagED = 1 << 7
)

// authData is the parsed authenticator data, which the authenticator signs.
type authData struct {
	rpIDHash [sha256.Size]byte
	flags    byte
	count    uint32
	// These fields describe the new credential, in a registration:
	aaguid  [16]byte
	id, key []byte
}

func (a *authData) has(flag byte) bool { return a.flags&flag != 0 }

// readAuthData reads authenticator data. If attested is true, the data must contain a credential, otherwise it must
// not.
func readAuthData(b []byte, attested bool) (a authData, err error) {
	if len(b) < 37 || len(b) > maxAuthData {
		return a, unreadable("length of authenticatorData")
	}
	copy(a.rpIDHash[:], b)
	a.flags, a.count = b[32], binary.BigEndian.Uint32(b[33:])
	b = b[37:]
	if a.has(flagAT) != attested {
		return a, unreadable("attested credential data")
	}
	if attested {
		if b, err = a.readCredential(b); err != nil {
			return a, err
		}
	}
	r, ok := cborReader{b}, true
	if a.has(flagED) {
		_, ok = r.skipMap()
	}
	if !ok || len(r.b) > 0 {
		return a, unreadable("extensions, or data after them")
	}
	return a, nil
}

// readCredential reads the attested credential data at the beginning of b, and returns the rest of b.
func (a *authData) readCredential(b []byte) ([]byte, error) {
	if len(b) < 18 {
		return nil, unreadable("attested credential data")
	}
	copy(a.aaguid[:], b)
	n := int(binary.BigEndian.Uint16(b[16:]))
	b = b[18:]
	if n == 0 || n > maxID || n > len(b) {
		return nil, unreadable("length of the credential id")
	}
	a.id = b[:n]
	r := cborReader{b[n:]}
	var ok bool
	if a.key, ok = r.skipMap(); !ok {
		return nil, unreadable("credential public key")
	}
	return r.b, nil
}

// check makes the checks of the authenticator data that need no stored credential.
func (a *authData) check(p *Policy) error {
	switch {
	case a.rpIDHash != sha256.Sum256([]byte(p.RPID)):
		return FailedRPID
	case !a.has(flagUP):
		return FailedUserPresence
	case p.RequireUV && !a.has(flagUV):
		return FailedUserVerification
	case a.has(flagBS) && !a.has(flagBE):
		return FailedBackupFlags
	}
	return nil
}

package secret

import (
	"errors"
)

// Errors that Open returns.
var (
	// ErrOtherRoot means that the value was sealed under a root key that is neither the current nor a previous one, or
	// for another purpose.
	ErrOtherRoot = errors.New("secret: sealed under a root key that is not known here")
	// ErrBroken means that the sealed bytes were changed or truncated, or that Seal was called with another bound.
	ErrBroken = errors.New("secret: the sealed bytes are damaged or belong elsewhere")
)

// The layout of sealed bytes: a version, a name that is derived from root key and purpose, a random nonce, the text
// encrypted with AES-256-GCM, and its authentication tag.
const (
	sealVersion = 1
	sealName    = 8
	sealHead    = 1 + sealName
	// Overhead is how many bytes Seal adds.
	Overhead = sealHead + 12 + 16
)

// Seal encrypts plain with the key of purpose p. bound identifies the place where the value is stored, for example a
// row's id. Only Open with the same bound decrypts the value, so an attacker who can write to the database cannot
// exchange two values.
//
// One key may seal 2^32 values with random nonces (NIST SP 800-38D): a thousand mails a second for 49 days. At higher
// rates the root key must be changed in time.
func (r *Root) Seal(p Purpose, plain, bound []byte) []byte {
	k := &r.of(p)[0]
	out := make([]byte, 0, len(plain)+Overhead)
	out = append(append(out, sealVersion), k.name[:]...)
	return k.aead.Seal(out, nil, plain, context(out, bound))
}

// Open decrypts a value that Seal has encrypted. old is true if a previous root key has sealed it, so that the caller
// should seal it again.
func (r *Root) Open(p Purpose, sealed, bound []byte) (plain []byte, old bool, err error) {
	all := r.of(p)
	if len(sealed) < Overhead || sealed[0] != sealVersion {
		return nil, false, ErrBroken
	}
	for i := range all {
		if string(sealed[1:sealHead]) != string(all[i].name[:]) {
			continue
		}
		plain, err := all[i].aead.Open(nil, nil, sealed[sealHead:], context(sealed[:sealHead], bound))
		if err != nil {
			return nil, false, ErrBroken
		}
		return plain, i > 0, nil
	}
	return nil, false, ErrOtherRoot
}

// context returns the additional authenticated data: the head of the sealed bytes, then bound. The purpose is not part
// of it, since each purpose has its own key.
func context(head, bound []byte) []byte {
	return append(append(make([]byte, 0, len(head)+len(bound)), head...), bound...)
}

package secret

import (
	"errors"
)

// The errors of Open.
var (
	// ErrOtherRoot: the value was sealed under a root key that is neither the current nor a previous one.
	ErrOtherRoot = errors.New("secret: sealed under a root key that is not known here")
	// ErrBroken: the bytes were changed or cut, or the value was sealed for another place or purpose.
	ErrBroken = errors.New("secret: the sealed bytes are damaged or belong elsewhere")
)

// Sealed bytes are a version, the name of the root key, a random nonce, the text encrypted with
// AES-256-GCM, and its tag.
const (
	sealVersion = 1
	sealName    = 8
	sealHead    = 1 + sealName
	// Overhead is how many bytes Seal adds.
	Overhead = sealHead + 12 + 16
)

// Seal encrypts plain. bound identifies the place of the value, for example a row's id: only Open with the same bound
// can decrypt the value, so values cannot be exchanged inside the database.
//
// One key may seal 2^32 values with random nonces (NIST SP 800-38D): a thousand mails a second for 49 days. At higher
// rates the root key must be changed in time.
func (r *Root) Seal(p Purpose, plain, bound []byte) []byte {
	k := &r.of(p)[0]
	out := make([]byte, 0, len(plain)+Overhead)
	out = append(append(out, sealVersion), k.name[:]...)
	return k.aead.Seal(out, nil, plain, context(out, bound))
}

// Open decrypts a sealed value. old says that a previous root key has sealed it, and that it should be sealed again.
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

// context returns the additional authenticated data; the purpose is in the key already.
func context(head, bound []byte) []byte {
	return append(append(make([]byte, 0, len(head)+len(bound)), head...), bound...)
}

// Package secret derives every symmetric key of the auth daemon from one root key. It uses the derived keys to compute
// MACs, for example of addresses that must not be stored in clear, and to seal (encrypt and authenticate) values before
// they are stored in the database.
//
// The root key is AUTH_SECRET_KEY (default JWT_SECRET). The keys of AUTH_SECRET_KEYS_PREVIOUS still open sealed values
// and verify MACs. The package stores nothing and reads no settings. Without the root key sealed values cannot be
// recovered.
package secret

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"sync"
)

// Purpose separates the uses of the root key: each purpose has keys of its own, so that a sealed mail, for example, can
// never pass for a signing key. The keys are derived from the purpose's text, so the texts of the constants must never
// change.
type Purpose string

// The purposes, each with a comment on what its keys do.
const (
	SigningKeys    Purpose = "signing keys"    // seals private JWKs
	Outbox         Purpose = "outbox"          // seals mails and SMS that wait to be sent
	ProviderTokens Purpose = "provider tokens" // seals tokens of external providers
	Refresh        Purpose = "refresh tokens"  // returned by Keys: the MAC keys of refresh tokens
	OTP            Purpose = "one-time codes"  // MAC of kind, address and digits
	Limits         Purpose = "limits"          // MAC of an address: the key of its rate-limit bucket
	FauxUser       Purpose = "faux users"      // MAC of an address: the id of a user that is made up for it
	ExternalStates Purpose = "external states" // seals the values against which a provider's callback is checked
	Factors        Purpose = "factors"         // seals TOTP keys
	Console        Purpose = "console"         // seals cookies of the admin console
	RecoveryCodes  Purpose = "recovery codes"  // MAC of factor and code
	// WebAuthnChallenges derives the challenges that authenticators sign, and the tag in the id of each challenge.
	WebAuthnChallenges Purpose = "webauthn challenges"
	// FormerRefresh derives the secrets of sessions that were taken over from another auth server, and the MACs by
	// which their refresh tokens are found.
	FormerRefresh Purpose = "former refresh tokens"
)

var purposes = [...]Purpose{SigningKeys, Outbox, ProviderTokens, Refresh, OTP, Limits, FauxUser, ExternalStates,
	Factors, Console, RecoveryCodes, FormerRefresh, WebAuthnChallenges}

// Root holds the keys that are derived from the current and the previous root keys. It is immutable and safe for
// concurrent use.
type Root struct {
	derived map[Purpose][]keys // keys of the current root key first, then those of the previous ones
}

// keys are the keys of one purpose under one root key.
type keys struct {
	raw  []byte     // the MAC key, which Keys returns
	macs *sync.Pool // HMAC states keyed with raw; reusing one allocates nothing
	aead cipher.AEAD
	name [sealName]byte // identifies root key and purpose in sealed bytes
}

// NewRoot derives the keys of all purposes from the root keys. It panics if current or a previous key is empty, which
// the checks of the settings rule out.
func NewRoot(current string, previous ...string) *Root {
	r := &Root{derived: map[Purpose][]keys{}}
	for _, root := range append([]string{current}, previous...) {
		if root == "" {
			panic("secret: a root key is empty")
		}
		for _, p := range purposes {
			r.derived[p] = append(r.derived[p], deriveAll(root, p))
		}
	}
	return r
}

func deriveAll(root string, p Purpose) keys {
	block, err := aes.NewCipher(derive(root, p, "seal"))
	if err != nil {
		panic(err) // the key has 32 bytes
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // AES has blocks of 16 bytes
	}
	raw := derive(root, p, "mac")
	k := keys{raw: raw, aead: aead, macs: &sync.Pool{New: func() any { return hmac.New(sha256.New, raw) }}}
	copy(k.name[:], derive(root, p, "name"))
	return k
}

// derive derives 32 bytes with HKDF-SHA256 (RFC 5869). The info parameter of HKDF consists of use and purpose.
func derive(root string, p Purpose, use string) []byte {
	key, err := hkdf.Key(sha256.New, []byte(root), []byte("gatehouse auth"), use+": "+string(p), 32)
	if err != nil {
		panic(err) // hkdf.Key fails only for more than 8160 bytes
	}
	return key
}

func (r *Root) of(p Purpose) []keys {
	k := r.derived[p]
	if k == nil {
		panic(fmt.Sprintf("secret: unknown purpose %q", string(p)))
	}
	return k
}

// String returns a text without the keys, so that printing a Root does not reveal them.
func (r *Root) String() string { return fmt.Sprintf("root key and %d previous", len(r.of(Refresh))-1) }

// GoString returns the same text as String, for the verb %#v.
func (r *Root) GoString() string { return r.String() }

// Keys returns the 32-byte MAC keys of a purpose: that of the current root key first, then those of the previous ones.
// The caller must not change them.
func (r *Root) Keys(p Purpose) [][]byte {
	var out [][]byte
	for _, k := range r.of(p) {
		out = append(out, k.raw)
	}
	return out
}

// MAC returns the 32-byte HMAC-SHA256 of the parts under the current root key. Each part is preceded by its length, so
// the MACs of ("ab", "c") and ("a", "bc") differ.
func (r *Root) MAC(p Purpose, parts ...string) []byte { return r.of(p)[0].mac(parts) }

// MACs returns the MAC of the parts under the current and each previous root key, in this order. A stored MAC that
// equals one of them was made from the same parts.
func (r *Root) MACs(p Purpose, parts ...string) [][]byte {
	all := r.of(p)
	out := make([][]byte, len(all))
	for i := range all {
		out[i] = all[i].mac(parts)
	}
	return out
}

func (k *keys) mac(parts []string) []byte {
	h := k.macs.Get().(hash.Hash)
	defer k.macs.Put(h)
	h.Reset()
	buf := make([]byte, 0, 256)
	for _, part := range parts {
		buf = binary.AppendUvarint(buf, uint64(len(part)))
		buf = append(buf, part...)
	}
	h.Write(buf)
	return h.Sum(make([]byte, 0, sha256.Size))
}

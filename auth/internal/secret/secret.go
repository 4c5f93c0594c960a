// Package secret derives every symmetric key of the auth daemon from its root key, and uses these keys to authenticate
// texts, to hide addresses behind MACs, and to seal what must not be in the database in clear.
//
// The root key is AUTH_SECRET_KEY (default JWT_SECRET); AUTH_SECRET_KEYS_PREVIOUS still opens and verifies. The package
// stores nothing and reads no settings. Without the root key sealed values cannot be recovered.
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

// Purpose separates the uses of the root key: each purpose has keys of its own, so that a sealed mail can never be used
// as a signing key. Stored values depend on the texts, which never change.
type Purpose string

// The purposes of the daemon.
const (
	SigningKeys    Purpose = "signing keys"    // seals private JWKs
	Outbox         Purpose = "outbox"          // seals mails and SMS that wait
	ProviderTokens Purpose = "provider tokens" // seals tokens of external providers
	Refresh        Purpose = "refresh tokens"  // MAC keys of refresh tokens
	OTP            Purpose = "one-time codes"  // MAC of kind, address and digits
	Limits         Purpose = "limits"          // MAC of addresses: keys of buckets
	FauxUser       Purpose = "faux users"      // MAC of addresses: ids of invented users
	ExternalStates Purpose = "external states" // seals what a provider's callback is checked with
	Factors        Purpose = "factors"         // seals TOTP keys
	Console        Purpose = "console"         // seals cookies of the admin console
	RecoveryCodes  Purpose = "recovery codes"  // MAC of factor and code
	// WebAuthnChallenges makes the challenges that authenticators answer, and the tag in the id of each challenge.
	WebAuthnChallenges Purpose = "webauthn challenges"
	// FormerRefresh makes the secrets of sessions that were taken over, and the MACs by which their tokens are found.
	FormerRefresh Purpose = "former refresh tokens"
)

var purposes = [...]Purpose{SigningKeys, Outbox, ProviderTokens, Refresh, OTP, Limits, FauxUser, ExternalStates,
	Factors, Console, RecoveryCodes, FormerRefresh, WebAuthnChallenges}

// Root is the current and the previous root keys. It never changes and may be used by many goroutines.
type Root struct {
	derived map[Purpose][]keys // of the current root key first
}

// keys are the keys of one purpose under one root key.
type keys struct {
	raw  []byte     // the MAC key, which Keys returns
	macs *sync.Pool // HMAC states of raw: a used one restarts from its stored pads and allocates nothing
	aead cipher.AEAD
	name [sealName]byte // names the root key in what it has sealed
}

// NewRoot derives the keys of all purposes. It panics if current is empty, which the settings do not allow.
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

// derive is HKDF-SHA256 (RFC 5869); the label contains the use and the purpose.
func derive(root string, p Purpose, use string) []byte {
	key, err := hkdf.Key(sha256.New, []byte(root), []byte("gatehouse auth"), use+": "+string(p), 32)
	if err != nil {
		panic(err) // only for more than 8160 bytes
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

// String keeps the keys from being printed.
func (r *Root) String() string { return fmt.Sprintf("root key and %d previous", len(r.of(Refresh))-1) }

// GoString is String.
func (r *Root) GoString() string { return r.String() }

// Keys returns the 32-byte MAC keys of a purpose, of the current root key first. Callers must not change them.
func (r *Root) Keys(p Purpose) [][]byte {
	var out [][]byte
	for _, k := range r.of(p) {
		out = append(out, k.raw)
	}
	return out
}

// MAC returns the 32-byte HMAC-SHA256 of the parts under the current root key. The MACs of ("ab", "c") and ("a", "bc")
// differ.
func (r *Root) MAC(p Purpose, parts ...string) []byte { return r.of(p)[0].mac(parts) }

// MACs returns MAC under the current and each previous root key, in this order. A stored MAC that equals one of them
// was made from the same parts.
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

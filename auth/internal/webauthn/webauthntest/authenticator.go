// Package webauthntest is a software authenticator for tests. It answers options as a browser with a security key or a
// platform authenticator would or, if a test wants that, with errors in the answer.
package webauthntest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"gatehouse/auth/internal/webauthn"
)

// The flags of authenticator data (Web Authentication Level 3, section 6.1).
const (
	UP = 1 << 0
	UV = 1 << 2
	BE = 1 << 3
	BS = 1 << 4
	AT = 1 << 6
	ED = 1 << 7
)

// Key is a credential on an authenticator.
type Key struct {
	ID           []byte
	RPID, Handle string // Handle as it is in the options
	Count        uint32
	Private      crypto.Signer
	discoverable bool
}

// Authenticator holds credentials. Its methods may be called from several goroutines.
type Authenticator struct {
	// Algorithm is webauthn.ES256 if 0. IDLength is 32 if 0.
	Algorithm, IDLength int
	AAGUID              [16]byte
	// Flags are set in addition to UP and AT in what it signs. Step is what each assertion adds to the counter.
	Flags byte
	Step  uint32

	mu   sync.Mutex
	keys []*Key
}

// Message is an answer that is being made. Members that a Change has set are kept; the other members are computed.
type Message struct {
	ID, RawID, Type                 string
	ClientData, AuthData, Signature []byte
	// Object replaces the attestation object, COSE the public key.
	Object, COSE []byte
	Format       string
	Statement    Map
	Handle       *string
	Transports   []string
	Key          *Key
}

// Change alters a message at one of three times. Draft is called before the message's authenticator data are made,
// Before is called before the message is signed, and After is called after it was signed.
type Change struct{ Draft, Before, After func(*Message) }

// Before returns a change of a message before it is signed.
func Before(do func(*Message)) Change { return Change{Before: do} }

// After returns a change of a message that is signed already.
func After(do func(*Message)) Change { return Change{After: do} }

// Draft returns a change of a message before its authenticator data are made.
func Draft(do func(*Message)) Change { return Change{Draft: do} }

func apply(m *Message, changes []Change, pick func(Change) func(*Message)) {
	for _, c := range changes {
		if do := pick(c); do != nil {
			do(m)
		}
	}
}

// ErrExcluded is returned if the authenticator holds one of the credentials that the options exclude.
var ErrExcluded = errors.New("webauthntest: the authenticator holds an excluded credential")

// ErrNoKey is returned if the authenticator has no credential that the options allow.
var ErrNoKey = errors.New("webauthntest: no credential for these options")

// ClientData returns the JSON that a browser makes for a ceremony.
func ClientData(kind, challenge, origin string) []byte {
	return fmt.Appendf(nil, `{"type":%q,"challenge":%q,"origin":%q,"crossOrigin":false}`, kind, challenge, origin)
}

// Create makes a credential, and returns the JSON that the browser would send.
func (a *Authenticator) Create(o webauthn.CreationOptions, origin string, changes ...Change) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range o.ExcludeCredentials {
		if slices.ContainsFunc(a.keys, func(k *Key) bool { return Encode(k.ID) == d.ID }) {
			return nil, ErrExcluded
		}
	}
	id := make([]byte, a.IDLength)
	if a.IDLength == 0 {
		id = make([]byte, 32)
	}
	rand.Read(id)
	key := &Key{ID: id, RPID: o.RP.ID, Handle: o.User.ID, Private: newKey(a.Algorithm),
		discoverable: o.Selection.ResidentKey != "discouraged"}
	m := &Message{ID: Encode(id), RawID: Encode(id), Type: "public-key", Key: key, Format: "none",
		ClientData: ClientData("webauthn.create", o.Challenge, origin), COSE: COSE(key.Private.Public()),
		Transports: []string{"internal", "hybrid"}}
	apply(m, changes, func(c Change) func(*Message) { return c.Draft })
	if m.AuthData == nil {
		m.AuthData = AuthData(key.RPID, a.Flags|UP|AT, key.Count)
		m.AuthData = append(m.AuthData, Attested(a.AAGUID, key.ID, m.COSE)...)
	}
	apply(m, changes, func(c Change) func(*Message) { return c.Before })
	if m.Object == nil {
		m.Object = CBOR(Map{{"fmt", m.Format}, {"attStmt", m.Statement}, {"authData", m.AuthData}})
	}
	apply(m, changes, func(c Change) func(*Message) { return c.After })
	a.keys = append(a.keys, key)
	return m.json(map[string]any{"clientDataJSON": Encode(m.ClientData), "attestationObject": Encode(m.Object),
		"transports": m.Transports}), nil
}

// Get signs with a credential, and returns the JSON that the browser would send.
func (a *Authenticator) Get(o webauthn.RequestOptions, origin string, changes ...Change) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := a.find(o)
	if key == nil {
		return nil, ErrNoKey
	}
	key.Count += a.Step
	handle := key.Handle
	m := &Message{ID: Encode(key.ID), RawID: Encode(key.ID), Type: "public-key", Key: key, Handle: &handle,
		ClientData: ClientData("webauthn.get", o.Challenge, origin)}
	if len(o.AllowCredentials) > 0 && !key.discoverable {
		m.Handle = nil
	}
	apply(m, changes, func(c Change) func(*Message) { return c.Draft })
	if m.AuthData == nil {
		m.AuthData = AuthData(key.RPID, a.Flags|UP, key.Count)
	}
	apply(m, changes, func(c Change) func(*Message) { return c.Before })
	if m.Signature == nil {
		m.Signature = Sign(m.Key.Private, m.AuthData, m.ClientData)
	}
	apply(m, changes, func(c Change) func(*Message) { return c.After })
	response := map[string]any{"clientDataJSON": Encode(m.ClientData), "authenticatorData": Encode(m.AuthData),
		"signature": Encode(m.Signature), "userHandle": m.Handle}
	return m.json(response), nil
}

// find returns the newest key that the options allow; authenticators would offer it first.
func (a *Authenticator) find(o webauthn.RequestOptions) *Key {
	for _, k := range slices.Backward(a.keys) {
		allowed := slices.ContainsFunc(o.AllowCredentials, func(d webauthn.Descriptor) bool { return d.ID == Encode(k.ID) })
		if k.RPID == o.RPID && (allowed || len(o.AllowCredentials) == 0 && k.discoverable) {
			return k
		}
	}
	return nil
}

// Keys returns the credentials, oldest first.
func (a *Authenticator) Keys() []*Key {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.keys)
}

func (m *Message) json(response map[string]any) []byte {
	b, err := json.Marshal(map[string]any{"id": m.ID, "rawId": m.RawID, "type": m.Type, "response": response,
		"clientExtensionResults": map[string]any{}, "authenticatorAttachment": "platform"})
	if err != nil {
		panic(err) // strings and maps always encode
	}
	return b
}

// Encode returns bytes in base64url without padding.
func Encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// AuthData returns the first 37 bytes of authenticator data: the hash of rpID, the flags and the counter.
func AuthData(rpID string, flags byte, count uint32) []byte {
	hash := sha256.Sum256([]byte(rpID))
	return binary.BigEndian.AppendUint32(append(hash[:], flags), count)
}

// Attested returns the attested credential data, which follow AuthData in a registration.
func Attested(aaguid [16]byte, id, cose []byte) []byte {
	out := binary.BigEndian.AppendUint16(aaguid[:], uint16(len(id)))
	return append(append(out, id...), cose...)
}

// Sign signs authenticator data and client data with key, as an authenticator does.
func Sign(key crypto.Signer, authData, clientData []byte) []byte {
	hash := sha256.Sum256(clientData)
	signed := append(slices.Clone(authData), hash[:]...)
	opts := crypto.SignerOpts(crypto.SHA256)
	if _, ok := key.(ed25519.PrivateKey); ok {
		opts = crypto.Hash(0)
	} else {
		digest := sha256.Sum256(signed)
		signed = digest[:]
	}
	signature, err := key.Sign(rand.Reader, signed, opts)
	if err != nil {
		panic(err)
	}
	return signature
}

// rsaKey is shared by all tests of a process, since making it takes longer than the tests.
var rsaKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

func newKey(alg int) crypto.Signer {
	switch alg {
	case webauthn.EdDSA:
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			panic(err)
		}
		return key
	case webauthn.RS256:
		return rsaKey()
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
}

// COSE returns a public key as a COSE_Key.
func COSE(public crypto.PublicKey) []byte {
	switch p := public.(type) {
	case ed25519.PublicKey:
		return CBOR(Map{{1, 1}, {3, webauthn.EdDSA}, {-1, 6}, {-2, []byte(p)}})
	case *rsa.PublicKey:
		return CBOR(Map{{1, 3}, {3, webauthn.RS256}, {-1, p.N.Bytes()}, {-2, []byte{1, 0, 1}}})
	case *ecdsa.PublicKey:
		point, err := p.Bytes()
		if err != nil {
			panic(err)
		}
		n := len(point) / 2
		return CBOR(Map{{1, 2}, {3, webauthn.ES256}, {-1, 1}, {-2, point[1 : n+1]}, {-3, point[n+1:]}})
	}
	panic(fmt.Sprintf("webauthntest: %T", public))
}

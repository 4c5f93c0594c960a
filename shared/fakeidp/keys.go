package fakeidp

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"sync"
)

var b64 = base64.RawURLEncoding

// keyRing has the keys that sign ID tokens, one for each kind of algorithm. All are published in one key set.
type keyRing struct {
	mu         sync.Mutex
	generation int
	named      int // the generation that is part of the key ids
	rsa        *rsa.PrivateKey
	ec         map[string]*ecdsa.PrivateKey // by algorithm
	ed         ed25519.PrivateKey
}

// rsaKeys are the first RSA key and the one that replaces it after SwapKeys. All servers of a process share them,
// because making them is slow.
var rsaKeys = [2]func() *rsa.PrivateKey{sync.OnceValue(newRSA), sync.OnceValue(newRSA)}

func newRSA() *rsa.PrivateKey {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err) // the system's source of random numbers has failed
	}
	return k
}

func newKeyRing() *keyRing {
	r := &keyRing{}
	r.fill()
	return r
}

func (r *keyRing) fill() {
	r.rsa = rsaKeys[r.generation%2]()
	r.ec = map[string]*ecdsa.PrivateKey{}
	for alg, curve := range curves {
		r.ec[alg], _ = ecdsa.GenerateKey(curve, rand.Reader)
	}
	_, r.ed, _ = ed25519.GenerateKey(rand.Reader)
}

var curves = map[string]elliptic.Curve{"ES256": elliptic.P256(), "ES384": elliptic.P384(), "ES512": elliptic.P521()}

var hashes = map[string]crypto.Hash{"256": crypto.SHA256, "384": crypto.SHA384, "512": crypto.SHA512}

// SwapKeys replaces the keys of all dialects by new ones with new ids, and publishes only the new keys.
func (s *Server) SwapKeys() {
	s.ring.mu.Lock()
	defer s.ring.mu.Unlock()
	s.ring.generation++
	s.ring.named = s.ring.generation
	s.ring.fill()
}

// ReplaceKeys does what SwapKeys does, but the new keys have the ids of the old keys.
func (s *Server) ReplaceKeys() {
	s.ring.mu.Lock()
	defer s.ring.mu.Unlock()
	s.ring.generation++
	s.ring.fill()
}

func (r *keyRing) kid(kind string) string { return fmt.Sprintf("%s-%d", kind, r.named) }

// set returns the published key set. It includes a key for encryption and a key of an unknown kind, which clients have
// to skip.
func (r *keyRing) set() map[string]any {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := []any{
		map[string]any{"kty": "RSA", "kid": "encryption", "use": "enc", "alg": "RSA-OAEP",
			"n": b64.EncodeToString(r.rsa.N.Bytes()), "e": "AQAB"}, map[string]any{"kty": "XYZ", "kid": "unheard-of"},
		map[string]any{"kty": "RSA", "kid": r.kid("RSA"), "use": "sig", "n": b64.EncodeToString(r.rsa.N.Bytes()),
			"e": b64.EncodeToString(big.NewInt(int64(r.rsa.E)).Bytes())},
		map[string]any{"kty": "OKP", "kid": r.kid("EdDSA"), "use": "sig", "alg": "EdDSA", "crv": "Ed25519",
			"x": b64.EncodeToString(r.ed.Public().(ed25519.PublicKey))},
	}
	for alg, k := range r.ec {
		point, _ := k.PublicKey.Bytes() // an uncompressed point: the byte 4, then x, then y
		half := len(point) / 2
		keys = append(keys, map[string]any{"kty": "EC", "kid": r.kid(alg), "alg": alg, "crv": k.Params().Name,
			"x": b64.EncodeToString(point[1 : 1+half]), "y": b64.EncodeToString(point[1+half:])})
	}
	return map[string]any{"keys": keys}
}

// sign returns a signed token. header, if not nil, changes the token's header. If forged is set, the token is signed
// with keys that are not published.
func (r *keyRing) sign(alg string, claims map[string]any, header func(map[string]any), forged bool) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	head := map[string]any{"alg": alg, "typ": "JWT"}
	kind := alg
	switch {
	case strings.HasPrefix(alg, "RS"), strings.HasPrefix(alg, "PS"), alg == "HS256":
		kind = "RSA"
	}
	if alg != "none" {
		head["kid"] = r.kid(kind)
	}
	if header != nil {
		header(head)
	}
	input := encode(head) + "." + encode(claims)
	from := r
	if forged {
		from = &keyRing{generation: r.generation + 1}
		from.fill()
	}
	return input + "." + b64.EncodeToString(from.signature(alg, []byte(input)))
}

func (r *keyRing) signature(alg string, input []byte) []byte {
	switch alg {
	case "none":
		return nil
	case "HS256":
		der, _ := x509.MarshalPKIXPublicKey(&r.rsa.PublicKey)
		mac := hmac.New(sha256.New, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
		mac.Write(input)
		return mac.Sum(nil)
	case "EdDSA":
		return ed25519.Sign(r.ed, input)
	}
	hash := hashes[alg[2:]]
	h := hash.New()
	h.Write(input)
	sum := h.Sum(nil)
	switch alg[:2] {
	case "RS":
		sig, _ := rsa.SignPKCS1v15(nil, r.rsa, hash, sum)
		return sig
	case "PS":
		sig, _ := rsa.SignPSS(rand.Reader, r.rsa, hash, sum, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash})
		return sig
	}
	k := r.ec[alg]
	a, b, _ := ecdsa.Sign(rand.Reader, k, sum)
	size := (k.Params().BitSize + 7) / 8
	sig := make([]byte, 2*size)
	a.FillBytes(sig[:size])
	b.FillBytes(sig[size:])
	return sig
}

func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // a test has set a claim that JSON cannot represent
	}
	return b64.EncodeToString(text)
}

// accessHash returns the claim at_hash for an access token.
func accessHash(alg, access string) string {
	hash := crypto.SHA256
	if alg == "EdDSA" {
		hash = crypto.SHA512
	} else if h, ok := hashes[strings.TrimLeft(alg, "RSPEH")]; ok {
		hash = h
	}
	h := hash.New()
	h.Write([]byte(access))
	sum := h.Sum(nil)
	return b64.EncodeToString(sum[:len(sum)/2])
}

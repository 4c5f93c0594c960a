package webauthn

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"math/big"
	"slices"
)

// The algorithms that are offered and accepted, in order of preference, by their numbers in IANA's COSE Algorithms.
const (
	ES256 = -7
	EdDSA = -8
	RS256 = -257
)

// The labels of the fields of a COSE_Key (RFC 9052, RFC 9053, RFC 8230). The meaning of the negative labels depends on
// kty.
const (
	labelKty = 1
	labelAlg = 3
	label1   = -1 // crv; n of an RSA key
	label2   = -2 // x; e of an RSA key
	label3   = -3 // y
)

// coseKey maps the labels of a COSE_Key to its integers (int64) and byte strings; values of other types are nil.
type coseKey map[int64]any

func (k coseKey) bytes(label int64) []byte {
	b, _ := k[label].([]byte)
	return b
}

// readKey reads a COSE_Key, which is a single CBOR map.
func readKey(cose []byte) (coseKey, error) {
	k, r := coseKey{}, cborReader{cose}
	n, ok := r.mapLen()
	for i := 0; ok && i < n; i++ {
		if !r.next(cborUint) && !r.next(cborNegative) {
			ok = r.skip(maxDepth-1) && r.skip(maxDepth-1) //lint:ignore SA4000 the label, then its value
			continue
		}
		label, readable := r.integer()
		_, twice := k[label]
		var value any
		switch {
		case r.next(cborUint), r.next(cborNegative):
			value, ok = r.integer()
		case r.next(cborBytes):
			value, ok = r.str(cborBytes)
		default:
			ok = r.skip(maxDepth - 1)
		}
		k[label], ok = value, ok && readable && !twice
	}
	if !ok || len(r.b) > 0 {
		return nil, unreadable("credential public key")
	}
	return k, nil
}

// verifier reports whether signature is a key's signature over signed.
type verifier func(signed, signature []byte) bool

// parseKey returns the function that verifies signatures of a COSE_Key. The key alone decides the algorithm.
func parseKey(cose []byte) (verifier, error) {
	k, err := readKey(cose)
	if err != nil {
		return nil, err
	}
	var v verifier
	switch k[labelAlg] {
	case int64(ES256):
		v = k.es256()
	case int64(EdDSA):
		v = k.eddsa()
	case int64(RS256):
		v = k.rs256()
	default:
		return nil, FailedAlgorithm
	}
	if v == nil {
		return nil, FailedKey
	}
	return v, nil
}

func (k coseKey) es256() verifier {
	x, y := k.bytes(label2), k.bytes(label3)
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), slices.Concat([]byte{4}, x, y))
	if k[labelKty] != int64(2) || k[label1] != int64(1) || len(x) != 32 || err != nil {
		return nil
	}
	return func(signed, signature []byte) bool {
		hash := sha256.Sum256(signed)
		return ecdsa.VerifyASN1(key, hash[:], signature)
	}
}

func (k coseKey) eddsa() verifier {
	x := k.bytes(label2)
	if k[labelKty] != int64(1) || k[label1] != int64(6) || len(x) != ed25519.PublicKeySize {
		return nil
	}
	return func(signed, signature []byte) bool { return ed25519.Verify(x, signed, signature) }
}

func (k coseKey) rs256() verifier {
	modulus := k.bytes(label1)
	n := new(big.Int).SetBytes(modulus)
	if k[labelKty] != int64(3) || len(modulus) != (n.BitLen()+7)/8 || n.Bit(0) == 0 || n.BitLen() < 2048 ||
		n.BitLen() > 4096 || !bytes.Equal(k.bytes(label2), []byte{1, 0, 1}) {
		return nil
	}
	key := &rsa.PublicKey{N: n, E: 65537}
	return func(signed, signature []byte) bool {
		hash := sha256.Sum256(signed)
		return rsa.VerifyPKCS1v15(key, crypto.SHA256, hash[:], signature) == nil
	}
}

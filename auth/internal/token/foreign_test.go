package token

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"gatehouse/shared/must"
)

var foreignRSAKey, otherRSAKey = sync.OnceValue(newRSAKey), sync.OnceValue(newRSAKey)

func newRSAKey() *rsa.PrivateKey {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return k
}

// foreignPrivate are keys of every kind, by the algorithms that they serve.
func foreignPrivate(t testing.TB) map[string]any {
	t.Helper()
	keys := map[string]any{}
	for _, alg := range []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"} {
		keys[alg] = foreignRSAKey()
	}
	for alg, c := range map[string]elliptic.Curve{"ES256": elliptic.P256(), "ES384": elliptic.P384(),
		"ES512": elliptic.P521()} {
		k, err := ecdsa.GenerateKey(c, rand.Reader)
		must.Succeed(t, err)
		keys[alg] = k
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	must.Succeed(t, err)
	keys["EdDSA"] = ed
	return keys
}

// foreignJWK is the public half of a private key.
func foreignJWK(t testing.TB, private any, members string) string {
	t.Helper()
	switch p := private.(type) {
	case *rsa.PrivateKey:
		return fmt.Sprintf(`{"kty":"RSA","n":%q,"e":"AQAB"%s}`, b64.EncodeToString(p.N.Bytes()), members)
	case *ecdsa.PrivateKey:
		point, err := p.PublicKey.Bytes()
		must.Succeed(t, err)
		half := len(point) / 2
		return fmt.Sprintf(`{"kty":"EC","crv":%q,"x":%q,"y":%q%s}`, p.Params().Name,
			b64.EncodeToString(point[1:1+half]), b64.EncodeToString(point[1+half:]), members)
	case ed25519.PrivateKey:
		return fmt.Sprintf(`{"kty":"OKP","crv":"Ed25519","x":%q%s}`, b64.EncodeToString(p.Public().(ed25519.PublicKey)),
			members)
	}
	t.Fatal("no such key")
	return ""
}

func foreignSet(t testing.TB, jwks ...string) []ForeignKey {
	t.Helper()
	keys, err := ParseForeignKeys(`{"keys":[` + strings.Join(jwks, ",") + `]}`)
	must.Succeed(t, err)
	return keys
}

var everyAlg = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
	"HS256", "HS512", "none"}

// TestForeignPeer: what another library signs with any of the ten algorithms is read, with a key that names
// the algorithm and with one that doesn't, and by no other.
func TestForeignPeer(t *testing.T) {
	private := foreignPrivate(t)
	for alg, key := range private {
		tok := jwt.NewWithClaims(jwt.GetSigningMethod(alg),
			jwt.MapClaims{"iss": "https://idp.test", "sub": "7", "aud": []string{"a", "b"}, "exp": testNow.Unix() + 60,
				"iat": testNow.Unix(), "nonce": "n", "jti": "j", "azp": "a", "at_hash": "h"})
		tok.Header["kid"] = "k"
		text, err := tok.SignedString(key)
		must.Succeed(t, err)
		f, err := ParseForeign(text)
		if err != nil {
			t.Fatalf("%s: %v", alg, err)
		}
		if f.Alg != alg || f.KeyID != "k" || f.Issuer != "https://idp.test" ||
			f.Subject != "7" || strings.Join(f.Audience, " ") != "a b" || f.Nonce != "n" ||
			f.ID != "j" || f.AuthorizedParty != "a" || f.AccessTokenHash != "h" ||
			f.IssuedAt != testNow.Unix() || f.Timely(testNow) != nil {
			t.Errorf("%s: read as %+v", alg, f)
		}
		for _, members := range []string{`,"kid":"k"`, `,"kid":"k","use":"sig","alg":"` + alg + `"`, ``,
			`,"key_ops":["verify"],"x5c":["ignored"],"kid":"k"`} {
			if err := f.Signed(foreignSet(t, foreignJWK(t, key, members)), everyAlg); err != nil {
				t.Errorf("%s, key%s: %v", alg, members, err)
			}
		}
		if err := f.Signed(foreignSet(t, foreignJWK(t, key, `,"kid":"k"`)), []string{"none", "HS256"}); !errors.Is(err,
			ErrAlgorithm) {
			t.Errorf("%s although it isn't asked for: %v", alg, err)
		}
		// Every other kind of key, and the same one for another algorithm.
		var others []string
		for other, k := range private {
			if _, same := k.(*rsa.PrivateKey); !same && other != alg || same && other[:2] != alg[:2] {
				others = append(others, foreignJWK(t, k, `,"kid":"k","alg":"`+other+`"`))
			}
		}
		if err := f.Signed(foreignSet(t, others...), everyAlg); !errors.Is(err, ErrUnknownKey) {
			t.Errorf("%s with the keys of other algorithms: %v", alg, err)
		}
		if err := f.Signed(foreignSet(t, foreignJWK(t, key, `,"kid":"other"`)), everyAlg); !errors.Is(err,
			ErrUnknownKey) {
			t.Errorf("%s with a key of another id: %v", alg, err)
		}
		again := foreignPrivate(t)[alg]
		if _, ok := again.(*rsa.PrivateKey); ok {
			again = otherRSAKey()
		}
		if err := f.Signed(foreignSet(t, foreignJWK(t, again, `,"kid":"k"`)), everyAlg); !errors.Is(err, ErrSignature) {
			t.Errorf("%s with another key of the same kind: %v", alg, err)
		}
		// One bit of each part.
		for _, at := range []int{strings.IndexByte(text, '.') + 3, len(text) - 5} {
			changed := []byte(text)
			changed[at] ^= 1
			if g, err := ParseForeign(string(changed)); err == nil &&
				g.Signed(foreignSet(t, foreignJWK(t, key, ``)), everyAlg) == nil {
				t.Errorf("%s: a changed token is accepted", alg)
			}
		}
	}
}

// TestForeignSignatureShapes: a signature of another length or form is none.
func TestForeignSignatureShapes(t *testing.T) {
	private := foreignPrivate(t)
	for _, alg := range []string{"ES256", "ES384", "ES512", "EdDSA"} {
		k := foreignSet(t, foreignJWK(t, private[alg], ""))[0]
		size := map[string]int{"ES256": 64, "ES384": 96, "ES512": 132, "EdDSA": 64}[alg]
		for _, n := range []int{0, 1, size - 1, size, size + 1, 2 * size} {
			if k.verify(alg, []byte("x"), make([]byte, n)) {
				t.Errorf("%s: %d zero bytes are a signature", alg, n)
			}
		}
	}
	// ASN.1, as other programs write ECDSA signatures, is not the form of RFC 7518.
	p := private["ES256"].(*ecdsa.PrivateKey)
	k := foreignSet(t, foreignJWK(t, p, ""))[0]
	sum := crypto.SHA256.New()
	sum.Write([]byte("x"))
	asn, err := ecdsa.SignASN1(rand.Reader, p, sum.Sum(nil))
	if err != nil || k.verify("ES256", []byte("x"), asn) {
		t.Errorf("an ASN.1 signature is accepted: %v", err)
	}
}

func TestForeignRefused(t *testing.T) {
	f := func(header, claims string, want error) {
		t.Helper()
		if _, err := ParseForeign(b64.EncodeToString([]byte(header)) + "." +
			b64.EncodeToString([]byte(claims)) + ".AAAA"); !errors.Is(err, want) {
			t.Errorf("%s %s: %v, want %v", header, claims, err, want)
		}
	}
	const head = `{"alg":"RS256"}`
	f(head, `{}`, nil)
	f(`{"alg":"RS256","kid":"k","typ":"jwt","jku":"https://evil.example","jwk":{},"x5c":["x"],"x5t":"t"}`, `{}`, nil)
	for _, h := range []string{`{"alg":"RS256","crit":["exp"]}`, `{"alg":"RS256","b64":true}`,
		`{"alg":"RS256","typ":"at+jwt"}`, `{"alg":"RS256","typ":7}`, `{"alg":["RS256"]}`,
		`{"alg":"RS256","alg":"none"}`, `{"alg":"RS256","\u0061lg":"none"}`, `{"alg":"RS256","kid":1}`, `[]`, `{`, ``,
		`null`} {
		f(h, `{}`, ErrMalformed)
	}
	for _, c := range []string{`{"sub":1}`, `{"iss":null}`, `{"aud":1}`, `{"aud":["a",1]}`, `{"exp":"1"}`, `{"exp":-1}`,
		`{"exp":1e99}`, `{"nbf":true}`, `{"sub":"a","sub":"b"}`,
		`{"nonce":{}}`, `[]`, `null`, `{"a":1} x`, "{\"a\":\"\xff\"}"} {
		f(head, c, ErrClaims)
	}
	for _, text := range []string{"", ".", "..", "a.b", "a.b.c.d", "e30.e30.!", "e30.e30.e", "e30.e30.AAAA\n",
		"e30=.e30.AAAA", strings.Repeat("a", 9000) + ".e30.AAAA"} {
		if _, err := ParseForeign(text); !errors.Is(err, ErrMalformed) {
			t.Errorf("%.40q: %v", text, err)
		}
	}
	if _, err := ParseForeign(strings.Repeat("a", MaxSize+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a giant: %v", err)
	}
}

func TestForeignTimely(t *testing.T) {
	now := testNow.Unix()
	f := func(exp, nbf, iat int64, want error) {
		t.Helper()
		if err := (&Foreign{ExpiresAt: exp, NotBefore: nbf, IssuedAt: iat}).Timely(testNow); !errors.Is(err, want) {
			t.Errorf("exp %d nbf %d iat %d: %v, want %v", exp-now, nbf-now, iat-now, err, want)
		}
	}
	f(now+1, now, now, nil)
	f(now+1, 0, 0, nil)
	f(0, 0, now, ErrNoExpiry)
	f(now, 0, 0, ErrExpired)
	f(now-1, 0, 0, ErrExpired)
	f(now+999, now+300, now+300, nil)
	f(now+999, now+301, 0, ErrNotYetValid)
	f(now+999, 0, now+301, ErrNotYetValid)
}

// TestForeignHash has the example of OpenID Connect Core 1.0, appendix A.3.
func TestForeignHash(t *testing.T) {
	f := &Foreign{Alg: "RS256", AccessTokenHash: "77QmUPtjPfzWtF2AnpK9RQ"}
	if !f.HashesAccessToken("jHkWEdUXMU1BwAsC4vtUsZwnNvTIxEl0z9K3vx5KF0Y") {
		t.Error("the example's hash")
	}
	for _, alg := range []string{"RS384", "PS512", "EdDSA", "none", ""} {
		f.Alg = alg
		if f.HashesAccessToken("jHkWEdUXMU1BwAsC4vtUsZwnNvTIxEl0z9K3vx5KF0Y") {
			t.Errorf("SHA-256's hash under %q", alg)
		}
	}
}

func TestForeignKeys(t *testing.T) {
	good := foreignJWK(t, foreignPrivate(t)["ES256"], `,"kid":"good"`)
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	must.Succeed(t, err)
	odd := []string{
		`{"kty":"RSA","kid":"e","use":"enc","n":"AQAB","e":"AQAB"}`, `{"kty":"oct","kid":"s","k":"c2VjcmV0"}`,
		`{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}`,
		`{"kty":"EC","crv":"secp256k1","x":"` + strings.Repeat("A", 43) + `","y":"` + strings.Repeat("A", 43) + `"}`,
		`{"kty":"OKP","crv":"Ed448","x":"AA"}`,
		`{"kty":"OKP","crv":"X25519","x":"` + strings.Repeat("A", 43) + `"}`, `{"kty":"RSA"}`, `{}`, `[]`, `7`, `"x"`,
		`{"kty":["RSA"]}`, `{"kty":"RSA","kty":"EC"}`,
		foreignJWK(t, small, ""), strings.Replace(good, `"kid":"good"`, `"alg":"RS256"`, 1),
		strings.Replace(good, `"kid":"good"`, `"key_ops":["sign"]`, 1),
		strings.Replace(good, `"kid":"good"`, `"alg":"HS256"`, 1),
		strings.Replace(good, `"kid":"good"`, `"kid":"`+strings.Repeat("k", 300)+`"`, 1),
		fmt.Sprintf(`{"kty":"RSA","n":%q,"e":"Aw"}`, b64.EncodeToString(foreignRSAKey().N.Bytes())),
	}
	keys := foreignSet(t, append(odd, good)...)
	if len(keys) != 1 || keys[0].ID != "good" {
		t.Errorf("keys %+v, want the good one alone", keys)
	}
	for _, text := range []string{``, `{}`, `[]`, `{"keys":{}}`, `{"keys":[}`, `{"keys":[]}x`,
		`{"keys":[` + strings.Repeat(`{},`, maxForeignKeys) + `{}]}`, `{"keys":[],"keys":[]}`} {
		if keys, err := ParseForeignKeys(text); err == nil {
			t.Errorf("%.40s is a key set of %d", text, len(keys))
		}
	}
	if keys, err := ParseForeignKeys(`{"keys":[]}`); err != nil || len(keys) != 0 {
		t.Errorf("an empty set: %v", err)
	}
}

// FuzzForeign looks for texts that are read otherwise than encoding/json reads them, and for forged signatures.
func FuzzForeign(f *testing.F) {
	private := foreignPrivate(f)
	var jwks []string
	for alg, k := range private {
		jwks = append(jwks, foreignJWK(f, k, ""))
		tok := jwt.NewWithClaims(jwt.GetSigningMethod(alg), jwt.MapClaims{"sub": "7", "aud": "a", "exp": 99})
		if alg == "EdDSA" || alg == "ES256" {
			text, _ := tok.SignedString(k)
			f.Add(text)
		}
	}
	keys := foreignSet(f, jwks...)
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Add(b64.EncodeToString([]byte(`{"alg":"HS256","kid":"","typ":"JWT"}`)) +
		"." + b64.EncodeToString([]byte(`{"aud":["a","b"],"exp":1.5,"sub":"\u00e9"}`)) + ".AAAA")
	f.Fuzz(func(t *testing.T, text string) {
		tok, err := ParseForeign(text)
		if err != nil {
			return
		}
		var want struct {
			Iss, Sub, Nonce, Jti string
			Exp                  float64
		}
		if err := json.Unmarshal([]byte(tok.Payload), &want); err == nil &&
			strings.ToLower(tok.Payload) == tok.Payload &&
			(want.Sub != tok.Subject || want.Iss != tok.Issuer || want.Nonce != tok.Nonce ||
				want.Jti != tok.ID || int64(want.Exp) != tok.ExpiresAt) {
			t.Errorf("%s is read as %+v", tok.Payload, tok)
		}
		if err := tok.Signed(keys, everyAlg); err == nil && tok.ExpiresAt != 99 {
			t.Errorf("accepted: %q", text)
		}
		_ = tok.Timely(time.Unix(50, 0))
	})
}

// FuzzForeignKeys looks for key sets that make the reader panic or let a broken key pass.
func FuzzForeignKeys(f *testing.F) {
	for _, k := range foreignPrivate(f) {
		f.Add(`{"keys":[` + foreignJWK(f, k, `,"kid":"k"`) + `]}`)
	}
	f.Add(`{"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA"},{"kty":"RSA","n":"","e":""},{"kty":"OKP","crv":"Ed25519","x":""}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		keys, err := ParseForeignKeys(text)
		if err != nil {
			return
		}
		for i := range keys {
			for _, alg := range everyAlg {
				// A key of small order has such signatures in Ed25519; its issuer has published a broken key.
				if alg != "EdDSA" && keys[i].fits(alg) && keys[i].verify(alg, []byte("x"), make([]byte, 64)) {
					t.Errorf("zeros are a signature of %s", text)
				}
			}
		}
	})
}

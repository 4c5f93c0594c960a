package token

import (
	"encoding/json"
	"strings"
	"testing"
)

// Each is one of the RFCs' keys with one thing wrong.
func TestParseJWKRefuses(t *testing.T) {
	f := func(good, old, new, want string) {
		t.Helper()
		bad := strings.Replace(good, old, new, 1)
		if bad == good {
			t.Fatalf("the key has no %s", old)
		}
		_, err := ParseJWK(bad)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s -> %s: %v, want %q", old, new, err, want)
		} else if strings.Contains(err.Error(), "jpsQnnGQ") || strings.Contains(err.Error(), "AyM1Sys") {
			t.Errorf("the error shows key material: %v", err)
		}
	}
	for _, k := range []string{rfcRSA, rfcEC, rfcEd, rfcOct} {
		f(k, `"kid":`, `"kid2":`, "kid is missing")
		f(k, `"kid":"`, `"kid":"\u0007`, "control characters")
		f(k, `"kid":"`, `"kid":"`+strings.Repeat("k", 256), "longer than 256")
		f(k, `"kid":"`, `"kid":1,"x":"`, "kid has the wrong type")
		f(k, `"kty":`, `"kty2":`, "needs kty")
		f(k, `"kty":"`, `"kty":"X`, "needs kty")
		f(k, `"alg":`, `"alg2":`, "alg is missing")
		f(k, `"alg":"`, `"alg":"A`, "is not one of")
		f(k, `"alg":"`, `"use":"enc","alg":"`, "") // use is given twice in the RSA key
		f(k, `"key_ops":["sign"`, `"key_ops":["sign","encrypt"`, `key_ops has "encrypt"`)
		f(k, `"key_ops":["sign"`, `"key_ops":["sign","sign"`, "twice")
		f(k, `"key_ops":["sign"`, `"key_ops":[1`, "key_ops has the wrong type")
		f(k, `"kty":`, `"kty":"x","kty":`, `given twice: "kty"`)
		f(k, "}", "},", "not valid JSON")
		f(k, "}", "", "not valid JSON")
		f(k, "{", "[{", "not a JSON object")
	}
	f(rfcEC, `["sign"]`, `[]`, "key_ops is empty")
	f(rfcEC, `"kid"`, `"use":"enc","kid"`, `use is "enc"`)
	f(rfcRSA, `"RS256"`, `"ES256"`, "needs kty EC")
	f(rfcRSA, `"RS256"`, `"RS512"`, "is not one of")
	f(rfcEC, `"ES256"`, `"HS256"`, "needs kty oct")

	n := rfcRSA[strings.Index(rfcRSA, `"n":"`)+5:]
	n = n[:strings.IndexByte(n, '"')]
	raw, _ := decode64(n)
	f(rfcRSA, n, b64.EncodeToString(raw[:255]), "has 2040 bits")
	f(rfcRSA, n, b64.EncodeToString(append([]byte{0}, raw...)), "n has leading zero bytes")
	f(rfcRSA, n, b64.EncodeToString(append(raw[:255:255], raw[255]-1)), "is even")
	f(rfcRSA, n, b64.EncodeToString(append(raw[:255:255], raw[255]-2)), "does not belong")
	f(rfcRSA, n, strings.Repeat("A", 9000), "too long")
	f(rfcRSA, n, n[:40]+`\n`+n[40:], "not base64url")
	f(rfcRSA, n, n[:len(n)-1]+"R", "not base64url") // stray bits
	f(rfcRSA, n, n+"==", "not base64url")
	f(rfcRSA, `"n":`, `"N":`, "n is missing")
	f(rfcRSA, `"AQAB"`, `"Aw"`, "exponent")
	f(rfcRSA, `"AQAB"`, `"AQAC"`, "exponent")
	f(rfcRSA, `"AQAB"`, `"AQAAAAE"`, "exponent")
	f(rfcRSA, `"d":"E`, `"d":"F`, "does not belong")
	f(rfcRSA, `"d":`, `"d2":`, "private members but no d")
	f(rfcRSA, `"p":"4`, `"p":"5`, "does not belong")
	f(rfcRSA, `"q":`, `"q2":`, "q is missing")
	f(rfcRSA, `"dp":"B`, `"dp":"C`, "dp does not belong")
	f(rfcRSA, `"dq":"h_9`, `"dq":"h_8`, "dq does not belong")
	f(rfcRSA, `"qi":"I`, `"qi":"J`, "qi does not belong")
	f(rfcRSA, `"qi"`, `"oth":[],"qi"`, "more than two primes")
	f(rfcThumb, `"alg"`, `"key_ops":["sign"],"alg"`, "private half is missing")

	f(rfcEC, "P-256", "P-384", "needs crv P-256")
	f(rfcEC, "P-256", "secp256k1", "needs crv P-256")
	f(rfcEC, `"x":"f`, `"x":"g`, "no point of P-256")
	f(rfcEC, `"x":"f83`, `"x":"AAf83`, "x is not 32 bytes")
	f(rfcEC, `"d":"j`, `"d":"k`, "d does not belong")
	f(rfcEC, "jpsQnnGQmL-YBIffH1136cspYG6-0iY7X1fCE9-E9LI", strings.Repeat("A", 43), "d does not belong")
	f(rfcEC, "jpsQnnGQmL-YBIffH1136cspYG6-0iY7X1fCE9-E9LI", "_____wAAAAD__________7zm-q2nF56E87nKwvxjJVE",
		"d does not belong") // the order
	f(rfcEd, "Ed25519", "Ed448", "needs crv Ed25519")
	f(rfcEd, "Ed25519", "X25519", "needs crv Ed25519")
	f(rfcEd, `"d":"n`, `"d":"o`, "d does not belong")
	f(rfcEd, `"x":"1`, `"x":"2`, "d does not belong")
	f(rfcEd, `"x":"1`, `"x":"`, "x is not 32 bytes")
	f(rfcOct, `"k":"`, `"k":"=`, "k is missing or not base64url")
	f(rfcOct, `"k":`, `"k2":`, "k is missing")
}

func TestJWKRoundTrip(t *testing.T) {
	rs, es, ed, oct := testKeys(t)
	for _, alg := range []Algorithm{RS256, ES256, EdDSA} {
		k, err := Generate(alg)
		if err != nil || k.ID() != k.Thumbprint() || k.Algorithm() != alg || len(k.ID()) != 43 {
			t.Fatalf("generated %s: %v", k, err)
		}
		for _, k := range []*Key{k, rs, es, ed, oct} {
			text, err := k.PrivateJWK()
			if err != nil {
				t.Fatal(err)
			}
			back, err := ParseJWK(string(text))
			if err != nil || !back.Signs || back.ID() != k.ID() || back.Thumbprint() != k.Thumbprint() ||
				!json.Valid(text) {
				t.Fatalf("%s: %s read back: %v", k, text, err)
			}
			sig, err := back.sign(nil, []byte("text"))
			if err != nil || !k.verify([]byte("text"), sig) {
				t.Errorf("%s: its copy signs otherwise: %v", k, err)
			}
			if k.Symmetric() {
				if k.PublicJWK() != nil {
					t.Error("a secret has a public half")
				}
				continue
			}
			public, err := ParseJWK(string(k.PublicJWK()))
			if err != nil || public.Signs || public.CanSign() || !public.verify([]byte("text"), sig) {
				t.Errorf("%s: public half %s: %v", k, k.PublicJWK(), err)
			}
			if _, err := public.PrivateJWK(); err == nil {
				t.Errorf("%s: the public half has a private one", k)
			}
			if _, err := public.sign(nil, nil); err == nil {
				t.Errorf("%s: the public half signs", k)
			}
		}
	}
	if _, err := Generate(HS256); err == nil {
		t.Error("an HS256 key was generated")
	}
	if k, _ := NewSecret("", []byte("short")); !k.Weak() || oct.Weak() || rs.Weak() {
		t.Error("weakness is judged wrongly")
	}
}

func TestParseKeys(t *testing.T) {
	verifyOnly := strings.Replace(rfcEC, `["sign"]`, `["verify"]`, 1)
	f := func(text, want string) {
		t.Helper()
		entries, err := ParseKeys(text)
		have := ""
		for _, e := range entries {
			have += e.Key.ID() + " " + e.State.String() + ", "
		}
		if err != nil || have != want {
			t.Errorf("%s, %v; want %s", have, err, want)
		}
	}
	f("["+rfcRSA+"]", "a2 current, ")
	f(" [ "+rfcRSA+" , "+verifyOnly+" , "+rfcThumb+"]\n", "a2 current, a3 previous, 2011-04-29 previous, ")
	f(`{"keys":[`+verifyOnly+","+rfcOct+`]}`, "a3 previous, a1 current, ")

	refuse := func(text string, want ...string) {
		t.Helper()
		_, err := ParseKeys(text)
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%v, want %q", err, w)
			}
		}
	}
	refuse("", "not an array of JWKs")
	refuse("[]", "the array of JWKs is empty")
	refuse(rfcRSA, `"keys" is missing`)
	refuse(`{"keys":{}}`, "not an array of JWKs")
	refuse("["+rfcRSA, "not an array of JWKs")
	refuse("["+rfcRSA+"]]", "not an array of JWKs")
	refuse("["+rfcRSA+","+rfcEC+"]", "2 keys have sign in key_ops; exactly one must")
	refuse("["+verifyOnly+"]", "0 keys have sign")
	refuse("["+rfcRSA+","+verifyOnly+","+strings.Replace(rfcThumb, "2011-04-29", "a2", 1)+"]",
		`key 3 (kid "a2"): key 1 has the same kid`)
	refuse("["+strings.Replace(rfcRSA, `"alg"`, `"x"`, 1)+","+strings.Replace(verifyOnly, `"kid"`, `"x5u"`, 1)+",1]",
		`key 1 (kid "a2"): alg is missing`, "key 2: kid is missing", "key 3: not a JSON object")
}

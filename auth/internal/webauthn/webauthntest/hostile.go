package webauthntest

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/asn1"
	"encoding/base64"
	"math/big"
	"net/url"
	"slices"
	"strings"

	"gatehouse/auth/internal/webauthn"
)

// Case is a message that differs from one that an honest authenticator sends.
type Case struct {
	Name string
	// Failure is the check that must refuse the message. If it is "", the message must be unreadable or, with Accepted,
	// accepted.
	Failure  webauthn.Failure
	Accepted bool
	// RequireUV is set if the policy must require that the user was verified.
	RequireUV bool
	// Algorithm of the credential; 0 stands for ES256.
	Algorithm int
	Change    Change
}

// Ceremony says which messages Hostile changes.
type Ceremony string

// The ceremonies: a registration and a sign-in.
const (
	Creation Ceremony = "create"
	Request  Ceremony = "get"
)

// Hostile returns the messages of a ceremony, for a page of the given origin, whose host is rpID or below it. The
// authenticator behind them sets no flags and verifies no user.
func Hostile(of Ceremony, rpID, origin string) []Case {
	cases := append(clientCases(of, origin), authCases(of, rpID, origin)...)
	cases = append(cases, readingCases(of)...)
	if of == Creation {
		return append(append(cases, keyCases()...), attestationCases()...)
	}
	return append(cases, signatureCases()...)
}

// client returns a change that replaces text in the client data.
func client(old, with string) Change {
	return Before(func(m *Message) { m.ClientData = bytes.Replace(m.ClientData, []byte(old), []byte(with), 1) })
}

// challenge returns a change of the challenge in the client data.
func challenge(change func(string) string) Change {
	return Before(func(m *Message) {
		_, rest, _ := strings.Cut(string(m.ClientData), `"challenge":"`)
		text, _, _ := strings.Cut(rest, `"`)
		m.ClientData = bytes.Replace(m.ClientData, []byte(text), []byte(change(text)), 1)
	})
}

func clientCases(of Ceremony, origin string) []Case {
	u, _ := url.Parse(origin)
	other := map[Ceremony]string{Creation: "webauthn.get", Request: "webauthn.create"}[of]
	out := []Case{
		{Name: "type of the other ceremony", Failure: webauthn.FailedType,
			Change: client(`"webauthn.`+string(of)+`"`, `"`+other+`"`)},
		{Name: "type in another case", Failure: webauthn.FailedType, Change: client(`"webauthn.`, `"WebAuthn.`)},
		{Name: "challenge with a bit flipped", Failure: webauthn.FailedChallenge, Change: challenge(func(s string) string {
			b, _ := base64.RawURLEncoding.DecodeString(s)
			b[7] ^= 16
			return Encode(b)
		})},
		{Name: "challenge padded", Failure: webauthn.FailedChallenge,
			Change: challenge(func(s string) string { return s + "=" })},
		{Name: "challenge in standard base64", Failure: webauthn.FailedChallenge, Change: challenge(func(s string) string {
			b, _ := base64.RawURLEncoding.DecodeString(s)
			return base64.StdEncoding.EncodeToString(b)
		})},
		{Name: "challenge with a line break", Failure: webauthn.FailedChallenge,
			Change: challenge(func(s string) string { return s[:9] + `\n` + s[9:] })},
		{Name: "challenge empty", Failure: webauthn.FailedChallenge, Change: challenge(func(string) string { return "" })},
		{Name: "crossOrigin true", Failure: webauthn.FailedCrossOrigin,
			Change: client(`"crossOrigin":false`, `"crossOrigin":true`)},
		{Name: "topOrigin", Failure: webauthn.FailedCrossOrigin,
			Change: client(`"crossOrigin":false`, `"topOrigin":"`+origin+`"`)},
		{Name: "Origin right, origin wrong", Failure: webauthn.FailedOrigin,
			Change: client(`"origin":"`+origin+`"`, `"origin":"https://evil.test","Origin":"`+origin+`"`)},
		{Name: "origin right, Origin wrong", Accepted: true,
			Change: client(`"crossOrigin"`, `"Origin":"https://evil.test","crossOrigin"`)},
		{Name: "unknown members", Accepted: true,
			Change: client(`"crossOrigin"`, `"more":{"a":[1,{"b":null}]},"type2":"x","crossOrigin"`)},
	}
	for _, wrong := range []string{"https://evil.test", "http://" + u.Host, origin + "1", origin + ":8443",
		"https://unlisted." + u.Host, origin + "/", "https://" + strings.ToUpper(u.Host[:1]) + u.Host[1:], "null", "",
		origin + "@evil.test", origin + ".evil.test", "https://xn--" + u.Host,
		"android:apk-key-hash:" + strings.Repeat("A", 43)} {
		out = append(out, Case{Name: "origin " + wrong, Failure: webauthn.FailedOrigin,
			Change: client(`"`+origin+`"`, `"`+wrong+`"`)})
	}
	return out
}

// flags returns a change of the flags in the authenticator data.
func flags(change func(byte) byte) Change {
	return Before(func(m *Message) { m.AuthData[32] = change(m.AuthData[32]) })
}

func setFlags(f byte) Change { return flags(func(b byte) byte { return b | f }) }

func rpIDHash(id string) Change {
	return Before(func(m *Message) { hash := sha256.Sum256([]byte(id)); copy(m.AuthData, hash[:]) })
}

// more returns a change that sets a flag and appends data to the authenticator data.
func more(flag byte, data ...byte) Change {
	return Before(func(m *Message) {
		m.AuthData[32] |= flag
		m.AuthData = append(m.AuthData, data...)
	})
}

func authCases(of Ceremony, rpID, origin string) []Case {
	u, _ := url.Parse(origin)
	attested := setFlags(AT) // where there must be none
	if of == Creation {
		attested = Before(func(m *Message) { m.AuthData = AuthData(m.Key.RPID, UP, 0) })
	}
	out := []Case{
		{Name: "RP id of another", Failure: webauthn.FailedRPID, Change: rpIDHash("evil.test")},
		{Name: "RP id with a dot", Failure: webauthn.FailedRPID, Change: rpIDHash(rpID + ".")},
		{Name: "RP id of the origin's host", Failure: webauthn.FailedRPID, Change: rpIDHash(u.Hostname())},
		{Name: "UP 0", Failure: webauthn.FailedUserPresence, Change: flags(func(b byte) byte { return b &^ UP })},
		{Name: "UV 0 where required", Failure: webauthn.FailedUserVerification, RequireUV: true},
		{Name: "UV 0 where preferred", Accepted: true},
		{Name: "UV 1 where required", Accepted: true, RequireUV: true, Change: setFlags(UV)},
		{Name: "BS without BE", Failure: webauthn.FailedBackupFlags, Change: setFlags(BS)},
		{Name: "reserved bits", Accepted: true, Change: setFlags(1<<1 | 1<<5)},
		{Name: "ED with an unknown output", Accepted: true, Change: more(ED, CBOR(Map{{"later", Map{{1, true}}}})...)},
		{Name: "ED without data", Change: setFlags(ED)},
		{Name: "ED with broken CBOR", Change: more(ED, 0xa1, 0x61)},
		{Name: "ED with a list", Change: more(ED, 0x80)},
		{Name: "authenticatorData one byte too long", Change: more(0, 0)},
		{Name: "authenticatorData of 36 bytes", Change: Before(func(m *Message) { m.AuthData = m.AuthData[:36] })},
		{Name: "authenticatorData of 4,097 bytes", Change: Before(func(m *Message) {
			m.AuthData[32] |= ED
			m.AuthData = append(m.AuthData, CBOR(Map{{"x", make([]byte, 4097-len(m.AuthData)-6)}})...)
		})},
		{Name: "attested credential data on the wrong side", Change: attested},
	}
	if of == Request {
		out = append(out, Case{Name: "BE changed", Failure: webauthn.FailedBackupFlags,
			Change: flags(func(b byte) byte { return b ^ BE })})
	}
	return out
}

func readingCases(of Ceremony) []Case {
	clientData := func(do func([]byte) []byte) Change {
		return Before(func(m *Message) { m.ClientData = do(m.ClientData) })
	}
	out := []Case{
		{Name: "clientDataJSON without type", Change: client(`"type"`, `"kind"`)},
		{Name: "clientDataJSON without challenge", Change: client(`"challenge"`, `"Challenge"`)},
		{Name: "crossOrigin a text", Change: client(`"crossOrigin":false`, `"crossOrigin":"true"`)},
		{Name: "crossOrigin null", Change: client(`"crossOrigin":false`, `"crossOrigin":null`)},
		{Name: "topOrigin null", Change: client(`"crossOrigin":false`, `"topOrigin":null`)},
		{Name: "type a number", Change: client(`"webauthn.`+string(of)+`"`, `1`)},
		{Name: "origin twice", Change: client(`"crossOrigin":false`, `"origin":"https://evil.test"`)},
		{Name: "type twice, once escaped", Change: client(`"crossOrigin":false`, `"\u0074ype":"x"`)},
		{Name: "clientDataJSON with a BOM", Change: clientData(func(b []byte) []byte {
			return append([]byte{0xef, 0xbb, 0xbf}, b...)
		})},
		{Name: "data after clientDataJSON", Change: clientData(func(b []byte) []byte { return append(b, `{}`...) })},
		{Name: "clientDataJSON not UTF-8", Change: client(`"crossOrigin"`, "\"x\":\"\xff\",\"crossOrigin\"")},
		{Name: "clientDataJSON an array", Change: clientData(func(b []byte) []byte {
			return append(append([]byte{'['}, b...), ']')
		})},
		{Name: "clientDataJSON a text", Change: clientData(func([]byte) []byte { return []byte(`"x"`) })},
		{Name: "clientDataJSON empty", Change: clientData(func([]byte) []byte { return nil })},
		{Name: "clientDataJSON of 4,097 bytes", Change: clientData(func(b []byte) []byte {
			return append(b, bytes.Repeat([]byte{' '}, 4097-len(b))...)
		})},
		{Name: "clientDataJSON of 4,096 bytes", Accepted: true, Change: clientData(func(b []byte) []byte {
			return append(b, bytes.Repeat([]byte{' '}, 4096-len(b))...)
		})},
		{Name: "clientDataJSON of depth 100", Change: client(`"crossOrigin":false`,
			`"x":`+strings.Repeat("[", 100)+strings.Repeat("]", 100))},
		{Name: "id and rawId differ", Change: After(func(m *Message) { m.RawID = Encode([]byte("another")) })},
		{Name: "id padded", Change: After(func(m *Message) { m.ID += "="; m.RawID += "=" })},
		{Name: "id empty", Change: After(func(m *Message) { m.ID, m.RawID = "", "" })},
		{Name: "id with a line break", Change: After(func(m *Message) { m.ID += "\n"; m.RawID += "\n" })},
		{Name: "id of 1024 bytes", Change: After(func(m *Message) {
			m.ID = Encode(make([]byte, 1024))
			m.RawID = m.ID
		})},
		{Name: "another type", Change: After(func(m *Message) { m.Type = "password" })},
	}
	if of == Creation {
		return append(out, Case{Name: "id other than in authenticatorData", Failure: webauthn.FailedCredentialID,
			Change: After(func(m *Message) { m.ID = Encode([]byte("another")); m.RawID = m.ID })})
	}
	text := func(s string) *string { return &s }
	return append(out,
		Case{Name: "signature empty", Change: After(func(m *Message) { m.Signature = nil })},
		Case{Name: "signature of 1,025 bytes", Change: After(func(m *Message) { m.Signature = make([]byte, 1025) })},
		Case{Name: "userHandle empty", Change: After(func(m *Message) { m.Handle = text("") })},
		Case{Name: "userHandle of 65 bytes", Change: After(func(m *Message) { m.Handle = text(Encode(make([]byte, 65))) })})
}

func keyCases() []Case {
	key := func(name string, f webauthn.Failure, cose func(p []byte) any) Case {
		return Case{Name: "key: " + name, Failure: f, Change: Draft(func(m *Message) {
			p := slices.Clone(COSE(m.Key.Private.Public()))
			m.COSE = CBOR(cose(p))
		})}
	}
	x, y := make([]byte, 32), make([]byte, 32)
	point, _ := newKey(webauthn.ES256).Public().(*ecdsa.PublicKey).Bytes()
	copy(x, point[1:33])
	copy(y, point[33:])
	ec := func(alg, crv int, x, y any) Map { return Map{{1, 2}, {3, alg}, {-1, crv}, {-2, x}, {-3, y}} }
	okp := func(alg, crv int, x any) Map { return Map{{1, 1}, {3, alg}, {-1, crv}, {-2, x}} }
	n := rsaKey().N
	rsaOf := func(alg int, n *big.Int, e ...byte) Map { return Map{{1, 3}, {3, alg}, {-1, n.Bytes()}, {-2, e}} }
	is := func(m any) func([]byte) any { return func([]byte) any { return m } }
	off := slices.Clone(y)
	off[31] ^= 1
	p384, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	wide, _ := p384.PublicKey.Bytes()
	bits := func(size uint) *big.Int {
		return new(big.Int).Add(new(big.Int).Lsh(big.NewInt(1), size-1), big.NewInt(1))
	}
	bad, alg := webauthn.FailedKey, webauthn.FailedAlgorithm
	cases := []Case{
		key("-7 with kty 1", bad, is(okp(-7, 6, x))),
		key("-8 with crv 7", bad, is(okp(-8, 7, x))),
		key("-8 with kty 2", bad, is(ec(-8, 1, x, y))),
		key("-257 with kty 2", bad, is(ec(-257, 1, x, y))),
		key("alg -35", alg, is(ec(-35, 2, wide[1:49], wide[49:]))),
		key("alg -37", alg, is(rsaOf(-37, n, 1, 0, 1))),
		key("alg -53", alg, is(okp(-53, 7, make([]byte, 57)))),
		key("alg -65535", alg, is(rsaOf(-65535, n, 1, 0, 1))),
		key("no alg", alg, is(Map{{1, 2}, {-1, 1}, {-2, x}, {-3, y}})),
		key("alg a text", alg, is(Map{{1, 2}, {3, "ES256"}, {-1, 1}, {-2, x}, {-3, y}})),
		key("point off the curve", bad, is(ec(-7, 1, x, off))),
		key("point at infinity", bad, is(ec(-7, 1, make([]byte, 32), make([]byte, 32)))),
		key("x of 31 bytes", bad, is(ec(-7, 1, x[1:], y))),
		key("x of 33 bytes", bad, is(ec(-7, 1, append([]byte{0}, x...), y))),
		key("compressed y", bad, is(ec(-7, 1, x, true))),
		key("no y", bad, is(Map{{1, 2}, {3, -7}, {-1, 1}, {-2, x}})),
		key("P-384 under -7", bad, is(ec(-7, 2, wide[1:49], wide[49:]))),
		key("Ed25519 x of 31 bytes", bad, is(okp(-8, 6, x[1:]))),
		key("RSA of 1024 bits", bad, is(rsaOf(-257, bits(1024), 1, 0, 1))),
		key("RSA of 4104 bits", bad, is(rsaOf(-257, bits(4104), 1, 0, 1))),
		key("RSA with e = 3", bad, is(rsaOf(-257, n, 3))),
		key("RSA with an even n", bad, is(rsaOf(-257, new(big.Int).Sub(n, big.NewInt(1)), 1, 0, 1))),
		key("RSA with a leading zero byte", bad, is(Map{{1, 3}, {3, -257},
			{-1, append([]byte{0}, n.Bytes()...)}, {-2, []byte{1, 0, 1}}})),
		key("label twice", "", is(append(ec(-7, 1, x, y), Pair{3, -7}))),
		key("tagged", "", is(append(ec(-7, 1, x, y), Pair{9, Raw{0xc0, 0x00}}))),
		key("indefinite length", "", is(Raw(append(append([]byte{0xbf}, CBOR(ec(-7, 1, x, y))[1:]...), 0xff)))),
		key("a list", "", is([]any{1, 2})),
		key("65 labels", "", is(func() Map {
			m := ec(-7, 1, x, y)
			for i := range 60 {
				m = append(m, Pair{100 + i, 0})
			}
			return m
		}())),
	}
	accepted := key("another order and an unknown label", "", is(Map{{-3, y}, {"later", 1}, {-2, x}, {77, "x"},
		{-1, 1}, {3, -7}, {1, 2}}))
	accepted.Accepted = true
	return append(cases, accepted)
}

func attestationCases() []Case {
	object := func(name string, of func(m *Message) any) Case {
		return Case{Name: "attestationObject: " + name, Change: Before(func(m *Message) { m.Object = CBOR(of(m)) })}
	}
	whole := func(m *Message, statement any) Map {
		return Map{{"fmt", m.Format}, {"attStmt", statement}, {"authData", m.AuthData}}
	}
	accepted := func(name, format string, statement Map) Case {
		return Case{Name: "attestation " + name, Accepted: true,
			Change: Draft(func(m *Message) { m.Format, m.Statement = format, statement })}
	}
	id := func(n int) Case {
		return Case{Name: "credential id beyond its bounds", Change: Draft(func(m *Message) {
			m.AuthData = append(AuthData(m.Key.RPID, UP|AT, 0), Attested([16]byte{}, make([]byte, n), m.COSE)...)
		})}
	}
	return []Case{
		object("with a trailing byte", func(m *Message) any { return Raw(append(CBOR(whole(m, Map{})), 0)) }),
		object("attStmt no map", func(m *Message) any { return whole(m, []byte("x")) }),
		object("authData a text", func(m *Message) any {
			return Map{{"fmt", "none"}, {"attStmt", Map{}}, {"authData", strings.Repeat("x", 200)}}
		}),
		object("fmt no text", func(m *Message) any {
			return Map{{"fmt", 1}, {"attStmt", Map{}}, {"authData", m.AuthData}}
		}),
		object("authData twice", func(m *Message) any {
			return append(whole(m, Map{}), Pair{"authData", m.AuthData})
		}),
		object("without attStmt", func(m *Message) any { return Map{{"fmt", "none"}, {"authData", m.AuthData}} }),
		object("of 16,385 bytes", func(m *Message) any {
			return whole(m, Map{{"x", make([]byte, 16385-len(CBOR(whole(m, Map{})))-5)}})
		}),
		object("of depth 100", func(m *Message) any {
			return whole(m, Map{{"x", Raw(append(bytes.Repeat([]byte{0x81}, 100), 0))}})
		}),
		object("with an array of 2^32", func(m *Message) any {
			return whole(m, Map{{"x", Raw{0x9b, 0, 0, 0, 1, 0, 0, 0, 0}}})
		}),
		object("with a text of 2^63", func(m *Message) any {
			return whole(m, Map{{"x", Raw{0x7b, 0x80, 0, 0, 0, 0, 0, 0, 0}}})
		}),
		id(0), id(1024),
		{Name: "credential id beyond the end", Change: Before(func(m *Message) { m.AuthData[54]++ })},
		{Name: "authenticatorData that ends in the key", Change: Before(func(m *Message) {
			m.AuthData = m.AuthData[:len(m.AuthData)-1]
		})},
		accepted("none with a statement", "none", Map{{"x5c", []any{[]byte("no certificate")}}}),
		accepted("packed with a wrong signature", "packed", Map{{"alg", -7}, {"sig", []byte("wrong")}}),
		accepted("of an unknown format", "later", Map{}),
	}
}

func signatureCases() []Case {
	signature := func(name string, alg int, do func(m *Message, s []byte) []byte) Case {
		return Case{Name: "signature: " + name, Failure: webauthn.FailedSignature, Algorithm: alg,
			Change: After(func(m *Message) { m.Signature = do(m, slices.Clone(m.Signature)) })}
	}
	type rs struct{ R, S *big.Int }
	der := func(name string, do func(v *rs)) Case {
		return signature(name, 0, func(_ *Message, s []byte) []byte {
			var v rs
			if _, err := asn1.Unmarshal(s, &v); err != nil {
				panic(err)
			}
			do(&v)
			out, err := asn1.Marshal(v)
			if err != nil {
				panic(err)
			}
			return out
		})
	}
	order := elliptic.P256().Params().N
	return []Case{
		signature("a bit flipped", 0, func(_ *Message, s []byte) []byte { s[len(s)-1] ^= 1; return s }),
		signature("raw r and s", 0, func(_ *Message, s []byte) []byte {
			var v rs
			if _, err := asn1.Unmarshal(s, &v); err != nil {
				panic(err)
			}
			return append(v.R.FillBytes(make([]byte, 32)), v.S.FillBytes(make([]byte, 32))...)
		}),
		signature("a trailing byte", 0, func(_ *Message, s []byte) []byte { return append(s, 0) }),
		signature("a long-form length", 0, func(_ *Message, s []byte) []byte {
			return append([]byte{s[0], 0x81}, s[1:]...)
		}),
		signature("an integer with a zero byte too many", 0, func(_ *Message, s []byte) []byte {
			out := slices.Insert(s, 4, 0)
			out[1]++
			out[3]++
			return out
		}),
		der("r negative", func(v *rs) { v.R.Sub(v.R, new(big.Int).Lsh(big.NewInt(1), 256)) }),
		der("r = 0", func(v *rs) { v.R.SetInt64(0) }),
		der("s = 0", func(v *rs) { v.S.SetInt64(0) }),
		der("r = n", func(v *rs) { v.R.Set(order) }),
		der("s = n", func(v *rs) { v.S.Set(order) }),
		der("s + n", func(v *rs) { v.S.Add(v.S, order) }),
		signature("Ed25519 with S + L", webauthn.EdDSA, func(_ *Message, s []byte) []byte {
			l, _ := new(big.Int).SetString("7237005577332262213973186563042994240857116359379907606001950938285454250989", 10)
			le := slices.Clone(s[32:])
			slices.Reverse(le)
			sum := new(big.Int).SetBytes(le)
			be := sum.Add(sum, l).FillBytes(make([]byte, 32))
			slices.Reverse(be)
			return append(s[:32], be...)
		}),
		signature("Ed25519 of another message", webauthn.EdDSA, func(m *Message, _ []byte) []byte {
			return ed25519.Sign(m.Key.Private.(ed25519.PrivateKey), []byte("another"))
		}),
		signature("RSA-PSS", webauthn.RS256, func(m *Message, _ []byte) []byte {
			hash := sha256.Sum256(m.ClientData)
			digest := sha256.Sum256(append(slices.Clone(m.AuthData), hash[:]...))
			out, err := rsa.SignPSS(rand.Reader, m.Key.Private.(*rsa.PrivateKey), crypto.SHA256, digest[:], nil)
			if err != nil {
				panic(err)
			}
			return out
		}),
		{Name: "clientDataJSON written again after signing", Failure: webauthn.FailedSignature,
			Change: After(func(m *Message) { m.ClientData = bytes.Replace(m.ClientData, []byte(`:`), []byte(`: `), 1) })},
		{Name: "counter changed after signing", Failure: webauthn.FailedSignature,
			Change: After(func(m *Message) { m.AuthData[36]++ })},
		{Name: "an honest EdDSA signature", Accepted: true, Algorithm: webauthn.EdDSA},
		{Name: "an honest RS256 signature", Accepted: true, Algorithm: webauthn.RS256},
	}
}

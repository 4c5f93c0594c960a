package token

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"gatehouse/auth/internal/jsontext"
	"gatehouse/shared/must"
)

// forgery collects tokens that are each a valid one with one thing wrong.
type forgery struct {
	t    *testing.T
	set  *Set
	seen map[string]string // token -> what is wrong with it
}

func (f *forgery) add(what, text string) {
	f.t.Helper()
	if old := f.seen[text]; old != "" {
		f.t.Errorf("%s is the same token as %s", what, old)
	}
	f.seen[text] = what
	var c Claims
	if k, err := f.set.Verify(&c, text, testNow); err == nil {
		f.t.Errorf("%s: accepted as signed by %s: %s", what, k, text)
	}
}

// signed is a token of any header and claims with k's good signature.
func signed(t testing.TB, k *Key, header, payload string) string {
	t.Helper()
	input := b64.EncodeToString([]byte(header)) + "." + b64.EncodeToString([]byte(payload))
	sig, err := k.sign(nil, []byte(input))
	must.Succeed(t, err)
	return input + "." + b64.EncodeToString(sig)
}

func TestForgedTokens(t *testing.T) {
	rs, es, ed, oct := testKeys(t)
	revoked, err := Generate(EdDSA)
	must.Succeed(t, err)
	secret, _ := NewSecret("", testSecret)
	set := mustSet(t, SetConfig{
		Keys:   []Entry{{rs, Current}, {es, Next}, {ed, Previous}, {oct, Previous}, {revoked, Revoked}},
		Secret: secret, AcceptSecret: true, Issuer: testIssuer,
	})
	f := &forgery{t: t, set: set, seen: map[string]string{}}
	raw, err := testClaims().appendTo(nil)
	must.Succeed(t, err)
	payload := string(raw)
	for _, k := range []*Key{rs, es, ed, oct, secret} {
		header := fmt.Sprintf(`{"alg":"%s","kid":"%s","typ":"JWT"}`, k.alg, k.id)
		if k == secret {
			header = `{"alg":"HS256","typ":"JWT"}`
		}
		good := signed(t, k, header, payload)
		var c Claims
		if by, err := set.Verify(&c, good, testNow); by != k || err != nil {
			t.Fatalf("%s: the valid token is refused: %v", k, err)
		}
		for _, fine := range []string{ // other spellings of the same header
			" " + header + "\n", strings.Replace(header, `"alg"`, `"\u0061lg"`, 1),
			strings.Replace(header, "JWT", "jwt", 1), strings.Replace(header, `,"typ":"JWT"`, "", 1),
		} {
			if _, err := set.Verify(&c, signed(t, k, fine, payload), testNow); err != nil {
				t.Errorf("%s: header %s: %v", k, fine, err)
			}
		}
		f.headers(k, header, payload)
		f.claims(k, header, payload)
		f.structure(k, good)
		f.signatures(k, good)
	}
	f.keys(rs, es, ed, oct, secret, revoked, payload)
	if len(f.seen) < 500 {
		t.Errorf("only %d forged tokens", len(f.seen))
	}
	t.Logf("%d forged tokens", len(f.seen))
}

// headers are signed by the right key, over a header that must not be believed.
func (f *forgery) headers(k *Key, header, payload string) {
	bad := map[string]string{
		"no alg":           strings.Replace(header, fmt.Sprintf(`"alg":"%s",`, k.alg), "", 1),
		"alg twice":        strings.Replace(header, `{`, fmt.Sprintf(`{"alg":"%s",`, k.alg), 1),
		"alg twice, other": strings.Replace(header, `{`, `{"alg":"none",`, 1),
		"alg escaped":      strings.Replace(header, `{`, `{"\u0061l\u0067":"none",`, 1),
		"Alg":              strings.Replace(header, `"alg"`, `"Alg"`, 1),
		"ALG besides":      strings.Replace(header, `{`, `{"ALG":"none",`, 1),
		"typ JWE":          strings.Replace(header, "JWT", "JWE", 1),
		"typ number":       strings.Replace(header, `"JWT"`, "1", 1),
		"typ null":         strings.Replace(header, `"JWT"`, "null", 1),
		"typ twice":        strings.Replace(header, `}`, `,"typ":"JWT"}`, 1),
		"kid number":       strings.Replace(header, `"typ"`, `"kid":1,"typ"`, 1),
		"kid array":        strings.Replace(header, `{`, `{"kid":["a2"],`, 1),
		"array":            "[" + header + "]",
		"string":           `"` + b64.EncodeToString([]byte(header)) + `"`,
		"null":             "null",
		"empty":            "",
		"empty object":     "{}",
		"trailing":         header + "{}",
		"trailing comma":   strings.Replace(header, "}", ",}", 1),
		"unclosed":         strings.TrimSuffix(header, "}"),
		"BOM":              "\ufeff" + header,
		"not UTF-8":        strings.Replace(header, "JWT", "JW\xd4", 1),
		"comment":          strings.Replace(header, "{", "{/**/", 1),
		"single quotes":    strings.ReplaceAll(header, `"`, `'`),
		"NUL":              header + "\x00",
		"too long":         header + strings.Repeat(" ", maxHeader),
	}
	if k.id != "" {
		kid := fmt.Sprintf(`"kid":"%s"`, k.id)
		for _, other := range []string{`"kid":"unknown"`, `"kid":""`, `"kid":null`, `"kid":true`,
			`"kid":"../../dev/null"`, `"kid":"` + strings.ToUpper(k.id) + `"`,
			`"kid":"` + k.id + ` "`, `"kid":"` + k.id + `\u0000"`, `"kid":"' or 1=1"`, `"kid":{}`, kid + "," + kid,
			`"Kid":"` + k.id + `"`, `"kid":"\ud800"`} {
			bad[other] = strings.Replace(header, kid, other, 1)
		}
		bad["kid escaped and twice"] = strings.Replace(header, kid, kid+`,"k\u0069d":"a1"`, 1)
	} else {
		bad["kid empty"] = strings.Replace(header, `"typ"`, `"kid":"","typ"`, 1)
		bad["kid unknown"] = strings.Replace(header, `"typ"`, `"kid":"unknown","typ"`, 1)
	}
	if k.alg != HS256 {
		bad["no kid"] = strings.Replace(header, fmt.Sprintf(`,"kid":"%s"`, k.id), "", 1)
	}
	for _, alg := range []string{"none", "None", "NONE", "nOnE", "", " ", "HS256", "RS256", "ES256", "EdDSA", "HS384",
		"HS512", "RS384", "RS512", "PS256", "ES384", "ES512", "ES256K",
		"Ed25519", "ed448", strings.ToLower(k.alg.String()), k.alg.String() + " ", k.alg.String() + `\u0000`, "dir",
		"A256GCM"} {
		if alg != k.alg.String() {
			bad["alg "+alg] = strings.Replace(header, `"`+k.alg.String()+`"`, `"`+alg+`"`, 1)
		}
	}
	for _, alg := range []string{"1", "null", "true", `["` + k.alg.String() + `"]`, "{}"} {
		bad["alg raw "+alg] = strings.Replace(header, `"`+k.alg.String()+`"`, alg, 1)
	}
	for _, extra := range []string{`"jku":"https://evil.example/jwks"`, `"x5u":"https://evil.example/c"`,
		`"jwk":{"kty":"oct","k":"AA"}`, `"x5c":["AA"]`, `"x5t":"AA"`, `"x5t#S256":"AA"`,
		`"crit":["exp"]`, `"crit":[]`, `"crit":["b64"],"b64":false`, `"b64":false`, `"zip":"DEF"`, `"enc":"A256GCM"`,
		`"cty":"JWT"`, `"epk":{}`, `"p2c":1000000000`, `"x":1`, `"":1`, `"iss":"a"`} {
		bad["extra "+extra] = strings.Replace(header, "{", "{"+extra+",", 1)
	}
	for what, h := range bad {
		f.add(k.String()+" header "+what, signed(f.t, k, h, payload))
	}
}

// claims are signed by the right key but must not be believed.
func (f *forgery) claims(k *Key, header, payload string) {
	now := testNow.Unix()
	exp := fmt.Sprintf(`"exp":%d`, now+3600)
	iat := fmt.Sprintf(`"iat":%d`, now)
	replace := func(old, new string) string {
		if !strings.Contains(payload, old) {
			f.t.Fatalf("the claims lack %s", old)
		}
		return strings.Replace(payload, old, new, 1)
	}
	bad := []string{
		replace(exp+",", ""), replace(`"exp"`, `"Exp"`), replace(exp, exp+","+exp),
		replace(exp, exp+`,"\u0065xp":9999999999`),
		replace(iat, fmt.Sprintf(`"iat":%d`, now+31)), replace(iat, iat+fmt.Sprintf(`,"nbf":%d`, now+31)),
		replace(iat, iat+`,"nbf":"0"`), replace(iat, iat+`,"nbf":null`),
		replace(iat, iat+`,"nbf":-1`), replace(iat, `"iat":"1"`), replace(iat, `"iat":1e9`), replace(iat, `"iat":-1`),
		replace(iat, `"iat":[1]`), replace(iat, `"iat":253402300800`),
		replace(`"role":"authenticated"`, `"role":1`), replace(`"role":"authenticated"`, `"role":null`),
		replace(`"role":"authenticated"`, `"role":["service_role"]`),
		replace(`"role":`, `"role":"service_role","role":`), replace(`"role":`, `"r\u006fle":"service_role","role":`),
		replace(`"role":"authenticated"`, `"role":"\ud800"`),
		replace(`"sub":"7d0c3f0e-52a4-4a0e-9a52-0b6a3d1c9f10"`, `"sub":7`),
		replace(`"sub":"7d0c3f0e-52a4-4a0e-9a52-0b6a3d1c9f10"`, `"sub":{}`),
		replace(`"sub":`, `"sub":"x","sub":`), replace(`"aud":"authenticated"`, `"aud":1`),
		replace(`"aud":"authenticated"`, `"aud":[1]`), replace(`"aud":"authenticated"`, `"aud":{"a":1}`),
		replace(`"session_id":"`, `"session_id":1,"x":"`), replace(`"session_id":"`, `"session_id":"x","session_id":"`),
		replace(`"is_anonymous":false`, `"is_anonymous":"false"`),
		replace(`"is_anonymous":false`, `"is_anonymous":0`), replace(`"amr":[`, `"amr":["a",1,`),
		replace(`"amr":[{`, `"amr":[{"method":1},{`), replace(`"amr":[{`, `"amr":[[],{`),
		replace(`"amr":[{"method":"password",`, `"amr":[{"method":"password","method":"totp",`),
		replace(`"aal":"aal1"`, `"aal":2`), replace(`"email":"mia@example.org"`, `"email":null`),
		replace(`"phone":""`, `"phone":49`), replace(`"iss":"https://auth.example.org"`, `"iss":1`),
		replace(`"jti":"`, `"jti":1,"y":"`),
		replace(`"app_metadata":{"provider":"email","providers":["email"]}`, `"app_metadata":[]`),
		replace(`"app_metadata":{"provider":"email","providers":["email"]}`, `"app_metadata":"{}"`),
		"", "{}x", "null", "[" + payload + "]", `"x"`, payload + payload, payload + ",",
		strings.TrimSuffix(payload, "}"), strings.Replace(payload, "}", ",}", 1), "\ufeff" + payload,
		replace("Mia", "Mi\xe1"), replace("Mia", "Mi\n"), replace("Mia", `Mi\x`), replace("Mia", `Mi\u00g0`),
		strings.Replace(payload, "{", `{"x":`+strings.Repeat("[", 40)+strings.Repeat("]", 40)+",", 1),
		strings.Replace(payload, "{", `{"x":01,`, 1), strings.Replace(payload, "{", `{"x":+1,`, 1),
		strings.Replace(payload, "{", `{"x":.5,`, 1), strings.Replace(payload, "{", `{"x":NaN,`, 1),
		strings.Replace(payload, "{", `{x:1,`, 1), strings.Replace(payload, "{", `{"x":tru,`, 1),
	}
	for _, value := range []int64{1, now - 3600, now - 1, now, maxTime + 1} {
		bad = append(bad, replace(exp, fmt.Sprintf(`"exp":%d`, value)))
	}
	for _, value := range []string{`"` + fmt.Sprint(now+60) + `"`, "null", "true", "[9999999999]", "{}", "-9999999999",
		"9e9", "1E10", "0", "99999999999999999999", "9223372036854775808", "9999999999.9e1"} {
		bad = append(bad, replace(exp, `"exp":`+value))
	}
	many := strings.Builder{}
	for i := range jsontext.MaxMembers {
		fmt.Fprintf(&many, `"x%d":0,`, i)
	}
	bad = append(bad, strings.Replace(payload, "{", "{"+many.String(), 1))
	if !k.Symmetric() {
		bad = append(bad, replace(`"iss":"https://auth.example.org"`, `"iss":"https://auth.example.org/"`),
			replace(`"iss":"https://auth.example.org"`, `"iss":"https://evil.example"`))
	}
	for i, p := range bad {
		f.add(fmt.Sprintf("%s claims %d %.60s", k, i, p), signed(f.t, k, header, p))
	}
}

// structure is the valid token, written or cut otherwise.
func (f *forgery) structure(k *Key, good string) {
	p := strings.Split(good, ".")
	std := func(s string) string {
		raw, _ := decode64(s)
		return base64.StdEncoding.EncodeToString(raw)
	}
	for what, text := range map[string]string{
		"no signature": p[0] + "." + p[1], "empty signature": p[0] + "." + p[1] + ".", "no claims": p[0] + ".." + p[2],
		"no header":  "." + p[1] + "." + p[2],
		"four parts": good + "." + p[2], "four parts, empty": good + ".", "five parts": good + "..",
		"leading dot": "." + good, "header only": p[0], "swapped": p[1] + "." + p[0] + "." + p[2],
		"Bearer": "Bearer " + good, "space before": " " + good, "space behind": good + " ", "LF behind": good + "\n",
		"CR LF behind": good + "\r\n", "tab": "\t" + good, "NUL": good + "\x00",
		"LF in the signature": p[0] + "." + p[1] + "." + p[2][:5] + "\n" + p[2][5:],
		"CR in the claims":    p[0] + "." + p[1][:9] + "\r" + p[1][9:] + "." + p[2],
		"LF in the header":    p[0][:3] + "\n" + p[0][3:] + "." + p[1] + "." + p[2], "padded": good + "=",
		"padded twice": good + "==", "claims padded": p[0] + "." + p[1] + "=." + p[2],
		"header padded": p[0] + "=." + p[1] + "." + p[2], "standard alphabet": p[0] + "." + p[1] + "." +
			std(p[2]) + "/+",
		"percent": strings.ReplaceAll(good, ".", "%2E"),
		"quoted":  `"` + good + `"`,
		"JSON serialization": fmt.Sprintf(`{"payload":"%s","protected":"%s","signature":"%s"}`,
			p[1], p[0], p[2]), "too large": good + strings.Repeat("A", MaxSize),
		"letter case":                 strings.ToUpper(p[0]) + "." + p[1] + "." + p[2],
		"a letter more in the header": p[0] + "A." + p[1] + "." + p[2],
		"a letter more in the claims": p[0] + "." + p[1] + "A." + p[2],
		"a letter less in the claims": p[0] + "." + p[1][1:] + "." + p[2],
		"other dots":                  strings.ReplaceAll(good, ".", "\u2024"),
	} {
		f.add(k.String()+" "+what, text)
	}
	raw, _ := decode64(p[1])
	for old, new := range map[string]string{"authenticated": "service_role", "7d0c3f0e": "7d0c3f0f", "aal1": "aal2",
		"1930467600": "9930467600", "false": "true", "b1f3a7a2": "b1f3a7a3", "mia@": "eva@", "https": "http"} {
		changed := bytes.Replace(raw, []byte(old), []byte(new), 1)
		f.add(k.String()+" unsigned change to "+new, p[0]+"."+b64.EncodeToString(changed)+"."+p[2])
	}
}

// signatures are changed ones over the valid header and claims.
func (f *forgery) signatures(k *Key, good string) {
	dot := strings.LastIndexByte(good, '.')
	sig, _ := decode64(good[dot+1:])
	with := func(what string, sig []byte) { f.add(k.String()+" "+what, good[:dot+1]+b64.EncodeToString(sig)) }
	for i := 0; i < len(sig); i += 1 + len(sig)/24 {
		bad := bytes.Clone(sig)
		bad[i] ^= 1 << (i % 8)
		with(fmt.Sprintf("bit of byte %d", i), bad)
	}
	with("cut", sig[:len(sig)-1])
	with("cut in front", sig[1:])
	with("longer", append(bytes.Clone(sig), 0))
	with("zero in front", append([]byte{0}, sig...))
	with("zeros", make([]byte, len(sig)))
	with("ones", bytes.Repeat([]byte{255}, len(sig)))
	with("twice", append(bytes.Clone(sig), sig...))
	with("half", sig[:len(sig)/2])
	other, _ := k.sign(nil, []byte(good[:dot]+"A"))
	with("of another text", other)
	withDot, _ := k.sign(nil, []byte(good[:dot+1]))
	with("over the second dot, too", withDot)
	if stray := len(good) - dot - 1; stray%4 != 0 { // the last letter has bits that the bytes don't need
		const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
		last := strings.IndexByte(alphabet, good[len(good)-1])
		f.add(k.String()+" stray bits", good[:len(good)-1]+string(alphabet[last|1]))
	}
	switch k.alg {
	case ES256:
		r, s := new(big.Int).SetBytes(sig[:32]), new(big.Int).SetBytes(sig[32:])
		der, _ := asn1.Marshal(struct{ R, S *big.Int }{r, s})
		with("as ASN.1", der)
		with("r and s exchanged", append(bytes.Clone(sig[32:]), sig[:32]...))
		with("r zero", append(make([]byte, 32), sig[32:]...))
		with("s zero", append(bytes.Clone(sig[:32]), make([]byte, 32)...))
		n := k.ec.Curve.Params().N.Bytes()
		with("r and s are the order", append(bytes.Clone(n), n...))
	case EdDSA:
		order, _ := new(big.Int).SetString(
			"7237005577332262213973186563042994240857116359379907606001950938285454250989", 10)
		le := bytes.Clone(sig[32:])
		for i, j := 0, 31; i < j; i, j = i+1, j-1 {
			le[i], le[j] = le[j], le[i]
		}
		s := new(big.Int).Add(new(big.Int).SetBytes(le), order).FillBytes(make([]byte, 32))
		for i, j := 0, 31; i < j; i, j = i+1, j-1 {
			s[i], s[j] = s[j], s[i]
		}
		with("S plus the order", append(bytes.Clone(sig[:32]), s...))
	case RS256:
		sum := sha256.Sum256([]byte(good[:dot]))
		pss, _ := rsa.SignPSS(rand.Reader, k.private.(*rsa.PrivateKey), crypto.SHA256, sum[:], nil)
		with("PSS", pss)
		bare, _ := rsa.SignPKCS1v15(nil, k.private.(*rsa.PrivateKey), 0, sum[:])
		with("without the hash's name", bare)
		plus := new(big.Int).Add(new(big.Int).SetBytes(sig), k.rsa.N)
		if plus.BitLen() <= 8*len(sig) {
			with("plus the modulus", plus.FillBytes(make([]byte, len(sig))))
		}
	}
}

// keys are signatures of keys that must not speak: strangers under a known kid, public keys as HMAC
// secrets, one key under another's name, revoked ones.
func (f *forgery) keys(rs, es, ed, oct, secret, revoked *Key, payload string) {
	header := func(alg Algorithm, kid string) string {
		if kid == "" {
			return fmt.Sprintf(`{"alg":"%s","typ":"JWT"}`, alg)
		}
		return fmt.Sprintf(`{"alg":"%s","kid":"%s","typ":"JWT"}`, alg, kid)
	}
	known := []*Key{rs, es, ed, oct, secret}
	for _, k := range known {
		for _, other := range known {
			if k != other {
				f.add(fmt.Sprintf("%s in the name of %s", k, other),
					signed(f.t, k, header(other.alg, other.id), payload))
			}
		}
	}
	for _, alg := range []Algorithm{RS256, ES256, EdDSA} {
		stranger, err := Generate(alg)
		must.Succeed(f.t, err)
		for _, victim := range known {
			f.add(fmt.Sprintf("stranger's %s as %s", alg, victim),
				signed(f.t, stranger, header(alg, victim.id), payload))
		}
		f.add("stranger's "+alg.String(), signed(f.t, stranger, header(alg, stranger.id), payload))
	}
	f.add("revoked", signed(f.t, revoked, header(EdDSA, revoked.id), payload))
	f.add("revoked in another's name", signed(f.t, revoked, header(EdDSA, ed.id), payload))
	secrets := map[string][]byte{"one byte": {1}, "secret": []byte("secret"), "cut": testSecret[1:],
		"public JWK set": f.set.JWKS(), "newline behind": append(bytes.Clone(testSecret), '\n')}
	for name, public := range map[string]any{"RSA": rs.rsa, "EC": es.ec, "Ed25519": ed.ed} {
		der, err := x509.MarshalPKIXPublicKey(public)
		must.Succeed(f.t, err)
		secrets[name+" DER"] = der
		secrets[name+" PEM"] = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
		secrets[name+" PEM, trimmed"] = bytes.TrimSpace(secrets[name+" PEM"])
	}
	secrets["n"], secrets["n in base64"] = rs.rsa.N.Bytes(), []byte(b64.EncodeToString(rs.rsa.N.Bytes()))
	secrets["RSA JWK"], secrets["EC JWK"], secrets["OKP JWK"], secrets["x"] = rs.PublicJWK(), es.PublicJWK(),
		ed.PublicJWK(), ed.ed
	for name, s := range secrets {
		k, err := NewSecret("x", s)
		must.Succeed(f.t, err)
		for _, kid := range []string{"", rs.id, es.id, ed.id, oct.id} {
			f.add(fmt.Sprintf("HMAC with %s, kid %q", name, kid), signed(f.t, k, header(HS256, kid), payload))
		}
	}
	empty := &Key{alg: HS256, private: []byte{}, macs: newMACPool(nil)}
	f.add("HMAC with nothing", signed(f.t, empty, header(HS256, ""), payload))
}

package token

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse/shared/must"
)

var testNow = time.Unix(1930464000, 0)

const testIssuer = "https://auth.example.org"

// testClaims has every claim, with text that needs escapes.
func testClaims() *Claims {
	return &Claims{
		Issuer: testIssuer, Subject: "7d0c3f0e-52a4-4a0e-9a52-0b6a3d1c9f10", Audience: "authenticated",
		ExpiresAt: testNow.Unix() + 3600, IssuedAt: testNow.Unix(), ID: "sYg1V3Bq0k2mS8T4n6X0aQ",
		Email: "mia@example.org", Phone: "",
		AppMetadata:  json.RawMessage(`{"provider": "email", "providers": ["email"]}`),
		UserMetadata: json.RawMessage(`{"name": "Mia \"von\" Ä  B", "n": [1, 2.5e3, null, true]}`),
		Role:         "authenticated", AAL: "aal1",
		AMR:       []AMR{{Method: "password", Timestamp: testNow.Unix()}},
		SessionID: "b1f3a7a2-7d34-4a0d-9f5e-0a4cc0ce6a11",
	}
}

// testKeys are one key of each asymmetric algorithm and an oct key, none generated.
func testKeys(t testing.TB) (rs, es, ed, oct *Key) {
	return mustKey(t, rfcRSA), mustKey(t, rfcEC), mustKey(t, rfcEd), mustKey(t, rfcOct)
}

var testSecret = []byte("a shared secret of more than 32 bytes")

func mustSet(t testing.TB, c SetConfig) *Set {
	t.Helper()
	s, err := NewSet(c)
	must.Succeed(t, err)
	return s
}

// setFor is a set whose current key is k, with the shared secret accepted.
func setFor(t testing.TB, k *Key) *Set {
	t.Helper()
	secret, err := NewSecret("", testSecret)
	must.Succeed(t, err)
	return mustSet(t, SetConfig{Keys: []Entry{{k, Current}}, Secret: secret, AcceptSecret: true, Issuer: testIssuer})
}

func TestSignVerify(t *testing.T) {
	rs, es, ed, oct := testKeys(t)
	for _, k := range []*Key{rs, es, ed, oct} {
		set := setFor(t, k)
		text, err := set.Sign([]byte("in front "), testClaims())
		must.Succeed(t, err)
		text = bytes.TrimPrefix(text, []byte("in front "))
		var have Claims
		by, err := set.Verify(&have, string(text), testNow)
		if err != nil || by != k {
			t.Fatalf("%s: verified by %v: %v", k, by, err)
		}
		want := testClaims()
		want.AppMetadata, want.UserMetadata, want.Payload = nil, nil, have.Payload
		if diff := cmp.Diff(want, &have); diff != "" {
			t.Errorf("%s: claims differ (-signed +read):\n%s", k, diff)
		}
	}
}

// The order, the names and the omissions of the claims are part of what applications see.
func TestClaimsText(t *testing.T) {
	f := func(c *Claims, want string) {
		t.Helper()
		have, err := c.appendTo(nil)
		if err != nil || string(have) != want {
			t.Errorf("claims (%v)\n%s\nwant\n%s", err, have, want)
		}
		if !json.Valid(have) {
			t.Error("not valid JSON")
		}
	}
	f(testClaims(),
		`{"iss":"https://auth.example.org","sub":"7d0c3f0e-52a4-4a0e-9a52-0b6a3d1c9f10","aud":"authenticated",`+
			`"exp":1930467600,"iat":1930464000,"jti":"sYg1V3Bq0k2mS8T4n6X0aQ","email":"mia@example.org","phone":"",`+
			`"app_metadata":{"provider":"email","providers":["email"]},`+
			`"user_metadata":{"name":"Mia \"von\" Ä  B","n":[1,2.5e3,null,true]},"role":"authenticated","aal":"aal1",`+
			`"amr":[{"method":"password","timestamp":1930464000}],"session_id":"b1f3a7a2-7d34-4a0d-9f5e-0a4cc0ce6a11","is_anonymous":false}`)
	f(&Claims{Email: "a\"\\\n\x01\xff\u2028<é>", AMR: []AMR{{"totp", 2, ""}, {"sso/saml", 1, "p"}}, IsAnonymous: true},
		`{"sub":"","aud":"","exp":0,"iat":0,"email":"a\"\\\n\u0001`+"\uFFFD\u2028"+
			`<é>","phone":"","app_metadata":{},"user_metadata":{},"role":"","aal":"",`+
			`"amr":[{"method":"totp","timestamp":2},{"method":"sso/saml","timestamp":1,"provider":"p"}],"session_id":"","is_anonymous":true}`)
}

func TestClaimsMetadata(t *testing.T) {
	f := func(raw, want string) {
		t.Helper()
		c := Claims{UserMetadata: json.RawMessage(raw)}
		have, err := c.appendTo(nil)
		if want == "" {
			if err == nil {
				t.Errorf("%q was signed as %s", raw, have)
			}
		} else if err != nil || !strings.Contains(string(have), `"user_metadata":`+want+`,"role"`) {
			t.Errorf("%q: %v, %s, want %s", raw, err, have, want)
		}
	}
	f("", "{}")
	f("null", "{}")
	f("  {}", "{}")
	f("{ \"a b\" :\t[ ] }\n", `{"a b":[]}`)
	f(`{"a":"\\\" "}`, `{"a":"\\\" "}`)
	f(`[]`, "")
	f(`"x"`, "")
	f(`{"a":1}, "role":"service_role"`, "")
	f(`{"a":1},"role":"service_role","x":{}`, "")
	f(`{"a":01}`, "")
	f("{\"a\":\"\xff\"}", "")
	f(strings.Repeat(`{"a":`, 40)+"1"+strings.Repeat("}", 40), "")
}

func TestServiceKey(t *testing.T) {
	rs, _, _, _ := testKeys(t)
	set := setFor(t, rs)
	text, err := set.SignService(nil, "service_role", "", testNow, testNow.AddDate(10, 0, 0))
	must.Succeed(t, err)
	var c Claims
	k, err := set.Verify(&c, string(text), testNow)
	if err != nil || k.Algorithm() != HS256 || c.Role != "service_role" || c.Subject != "" {
		t.Errorf("service key: %v by %v, %+v", err, k, c)
	}
	if want := `{"role":"service_role","iat":1930464000,"exp":2246083200}`; c.Payload != want {
		t.Errorf("claims %s, want %s", c.Payload, want)
	}
	set = mustSet(t, SetConfig{Keys: []Entry{{rs, Current}}, Issuer: testIssuer})
	if text, err = set.SignService(nil, "anon", testIssuer, testNow, testNow.AddDate(10, 0, 0)); err != nil {
		t.Fatal(err)
	}
	if k, err = set.Verify(&c, string(text), testNow); err != nil || k != rs || c.Issuer != testIssuer {
		t.Errorf("without shared secret: %v by %v, %+v", err, k, c)
	}
}

func TestVerifyTimesAndIssuer(t *testing.T) {
	rs, _, _, _ := testKeys(t)
	set := setFor(t, rs)
	f := func(payload string, want error) {
		t.Helper()
		for _, k := range []*Key{rs, set.secret} {
			text, err := k.signPayload(nil, []byte(payload))
			must.Succeed(t, err)
			var c Claims
			_, err = set.Verify(&c, string(text), testNow)
			if want == ErrIssuer && k == set.secret {
				if err != nil {
					t.Errorf("HS256 %s: %v, want no error", payload, err)
				}
			} else if !errors.Is(err, want) {
				t.Errorf("%s %s: %v, want %v", k, payload, err, want)
			}
		}
	}
	now := testNow.Unix()
	f(fmt.Sprintf(`{"sub":"u","exp":%d}`, now+1), nil)
	f(fmt.Sprintf(`{"sub":"u","exp":%d.9}`, now+1), nil)
	f(fmt.Sprintf(`{"sub":"u","exp":%d}`, now), ErrExpired)
	f(fmt.Sprintf(`{"role":"service_role","exp":%d}`, now-1), ErrExpired)
	f(`{"role":"service_role"}`, nil)
	f(`{"sub":"u"}`, ErrNoExpiry)
	f(fmt.Sprintf(`{"exp":%d,"nbf":%d}`, now+99, now+30), nil)
	f(fmt.Sprintf(`{"exp":%d,"nbf":%d}`, now+99, now+31), ErrNotYetValid)
	f(fmt.Sprintf(`{"exp":%d,"iat":%d}`, now+99, now+30), nil)
	f(fmt.Sprintf(`{"exp":%d,"iat":%d}`, now+99, now+31), ErrNotYetValid)
	f(`{"iss":"https://auth.example.org"}`, nil)
	f(`{"iss":"https://elsewhere.example.org"}`, ErrIssuer)
	f(`{"aud":["a","b"],"amr":["pwd",{"method":"otp"}]}`, nil)
	f(`{"exp":"1930467600"}`, ErrClaims)
}

func TestVerifyStates(t *testing.T) {
	rs, es, ed, oct := testKeys(t)
	set := mustSet(t, SetConfig{Keys: []Entry{{ed, Revoked}, {es, Next}, {rs, Current}, {oct, Previous}}})
	f := func(k *Key, want error) {
		t.Helper()
		text, err := k.signPayload(nil, []byte(`{"role":"anon"}`))
		must.Succeed(t, err)
		var c Claims
		if _, err := set.Verify(&c, string(text), testNow); err != want {
			t.Errorf("%s: %v, want %v", k, err, want)
		}
	}
	f(rs, nil)
	f(es, nil)
	f(oct, nil)
	f(ed, ErrRevokedKey)
	stranger, err := Generate(ES256)
	must.Succeed(t, err)
	f(stranger, ErrUnknownKey)
	secret, _ := NewSecret("", testSecret)
	f(secret, ErrUnknownKey) // no shared secret in this set

	var doc struct{ Keys []map[string]any }
	must.Succeed(t, json.Unmarshal(set.JWKS(), &doc))
	var ids []any
	for _, k := range doc.Keys {
		ids = append(ids, k["kid"])
		if k["d"] != nil || k["k"] != nil || k["p"] != nil {
			t.Errorf("the published key %v has private members", k["kid"])
		}
		if k["use"] != "sig" || k["alg"] == nil || k["kty"] == nil {
			t.Errorf("the published key %v lacks members", k)
		}
	}
	if diff := cmp.Diff([]any{"a2", "a3"}, ids); diff != "" {
		t.Errorf("published keys (-want +have):\n%s", diff)
	}
	if len(set.ETag()) != 18 {
		t.Errorf("entity tag %s", set.ETag())
	}
	only := mustSet(t, SetConfig{Secret: secret, AcceptSecret: true, SignWithSecret: true})
	if string(only.JWKS()) != `{"keys":[]}` {
		t.Errorf("only HS256: %s", only.JWKS())
	}
}

func TestNewSetRefuses(t *testing.T) {
	rs, es, _, _ := testKeys(t)
	secret, _ := NewSecret("", testSecret)
	named, _ := NewSecret("a2", testSecret)
	public := mustKey(t, rfcThumb)
	f := func(c SetConfig, want string) {
		t.Helper()
		if _, err := NewSet(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	f(SetConfig{}, "no key is current")
	f(SetConfig{Keys: []Entry{{rs, Previous}}}, "no key is current")
	f(SetConfig{Keys: []Entry{{rs, Current}, {es, Current}}}, "both current")
	f(SetConfig{Keys: []Entry{{rs, Current}, {rs, Previous}}}, `two keys have the kid "a2"`)
	f(SetConfig{Keys: []Entry{{rs, Revoked}, {rs, Current}}}, `two keys have the kid "a2"`)
	f(SetConfig{Keys: []Entry{{public, Current}}}, "no private half")
	f(SetConfig{Keys: []Entry{{rs, 0}}}, "no state")
	f(SetConfig{Keys: []Entry{{secret, Current}}}, "has no kid")
	f(SetConfig{Keys: []Entry{{rs, Current}}, Secret: named, AcceptSecret: true}, `both have the kid "a2"`)
	f(SetConfig{Secret: secret, SignWithSecret: true}, "needs it to be accepted")
	f(SetConfig{Keys: []Entry{{rs, Current}}, Secret: secret, AcceptSecret: true, SignWithSecret: true},
		"is current although")
	if _, err := NewSecret("", nil); err == nil {
		t.Error("an empty secret became a key")
	}
}

func TestSecretID(t *testing.T) {
	secret, _ := NewSecret("old", testSecret)
	set := mustSet(t, SetConfig{Secret: secret, AcceptSecret: true, SignWithSecret: true})
	plain, _ := NewSecret("", testSecret)
	var c Claims
	for _, k := range []*Key{secret, plain} { // with JWT_KEY_ID in the header, and as service keys are, without
		text, _ := k.signPayload(nil, []byte(`{"role":"anon"}`))
		if _, err := set.Verify(&c, string(text), testNow); err != nil {
			t.Errorf("kid %q: %v", k.ID(), err)
		}
	}
	other, _ := NewSecret("other", testSecret)
	text, _ := other.signPayload(nil, []byte(`{"role":"anon"}`))
	if _, err := set.Verify(&c, string(text), testNow); err != ErrUnknownKey {
		t.Errorf("an unknown kid over the right secret: %v", err)
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	k, _ := NewSecret("k", []byte("sesame"))
	for _, v := range []any{k, Entry{k, Current}, k.LogValue()} {
		for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
			text := fmt.Sprintf(format, v)
			if strings.Contains(text, "sesame") || strings.Contains(text, "115 101 115") {
				t.Errorf("%s of %T prints %s", format, v, text)
			}
		}
	}
}

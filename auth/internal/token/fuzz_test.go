package token

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"gatehouse/auth/internal/jsontext"
)

// FuzzVerify looks for texts that make Verify panic, or that it takes for signed.
func FuzzVerify(f *testing.F) {
	rs, es, ed, oct := testKeys(f)
	secret, _ := NewSecret("", testSecret)
	set := mustSet(f, SetConfig{Keys: []Entry{{rs, Current}, {es, Next}, {ed, Previous}, {oct, Previous}},
		Secret:       secret,
		AcceptSecret: true})
	payload, _ := testClaims().appendTo(nil)
	good := map[string]bool{} // without signature: ES256 has as many good ones as one likes
	for _, k := range []*Key{rs, es, ed, oct, secret} {
		text, _ := k.signPayload(nil, payload)
		good[unsigned(string(text))] = true
		f.Add(string(text))
	}
	f.Add(rfcHS256)
	f.Add("..")
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Fuzz(func(t *testing.T, text string) {
		var c Claims
		if _, err := set.Verify(&c, text, testNow); err == nil && !good[unsigned(text)] {
			t.Errorf("accepted: %q", text)
		}
	})
}

func unsigned(text string) string { return text[:max(0, strings.LastIndexByte(text, '.'))] }

// FuzzClaims compares our reader with encoding/json: what we take, it takes, with the same values.
func FuzzClaims(f *testing.F) {
	payload, _ := testClaims().appendTo(nil)
	f.Add(string(payload))
	for _, seed := range []string{`{}`, ` { "sub" : "\u00e9\ud83d\ude00\/" , "exp":1.5 } `,
		`{"aud":["a","b"],"amr":["x",{"method":"y","timestamp":3}]}`,
		`{"sub":"a","sub":"b"}`, `{"x":[{"y":[1e5,-0.1,true,false,null]}]}`, `{"\u0073ub":"a"}`, `{"sub":"\ud800"}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var c Claims
		if c.parse(text) != nil {
			return
		}
		var want map[string]any
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatalf("%q is taken, encoding/json says %v", text, err)
		}
		for name, have := range map[string]string{"sub": c.Subject, "iss": c.Issuer, "role": c.Role, "email": c.Email,
			"phone": c.Phone, "session_id": c.SessionID, "jti": c.ID, "aal": c.AAL} {
			if s, _ := want[name].(string); s != have {
				t.Errorf("%q: %s is %q, encoding/json says %q", text, name, have, s)
			}
		}
		if n, _ := want["exp"].(float64); int64(n) != c.ExpiresAt {
			t.Errorf("%q: exp is %d, encoding/json says %v", text, c.ExpiresAt, want["exp"])
		}
	})
}

// FuzzWrite compares our writer with encoding/json.
func FuzzWrite(f *testing.F) {
	f.Add("a\"\\\n\x00\x7f\xff\u2028<é>\U0001F600", `{"a": [1, "x y", {"b" : null}]}`)
	f.Add("", "")
	f.Add("x", `{"a":1},"role":"admin","x":{}`)
	f.Fuzz(func(t *testing.T, s, raw string) {
		c := Claims{Email: s, UserMetadata: json.RawMessage(raw)}
		have, err := c.appendTo(nil)
		if err != nil {
			if json.Valid([]byte(raw)) && strings.HasPrefix(strings.TrimSpace(raw), "{") &&
				strings.ToValidUTF8(raw, "") == raw && strings.Count(raw, "{")+
				strings.Count(raw, "[") < jsontext.MaxDepth {
				t.Errorf("metadata %q is refused: %v", raw, err)
			}
			return
		}
		var back struct {
			Email string
			Role  string
			Meta  json.RawMessage `json:"user_metadata"`
		}
		if err := json.Unmarshal(have, &back); err != nil {
			t.Fatalf("%q: %v", have, err)
		}
		var compact bytes.Buffer
		if json.Compact(&compact, []byte(raw)) != nil || compact.String() == "null" {
			compact.Reset()
			compact.WriteString("{}")
		}
		if want := strings.ToValidUTF8(s, "\uFFFD"); back.Email != want && len([]rune(s)) == len([]rune(want)) ||
			back.Role != "" || string(back.Meta) != compact.String() {
			t.Errorf("%q and %q are written as %s", s, raw, have)
		}
	})
}

// FuzzParseJWK looks for keys that are taken but do not work, or change when written and read again.
func FuzzParseJWK(f *testing.F) {
	for _, seed := range []string{rfcRSA, rfcEC, rfcEd, rfcOct, rfcThumb, `{}`,
		`{"kty":"oct","kid":"x","alg":"HS256","k":"AA"}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		k, err := ParseJWK(text)
		if err != nil {
			return
		}
		if !k.CanSign() {
			again, err := ParseJWK(string(k.PublicJWK()))
			if err != nil || again.Thumbprint() != k.Thumbprint() {
				t.Errorf("%q: written as %s: %v", text, k.PublicJWK(), err)
			}
			return
		}
		sig, err := k.sign(nil, []byte("text"))
		if err != nil || len(sig) != k.size || !k.verify([]byte("text"), sig) {
			t.Errorf("%q does not verify what it signs: %v", text, err)
		}
		private, err := k.PrivateJWK()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseJWK(string(private))
		if err != nil || !reflect.DeepEqual(again.PublicJWK(), k.PublicJWK()) {
			t.Errorf("%q: written as %s: %v", text, private, err)
		}
	})
}

// FuzzRefresh looks for texts that are taken for refresh tokens: there is one spelling of each.
func FuzzRefresh(f *testing.F) {
	c := testCodec("key", "old")
	f.Add(keptRefresh)
	f.Add(keptRefresh[:75] + "\n")
	f.Add(strings.Repeat("A", RefreshSize))
	f.Fuzz(func(t *testing.T, text string) {
		if r, err := c.Parse(text); err == nil && string(c.Append(nil, &r)) != text &&
			string(testCodec("old").Append(nil, &r)) != text {
			t.Errorf("%q is taken for %v", text, r)
		}
	})
}

package webauthn_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"strings"
	"testing"

	"gatehouse/auth/internal/webauthn"
	"gatehouse/auth/internal/webauthn/webauthntest"
)

func macsOf(keys []string) webauthn.MACs {
	return func(parts ...string) (out [][]byte) {
		for _, key := range keys {
			h := hmac.New(sha256.New, []byte(key))
			for _, part := range parts {
				h.Write([]byte{byte(len(part))})
				h.Write([]byte(part))
			}
			out = append(out, h.Sum(nil))
		}
		return out
	}
}

// A message made without the authenticator's key passes no assertion, and whatever a registration accepts can be used.
func FuzzAttestation(f *testing.F) {
	for _, v := range vectors(f) {
		raw, _ := v.registration(f)
		f.Add(string(raw))
	}
	for _, c := range webauthntest.Hostile(webauthntest.Creation, rpID, origin) {
		f.Add(string(create(f, &webauthntest.Authenticator{Algorithm: c.Algorithm}, c.Change)))
	}
	f.Fuzz(func(t *testing.T, raw string) {
		c, err := register([]byte(raw), policy(false))
		if err != nil {
			return
		}
		if len(c.ID) == 0 || len(c.ID) > 1023 || webauthn.CheckKey(c.PublicKey) != nil {
			t.Errorf("registered %+v", c)
		}
	})
}

func FuzzAssertion(f *testing.F) {
	var kept webauthn.Credential
	for _, v := range vectors(f) {
		raw, p := v.registration(f)
		if v.Name == "none-es256" {
			var err error
			if kept, err = register(raw, p); err != nil {
				f.Fatal(err)
			}
		}
		if v.Authentication.Signature != "" {
			raw, _ = v.assertion(f)
			f.Add(string(raw))
		}
	}
	for _, c := range webauthntest.Hostile(webauthntest.Request, rpID, origin) {
		a := &webauthntest.Authenticator{Algorithm: c.Algorithm}
		create(f, a)
		f.Add(string(get(f, a, c.Change)))
	}
	first := vectors(f)[0]
	honest, p := first.assertion(f)
	var members [3]string
	for i, name := range []string{"clientDataJSON", "authenticatorData", "signature"} {
		_, rest, _ := strings.Cut(string(honest), `"`+name+`":"`)
		members[i], _, _ = strings.Cut(rest, `"`)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if _, err := assert([]byte(raw), p, kept); err == nil {
			for _, m := range members { // nothing that was signed has changed
				if !strings.Contains(raw, m) && !strings.Contains(raw, `\`) {
					t.Errorf("accepted %s", raw)
				}
			}
		}
	})
}

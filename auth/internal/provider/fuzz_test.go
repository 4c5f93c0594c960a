package provider

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/oauth2"

	"gatehouse/auth/internal/address"
	"gatehouse/auth/internal/outbound"
	"gatehouse/auth/internal/token"
)

// cannedAnswer answers every call with the same body.
type cannedAnswer struct{ kind, body string }

func (s cannedAnswer) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		r.Body.Close()
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {s.kind}},
		Body: io.NopCloser(strings.NewReader(s.body)), Request: r}, nil
}

// offline is a provider whose every call is answered so.
func offline(r row, kind, body string) *Provider {
	c := &http.Client{Transport: cannedAnswer{kind, body}}
	return &Provider{
		row: r, name: r.id, base: "https://base.example", http: outbound.Clients{Configured: c, Discovered: c},
		now:    time.Now,
		client: Client{ClientIDs: []string{"c"}, Secret: "s", RedirectURI: callback},
	}
}

// sound checks what a profile promises to its user.
func sound(t *testing.T, p *Provider, d *Profile, input string) {
	t.Helper()
	if p.complete(d) != nil {
		return
	}
	if d.Subject == "" || d.Data["sub"] != d.Subject {
		t.Errorf("%s: subject %q from %q", p.id, d.Subject, input)
	}
	text, err := json.Marshal(d.Data)
	if err != nil || hasNUL(d.Data) {
		t.Errorf("%s: data %s from %q: %v", p.id, text, input, err)
	}
	for _, e := range d.Emails {
		if again, err := address.Email(e.Address); err != nil || again != e.Address {
			t.Errorf("%s: address %q from %q", p.id, e.Address, input)
		}
	}
	for _, name := range []string{"email", "email_verified", "phone_verified"} {
		if _, ok := d.Data[name]; ok {
			t.Errorf("%s: %s stands in the data from %q", p.id, name, input)
		}
	}
}

func hasNUL(v any) bool {
	switch v := v.(type) {
	case string:
		return strings.Contains(v, "\x00")
	case []any:
		return slices.ContainsFunc(v, hasNUL)
	case map[string]any:
		for name, in := range v {
			if hasNUL(name) || hasNUL(in) {
				return true
			}
		}
	}
	return false
}

// FuzzProfile gives any answer to the profile calls of every provider.
func FuzzProfile(f *testing.F) {
	for _, seed := range []string{
		`{"id":7,"email":"a@b.example","verified":true,"name":"A","images":[{"width":1,"height":2,"url":"u"}],"avatar":"a_1","discriminator":"1"}`,
		`[{"email":"a@b.example","verified":true,"primary":true}]`,
		`{"values":[{"email":"a@b.example","is_confirmed":true,"is_primary":true}]}`,
		`{"uuid":"{1}","id_str":"9","sub":"s","https://slack.com/user_id":"U","email_verified":true,"data":[{"id":"1"}],"ok":false}`,
		`{"id":"x","firstName":{"localized":{"en_US":"A"},"preferredLocale":{"language":"en","country":"US"}},"elements":[{"handle~":{"emailAddress":"a@b.example"}}]}`,
		`{"data":{"me":{"externalId":"e","displayName":"\u0000"}},"bot":{"owner":{"user":{"id":"n","person":{"email":"A@B.example"}}}}}`,
		`{"id":1e3}`, `{"id":-1}`, `{"id":{}}`, `null`, `[`, `{"id":"\ud800","name":"\u0000\u0000"}`,
		strings.Repeat(`{"id":`, 200) + `1` + strings.Repeat(`}`, 200),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		for _, r := range table {
			p := offline(r, "application/json", body)
			s := &signIn{Provider: p, token: &oauth2.Token{AccessToken: "a"}}
			if d, err := s.readProfile(t.Context()); err == nil {
				sound(t, p, &d, body)
			}
			if o, err := decodeObject([]byte(body)); err == nil {
				if d, err := s.copied(t.Context(), o); err == nil {
					sound(t, p, &d, body)
				}
			}
		}
	})
}

// FuzzToken gives any answer to the code exchange, as JSON and as a form.
func FuzzToken(f *testing.F) {
	for _, seed := range []string{
		`{"access_token":"a","token_type":"bearer","expires_in":3600,"refresh_token":"r","id_token":"x.y.z"}`,
		`{"access_token":"a","expires_in":"3600","scope":["a"]}`,
		`{"error":"bad_verification_code","access_token":"a"}`, `{"ok":false,"access_token":"a"}`,
		`access_token=a&expires_in=x&token_type=bearer`, `error=x&access_token=a`,
		`{"access_token":"a","profile":{"id":"p","email":"a@b.example"}}`, `{"access_token":7}`, `{"access_token":""}`,
		`null`, `a=%zz`, `{"access_token":"a","expires_in":1e400}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		for _, kind := range []string{"application/json", "application/x-www-form-urlencoded",
			"text/plain; charset=utf-8", ""} {
			p := offline(rowOf("workos", ""), kind, body)
			tok, err := p.exchange(t.Context(),
				endpoints{token: "https://base.example/token", client: p.http.Configured}, "code", private{})
			if err != nil {
				if text := withoutDescription(err).Error(); len(text) > 300 {
					t.Errorf("an error of %d bytes from %q", len(text), body)
				}
				continue
			}
			if tok.AccessToken == "" || tok.Extra("ok") == false {
				t.Errorf("a token out of %q", body)
			}
			s := &signIn{Provider: p, token: tok}
			s.idToken()
			if d, err := p.read(t.Context(), s); err == nil {
				sound(t, p, &d, body)
			}
		}
		if form, err := tokenForm(body); err == nil &&
			(form.Get("oauth_token") == "" || form.Get("oauth_token_secret") == "") {
			t.Errorf("a token without secret out of %q", body)
		}
	})
}

// FuzzClaims gives any claims to every provider whose profile is an ID token.
func FuzzClaims(f *testing.F) {
	for _, seed := range []string{
		`{"iss":"i","sub":"s","email":"A@b.example","email_verified":"true","name":"N","picture":"p","is_private_email":"true","auth_time":5}`,
		`{"sub":"s","email":"a@b.example","xms_edov":1,"verified_primary_email":["a@b.example"],"groups":[{"a":[null]}]}`,
		`{"sub":"\u0000"}`, `{"sub":"s","name":{"a":1},"\u0000":"x"}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		text := "eyJhbGciOiJSUzI1NiJ9." + rawURL(payload) + ".AAAA"
		id, err := token.ParseForeign(text)
		if err != nil {
			return
		}
		claims, err := decodeObject([]byte(id.Payload))
		if err != nil {
			return // deeper than encoding/json goes
		}
		for _, r := range append([]row{customRow(Client{Issuer: "https://base.example"})}, table...) {
			if r.claim != nil {
				p := offline(r, "", "")
				d := p.idData(&idToken{id, claims})
				sound(t, p, &d, payload)
			}
		}
	})
}

// FuzzAppleUser puts anything into the form field that any client can write.
func FuzzAppleUser(f *testing.F) {
	for _, seed := range []string{`{"name":{"firstName":"A","lastName":"B"},"email":"a@b.example"}`, `{"name":[]}`,
		`{"name":{"firstName":"\u0000"}}`, `{`, ``, `{"NAME":{"FIRSTNAME":"A"}}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, user string) {
		d := Profile{Subject: "s", Data: map[string]any{"iss": "i"}}
		if appleName(user, &d) != nil {
			return
		}
		for name := range d.Data {
			if name != "iss" && name != "name" && name != "full_name" {
				t.Errorf("%s out of %q", name, user)
			}
		}
		if len(d.Emails) != 0 {
			t.Errorf("an address out of %q", user)
		}
		sound(t, offline(rowOf("apple", ""), "", ""), &d, user)
	})
}

// FuzzDocument gives anything as a discovery document.
func FuzzDocument(f *testing.F) {
	f.Add(`{"issuer":"https://base.example","jwks_uri":"https://base.example/k","token_endpoint":"https://u@x/","id_token_signing_alg_values_supported":["RS256","none"]}`)
	f.Add(`{"issuer":"https://base.example","authorization_endpoint":"javascript:alert(1)"}`)
	f.Fuzz(func(t *testing.T, body string) {
		o, err := decodeObject([]byte(body))
		if err != nil {
			return
		}
		d, err := readDocument(o, trust{issuer: "https://base.example"})
		if err != nil {
			return
		}
		for _, a := range []string{d.authorize, d.token, d.userinfo, d.keys} {
			if u, err := url.Parse(a); err != nil || a != "" && u.Scheme != "https" {
				t.Errorf("%q out of %q", a, body)
			}
		}
		for _, alg := range d.algs {
			if !token.ForeignAlgorithm(alg) {
				t.Errorf("algorithm %q out of %q", alg, body)
			}
		}
	})
}

// FuzzCallback gives anything to the callback of every provider that can be finished without a call.
func FuzzCallback(f *testing.F) {
	f.Add("code=c&state=s&iss=https://evil.example", `{"v":"v","n":"n"}`)
	f.Add("oauth_token=t&oauth_verifier=v", `{"t":"t","s":"s"}`)
	f.Add("error=access_denied&error_description=no", ``)
	f.Fuzz(func(t *testing.T, query, keep string) {
		values, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		for _, r := range table {
			p := offline(r, "application/json", `{}`)
			if _, err := p.Finish(t.Context(), values, []byte(keep)); err == nil {
				t.Errorf("%s: signed in by %q with %q", r.id, query, keep)
			}
		}
	})
}

func rawURL(s string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(s))
}

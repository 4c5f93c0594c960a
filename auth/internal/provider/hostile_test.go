package provider

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/shared/fakeidp"
)

// badAnswers are what no call may survive.
func badAnswers() map[string]fakeidp.Answer {
	return map[string]fakeidp.Answer{
		"no JSON": fakeidp.NotJSON, "500": fakeidp.ServerError, "401": fakeidp.Unauthorized,
		"too large": fakeidp.Oversized,
		"an array":  fakeidp.JSON(`[1,2]`), "null": fakeidp.JSON(`null`), "half": fakeidp.JSON(`{"access_token":"a`),
		"more behind":     fakeidp.JSON(`{"id":"1"} {}`),
		"an empty object": fakeidp.JSON(`{}`), "a redirect elsewhere": fakeidp.Redirect(302, "http://127.0.0.1:1/"),
		"nothing": {},
	}
}

const (
	noCode = "Unable to exchange external code"
	noMe   = "Error getting user profile from external provider"
)

// TestBadAnswers has every outbound call of every provider fail in every way.
func TestBadAnswers(t *testing.T) {
	for _, s := range specs {
		t.Run(s.name+s.mode, func(t *testing.T) {
			t.Parallel()
			f := start(t)
			settings := settingsOf(f)
			if c, ok := settings.Clients[s.name]; ok {
				c.Mode = s.mode
				settings.Clients[s.name] = c
			}
			set := setOf(t, settings)
			try := func(what, path string, a fakeidp.Answer, want string) {
				t.Helper()
				f.Reset()
				f.Behave(s.dialect(), fakeidp.Behaviour{Answers: map[string]fakeidp.Answer{path: a}})
				d, err := flow(t, f, set, s.name, nil)
				if err == nil {
					t.Errorf("%s at %s gives %+v", what, path, d)
					return
				}
				wantError(t, err, http.StatusInternalServerError, "unexpected_failure", want, "")
				if n := len(f.Requests(s.dialect(), s.token)); n != 1 {
					t.Errorf("%s at %s: the code was sent %d times", what, path, n)
				}
			}
			for what, a := range badAnswers() {
				try(what, s.token, a, noCode)
				for path := range strings.FieldsSeq(s.calls) {
					if strings.Contains(path, "/.well-known/") || strings.HasSuffix(path, "keys") ||
						strings.HasSuffix(path, "jwks") {
						continue // those are cached: TestDirectory
					}
					if what == "an empty object" && strings.Contains(strings.ToLower(path), "email") {
						continue // a list without entries, in some dialects
					}
					try(what, path, a, noMe)
				}
			}
			try("an error with status 200", s.token, fakeidp.FailedWith200, noCode)
			try("not ok", s.token, fakeidp.NotOK, noCode)
			try("not ok without a reason", s.token, fakeidp.JSON(`{"ok":false,"access_token":"a"}`), noCode)
			try("an error in a form", s.token,
				fakeidp.Answer{Type: "application/x-www-form-urlencoded", Body: "error=bad&access_token=x"}, noCode)
			try("no access token", s.token, fakeidp.JSON(`{"token_type":"bearer"}`), noCode)
			try("a redirect that keeps the body", s.token, fakeidp.Redirect(307, f.Base(s.dialect())+s.token), noCode)
		})
	}
}

// TestSlow: a provider that stalls costs INTERNAL_HTTP_TIMEOUT and no more.
func TestSlow(t *testing.T) {
	t.Parallel()
	f := start(t)
	s := settingsOf(f)
	s.Timeout = 500 * time.Millisecond
	set := setOf(t, s)
	for path, name := range map[string]string{"token": "github", "/api/v3/user/emails": "github",
		"discovery": "local"} {
		f.Reset()
		f.Behave(spec{name: name}.dialect(),
			fakeidp.Behaviour{Answers: map[string]fakeidp.Answer{path: fakeidp.Slow(5 * time.Minute)}})
		began := time.Now()
		if _, err := flow(t, f, set, name, nil); err == nil { // which one fails first is the machine's affair
			t.Errorf("a sign-in although %s stalls", path)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("%s took %s", path, took)
		}
	}
}

// TestRedirects: no call follows one to another host, so neither the code nor the access token gets there.
func TestRedirects(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { reached.Add(1) }))
	defer other.Close()
	f := start(t)
	set := setOf(t, settingsOf(f))
	for _, status := range []int{301, 302, 303, 307, 308} {
		for path, want := range map[string]string{"token": noCode, "/api/v3/user": noMe, "/api/v3/user/emails": noMe} {
			f.Behave("github",
				fakeidp.Behaviour{Answers: map[string]fakeidp.Answer{path: fakeidp.Redirect(status, other.URL)}})
			_, err := flow(t, f, set, "github", nil)
			wantError(t, err, http.StatusInternalServerError, "unexpected_failure", want, "")
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("%d requests reached the other host", n)
	}
}

// TestHostileIDTokens: what browsers bring home from a provider that lies. Each must fail, and the honest
// one behind must pass, with every provider whose profile is an ID token.
func TestHostileIDTokens(t *testing.T) {
	type tamper = fakeidp.Behaviour
	claim := func(name string, v any) tamper {
		return tamper{Claims: func(c map[string]any) { c[name] = v }}
	}
	head := func(name string, v any) tamper {
		return tamper{Header: func(h map[string]any) { h[name] = v }}
	}
	hour := time.Now().Add(time.Hour).Unix()
	bad := map[string]tamper{
		"another issuer": claim("iss", "https://evil.example"), "no issuer": claim("iss", nil),
		"an issuer with a slash more": {Claims: func(c map[string]any) { c["iss"] = c["iss"].(string) + "/" }},
		"another audience":            claim("aud", "other-client"), "no audience": claim("aud", nil),
		"an audience of native tokens": claim("aud", "second-client"),
		"several audiences, another azp": {Claims: func(c map[string]any) {
			c["aud"], c["azp"] = []string{fakeidp.ClientID, "other"}, "other"
		}},
		"several audiences, no azp": claim("aud", []string{fakeidp.ClientID, "other"}),
		"expired":                   claim("exp", time.Now().Add(-time.Second).Unix()), "no exp": claim("exp", nil),
		"exp as text":     claim("exp", "tomorrow"),
		"issued tomorrow": claim("iat", hour), "not before tomorrow": claim("nbf", hour),
		"no subject": claim("sub", nil), "a number as subject": claim("sub", 7),
		"a subject with a line break": claim("sub", "a\nb"),
		"an endless subject":          claim("sub", strings.Repeat("a", maxSubject+1)),
		"another access token's hash": claim("at_hash", "AAAAAAAAAAAAAAAAAAAAAA"),
		"no signature":                {Alg: "none"}, "the public key as secret": {Alg: "HS256"},
		"a forged signature":             {Forged: true},
		"alg none over a good signature": head("alg", "none"), "alg HS256 over a good signature": head("alg", "HS256"),
		"alg in lower case":                     head("alg", "rs256"),
		"a hash that the key was not asked for": head("alg", "RS512"),
		"PSS announced, PKCS 1 signed":          head("alg", "PS256"),
		"an unknown key":                        head("kid", "unknown"),
		"a key of another kind":                 head("kid", "EdDSA-0"),
		"the key for encryption":                head("kid", "encryption"),
		"a kid that is a path":                  head("kid", "../../../dev/null"),
		"crit":                                  head("crit", []string{"exp"}),
		"b64":                                   head("b64", false), "an access token": head("typ", "at+jwt"),
		"no ID token": {NoIDToken: true}, "an ID token that is none": {Token: func(a map[string]any) {
			a["id_token"] = "x.y.z"
		}},
		"an ID token of another type": {Token: func(a map[string]any) { a["id_token"] = map[string]any{} }},
		"an endless ID token":         {Token: func(a map[string]any) { a["id_token"] = strings.Repeat("a", 70000) }},
	}
	for _, name := range []string{"apple", "azure", "google", "linkedin", "local"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := start(t)
			set := setOf(t, settingsOf(f))
			dialect := spec{name: name}.dialect()
			try := func(what string, b tamper) {
				t.Helper()
				f.Behave(dialect, b)
				d, err := flow(t, f, set, name, nil)
				if err == nil {
					t.Errorf("%s: accepted: %+v", what, d)
					return
				}
				wantError(t, err, http.StatusInternalServerError, "unexpected_failure", noMe, "")
			}
			for what, b := range bad {
				if (name == "google" || name == "linkedin") &&
					(what == "no ID token" || what == "an ID token of another type") {
					continue // the profile call answers then
				}
				try(what, b)
			}
			if name != "linkedin" { // which is sent none, and never repeats it
				try("another nonce", claim("nonce", "other"))
				try("no nonce, although they are known", tamper{Claims: func(c map[string]any) {
					c["nonce_supported"] = true
					delete(c, "nonce")
				}})
			}
			if name == "local" { // the named ones may leave it out, unless they say that they would not
				try("no nonce", claim("nonce", nil))
				lax := settingsOf(f)
				c := lax.OIDC[name]
				c.SkipNonceCheck = true
				lax.OIDC[name] = c
				if _, err := flow(t, f, setOf(t, lax), name, nil); err != nil {
					t.Errorf("no nonce, which the operator knows: %v", err)
				}
				f.Behave(dialect, claim("nonce", "other"))
				if _, err := flow(t, f, setOf(t, lax), name, nil); err == nil {
					t.Error("another nonce, where none was expected, is accepted")
				}
			} else {
				f.Behave(dialect, claim("nonce", nil))
				if _, err := flow(t, f, set, name, nil); err != nil {
					t.Errorf("no nonce: %v", err)
				}
			}
			f.Reset()
			if _, err := flow(t, f, set, name, nil); err != nil {
				t.Errorf("the honest provider: %v", err)
			}
			f.Behave(dialect, tamper{Claims: func(c map[string]any) {
				c["aud"], c["azp"] = []string{"other", fakeidp.ClientID}, fakeidp.ClientID
			}})
			if _, err := flow(t, f, set, name, nil); err != nil {
				t.Errorf("several audiences and the right azp: %v", err)
			}
		})
	}
}

// TestAlgorithms: a provider may sign with any of ten, if its document lists it.
func TestAlgorithms(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	for _, alg := range []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512",
		"EdDSA"} {
		f.Behave("oidc", fakeidp.Behaviour{Alg: alg})
		if _, err := flow(t, f, set, "local", nil); err != nil {
			t.Errorf("%s: %v", alg, err)
		}
		f.Behave("google", fakeidp.Behaviour{Alg: alg})
		if _, err := flow(t, f, set, "google", nil); (err == nil) != (alg == "RS256") {
			t.Errorf("%s where only RS256 is listed: %v", alg, err)
		}
	}
}

// TestMixUp: the answer of one provider is not taken for another's (RFC 9207).
func TestMixUp(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	for _, name := range []string{"apple", "azure", "google", "keycloak", "linkedin", "facebook", "snapchat", "local"} {
		dialect := spec{name: name}.dialect()
		f.Behave(dialect, fakeidp.Behaviour{ResponseIssuer: "https://evil.example"})
		f.Reset()
		f.Behave(dialect, fakeidp.Behaviour{ResponseIssuer: "https://evil.example"})
		_, err := flow(t, f, set, name, nil)
		wantError(t, err, http.StatusBadRequest, "bad_oauth_callback", "OAuth callback comes from another issuer", "")
		for _, r := range f.Requests(dialect, "") {
			if r.Form.Has("code") {
				t.Errorf("%s: the code was handed in all the same", name)
			}
		}
	}
	f.Behave("oidc", fakeidp.Behaviour{ResponseIssuer: "-"})
	_, err := flow(t, f, set, "local", nil)
	wantError(t, err, http.StatusBadRequest, "bad_oauth_callback",
		"OAuth callback without the issuer that this provider sends", "")
	f.Behave("keycloak", fakeidp.Behaviour{ResponseIssuer: "-"})
	if _, err := flow(t, f, set, "keycloak", nil); err != nil {
		t.Errorf("no issuer, and none was promised: %v", err)
	}
	f.Behave("github", fakeidp.Behaviour{ResponseIssuer: "https://github.com/login/oauth"})
	if _, err := flow(t, f, set, "github", nil); err != nil {
		t.Errorf("an issuer that nobody knows the right value of: %v", err)
	}
}

// TestPrivateAddresses: what a public provider's document names may not lead inside; what a private one
// names may. 127.0.0.1, where the provider listens, plays the public address, 127.0.0.2 the private one.
func TestPrivateAddresses(t *testing.T) {
	t.Parallel()
	f := start(t)
	inside, err := fakeidp.Start(fakeidp.Options{Addr: "127.0.0.2:0"})
	if err != nil {
		t.Skip(err) // not every system has more than one loopback address
	}
	t.Cleanup(inside.Close)
	private := netip.MustParseAddr("127.0.0.2")
	for name, path := range map[string]string{"jwks_uri": "/keys", "token_endpoint": "/token",
		"userinfo_endpoint": "/userinfo"} {
		for who, public := range map[string]func(netip.Addr) bool{
			"public":  func(a netip.Addr) bool { return a != private },
			"private": func(netip.Addr) bool { return false },
		} {
			f.Reset()
			inside.Reset()
			f.Behave("oidc", fakeidp.Behaviour{
				Claims:    func(c map[string]any) { delete(c, "email") }, // so that userinfo is queried
				Discovery: func(d map[string]any) { d[name] = inside.Base("oidc") + path },
			})
			s := settingsOf(f)
			s.Public = public
			_, err := flow(t, f, setOf(t, s), "local", nil)
			arrived := len(inside.Requests("oidc", path)) > 0
			if arrived != (who == "private") {
				t.Errorf("%s of a %s provider led inside: %v", name, who, arrived)
			}
			if who == "public" {
				want := noMe
				if name == "token_endpoint" {
					want = noCode
				}
				wantError(t, err, http.StatusInternalServerError, "unexpected_failure", want, "")
			}
		}
	}
}

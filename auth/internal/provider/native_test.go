package provider

import (
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"maps"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse/shared/fakeidp"
	"gatehouse/shared/must"
)

func hashed(nonce string) string {
	sum := sha256.Sum256([]byte(nonce))
	return hex.EncodeToString(sum[:])
}

// natives are the names of providers with native ID tokens and their dialects.
var natives = map[string]string{"apple": "apple", "google": "google", "azure": "azure", "facebook": "facebook",
	"keycloak": "keycloak", "snapchat": "snapchat", "local": "oidc"}

func TestNative(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	want := map[string]string{
		"apple": `{"iss":"BASE","sub":"1234567","provider_id":"1234567","custom_claims":{"is_private_email":true,"auth_time":"*"}}`,
		"google": `{"iss":"BASE","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example","picture":"PIC","avatar_url":"PIC",
			"custom_claims":{"hd":"example.org"}}`,
		"azure": `{"iss":"BASE/v2.0","sub":"1234567","provider_id":"1234567","full_name":"Ann Example","preferred_username":"ann",
			"custom_claims":{"email":"Ann@Example.org","family_name":"Example","given_name":"Ann","tid":"0f0e0d0c-0000-4000-8000-000000000001","hd":"example.org"}}`,
		"facebook": `{"iss":"BASE","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example","picture":"PIC","avatar_url":"PIC"}`,
		"keycloak": `{"iss":"BASE","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example","given_name":"Ann","family_name":"Example",
			"picture":"PIC","avatar_url":"PIC","aud":"second-client","iat":"*","exp":"*"}`,
		"snapchat": `{"iss":"BASE/accounts/oauth2/token","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example","given_name":"Ann",
			"family_name":"Example","picture":"PIC","avatar_url":"PIC","aud":"second-client","iat":"*","exp":"*"}`,
		"local": `{"iss":"BASE","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example","given_name":"Ann","family_name":"Example",
			"preferred_username":"ann","picture":"PIC","avatar_url":"PIC","aud":"second-client","iat":"*","exp":"*","custom_claims":{"groups":["staff"],"hd":"example.org"}}`,
	}
	for name, dialect := range natives {
		claims := map[string]any{"aud": "second-client", "nonce": hashed("n"), "jti": "token-1", "hd": "example.org"}
		if name == "facebook" {
			claims["nonce"] = "n" // its app hashes nothing
		}
		text := f.IDToken(dialect, fakeidp.Ann, claims)
		d, accepted, err := set.IDToken(t.Context(),
			IDTokenRequest{IDToken: text, Provider: strings.ToUpper(name), Nonce: "n"})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		w := dataOf(t, strings.NewReplacer("BASE", f.Base(dialect), "PIC", pic).Replace(want[name]))
		got := maps.Clone(d.Data)
		anyNumber(w, got)
		if diff := cmp.Diff(w, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		email := "ann@example.org+!"
		if name == "azure" {
			email = "ann@example.org!"
		}
		if shown(d.Emails) != email || d.Provider != name || d.Subject != "1234567" || d.Token != "" {
			t.Errorf("%s: %+v", name, d)
		}
		if len(accepted.Key) != 32 || time.Until(accepted.Until) < 8*time.Minute ||
			time.Until(accepted.Until) > 11*time.Minute {
			t.Errorf("%s: accepted %x until %s", name, accepted.Key, accepted.Until)
		}
		// The same once more is the same; another is another.
		if name == "local" {
			name = "custom:" + name
		}
		_, again, err := set.IDToken(t.Context(), IDTokenRequest{IDToken: text, Provider: name, Nonce: "n"})
		if err != nil || string(again.Key) != string(accepted.Key) {
			t.Errorf("%s: the second time %v", name, err)
		}
		for what, change := range map[string]map[string]any{"another jti": {"jti": "token-2"}, "no jti": {"jti": nil},
			"no jti, no nonce": {"jti": nil, "nonce": nil}} {
			other := maps.Clone(claims)
			maps.Copy(other, change)
			r := IDTokenRequest{IDToken: f.IDToken(dialect, fakeidp.Ann, other), Provider: name, Nonce: "n"}
			if other["nonce"] == nil {
				r.Nonce = ""
			}
			_, a, err := set.IDToken(t.Context(), r)
			if err != nil || string(a.Key) == string(accepted.Key) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
	}
}

// TestNative_secondSignature: from an ECDSA signature anyone can derive a second valid one. It is the same token all
// the same. Two tokens with one nonce are two.
func TestNative_secondSignature(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	f.Behave("oidc", fakeidp.Behaviour{Alg: "ES256"})
	sign := func(subject string) string {
		return f.IDToken("oidc", fakeidp.Ann, map[string]any{"sub": subject, "jti": nil, "nonce": hashed("n")})
	}
	key := func(text string) string {
		t.Helper()
		_, a, err := set.IDToken(t.Context(), IDTokenRequest{IDToken: text, Provider: "local", Nonce: "n"})
		must.Succeed(t, err)
		return string(a.Key)
	}
	one := sign("1")
	at := strings.LastIndexByte(one, '.') + 1
	sig, err := base64.RawURLEncoding.DecodeString(one[at:])
	must.Succeed(t, err)
	s := new(big.Int).SetBytes(sig[32:])
	s.Sub(elliptic.P256().Params().N, s).FillBytes(sig[32:])
	twin := one[:at] + base64.RawURLEncoding.EncodeToString(sig)
	if key(one) != key(twin) {
		t.Error("the other signature makes it another token")
	}
	if key(one) == key(sign("2")) {
		t.Error("two tokens with one nonce are taken for the same")
	}
}

// anyNumber lets "*" stand for whatever is there.
func anyNumber(want, got map[string]any) {
	for name, v := range want {
		if v == "*" && got[name] != nil {
			want[name] = got[name]
		}
		if in, ok := v.(map[string]any); ok {
			if other, ok := got[name].(map[string]any); ok {
				anyNumber(in, other)
			}
		}
	}
}

func wantOAuth(t *testing.T, err error, code, description string) {
	t.Helper()
	var e *OAuthError
	if !errors.As(err, &e) || e.Code != code || e.Description != description {
		t.Errorf("error %#v (%v), want %s %q", err, err, code, description)
	}
}

func wantRefused(t *testing.T, err error, status int, code, message string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Status != status || e.Code != code || e.Message != message {
		t.Errorf("error %#v (%v), want %d %s %q", err, err, status, code, message)
	}
}

func TestNativeRefused(t *testing.T) {
	t.Parallel()
	f := start(t)
	s := settingsOf(f)
	s.IOSBundleID = "org.example.app"
	set := setOf(t, s)
	ask := func(r IDTokenRequest) error {
		_, _, err := set.IDToken(t.Context(), r)
		return err
	}
	wantOAuth(t, ask(IDTokenRequest{Provider: "google"}), "invalid request", "id_token required")
	wantOAuth(t, ask(IDTokenRequest{IDToken: "x", Issuer: "https://x.example"}), "invalid request",
		"provider or client_id and issuer required")
	for _, name := range []string{"bitbucket", "discord", "figma", "github", "gitlab", "linkedin", "notion", "slack",
		"spotify", "twitch", "twitter", "workos", "Nobody", "https://evil.example", "custom:google", "custom:"} {
		wantRefused(t, ask(IDTokenRequest{IDToken: "x", Provider: name}), http.StatusBadRequest, "validation_failed",
			`Custom OIDC provider "`+name+`" not allowed`)
	}
	wantRefused(t, ask(IDTokenRequest{IDToken: "x", Issuer: "https://evil.example", ClientID: fakeidp.ClientID}),
		http.StatusBadRequest, "validation_failed", `Custom OIDC provider "https://evil.example" not allowed`)

	honest := func(dialect string, claims map[string]any) string { return f.IDToken(dialect, fakeidp.Ann, claims) }
	// By issuer instead of by name.
	for _, r := range []IDTokenRequest{{Provider: f.Base("google")}, {Issuer: f.Base("google"), ClientID: "whatever"}} {
		r.IDToken = honest("google", nil)
		if err := ask(r); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if err := ask(IDTokenRequest{Provider: "apple",
		IDToken: honest("apple", map[string]any{"aud": "org.example.app"})}); err != nil {
		t.Errorf("the app's bundle id as audience: %v", err)
	}
	wantOAuth(t, ask(IDTokenRequest{Provider: "google",
		IDToken: honest("google", map[string]any{"aud": []string{"org.example.app", "b"}})}), "invalid request",
		"Unacceptable audience in id_token: [org.example.app b]")
	wantOAuth(t, ask(IDTokenRequest{Provider: "google", ClientID: "mine",
		IDToken: honest("google", map[string]any{"aud": "mine"})}), "invalid request",
		"Unacceptable audience in id_token: [mine]")
	wantOAuth(t, ask(IDTokenRequest{Provider: "google", IDToken: honest("google", map[string]any{"sub": nil})}),
		"invalid request", "Missing sub claim in id_token")
	if err := ask(IDTokenRequest{Provider: "google", AccessToken: "the access token",
		IDToken: honest("google",
			map[string]any{"at_hash": fakeidp.AccessHash("RS256", "the access token")})}); err != nil {
		t.Errorf("at_hash: %v", err)
	}
	wantOAuth(t, ask(IDTokenRequest{Provider: "google", AccessToken: "another",
		IDToken: honest("google", map[string]any{"at_hash": fakeidp.AccessHash("RS256", "the access token")})}),
		"invalid request", "Bad ID token")

	const either = "Passed nonce and nonce in id_token should either both exist or not."
	wantOAuth(t, ask(IDTokenRequest{Provider: "google", Nonce: "n", IDToken: honest("google", nil)}), "invalid request",
		either)
	wantOAuth(t,
		ask(IDTokenRequest{Provider: "google", IDToken: honest("google", map[string]any{"nonce": hashed("n")})}),
		"invalid request", either)
	wantOAuth(t, ask(IDTokenRequest{Provider: "google", Nonce: "n",
		IDToken: honest("google", map[string]any{"nonce": "n"})}), "invalid nonce", "Nonces mismatch")
	wantOAuth(t, ask(IDTokenRequest{Provider: "google", Nonce: "n", IDToken: honest("google",
		map[string]any{"nonce": strings.ToUpper(hashed("n"))})}), "invalid nonce", "Nonces mismatch")
	skip := s.Clients["google"]
	skip.SkipNonceCheck = true
	s.Clients["google"] = skip
	if _, _, err := setOf(t, s).IDToken(t.Context(), IDTokenRequest{Provider: "google", Nonce: "n",
		IDToken: honest("google", map[string]any{"nonce": "x"})}); err != nil {
		t.Errorf("SKIP_NONCE_CHECK: %v", err)
	}

	// Everything else that is wrong with a token is one answer.
	bad := map[string]fakeidp.Behaviour{
		"forged": {Forged: true}, "none": {Alg: "none"}, "HS256": {Alg: "HS256"},
		"expired":       {Claims: func(c map[string]any) { c["exp"] = time.Now().Unix() - 1 }},
		"from tomorrow": {Claims: func(c map[string]any) { c["iat"] = time.Now().Add(6 * time.Minute).Unix() }},
		"crit":          {Header: func(h map[string]any) { h["crit"] = []string{"x"} }},
		"not listed":    {Alg: "ES256"}, "unknown kid": {Header: func(h map[string]any) { h["kid"] = "x" }},
	}
	for name, dialect := range natives {
		for what, b := range bad {
			if what == "crit" && (name == "apple" || name == "azure") {
				continue // below
			}
			if what == "not listed" && (name == "snapchat" || name == "local") {
				continue // it is listed there
			}
			f.Behave(dialect, b)
			if err := ask(IDTokenRequest{Provider: name, IDToken: honest(dialect, nil)}); err == nil {
				t.Errorf("%s: %s is accepted", name, what)
			} else {
				wantOAuth(t, err, "invalid request", "Bad ID token")
			}
		}
		f.Behave(dialect, fakeidp.Behaviour{})
	}
	f.Behave("google", fakeidp.Behaviour{Claims: func(c map[string]any) { c["iss"] = "https://accounts.google.com" }})
	wantOAuth(t, ask(IDTokenRequest{Provider: "google", IDToken: honest("google", nil)}), "invalid request",
		"Bad ID token")
	f.Behave("google", fakeidp.Behaviour{})

	// Apple and Azure check the issuer first.
	for name, label := range map[string]string{"apple": "Apple", "azure": "Azure"} {
		for _, text := range map[string]string{"no token": "x", "two parts": "e30.e30",
			"no issuer": honest(name, map[string]any{"iss": nil})} {
			wantRefused(t, ask(IDTokenRequest{Provider: name, IDToken: text}), http.StatusBadRequest,
				"validation_failed", "Unable to detect issuer in ID token for "+label+" provider")
		}
		for _, iss := range []string{"https://evil.example",
			"https://login.microsoftonline.com.evil.example/9188040d-6c67-4c5b-b112-36a304b66dad/v2.0",
			f.Base("google")} {
			article := map[string]string{"apple": "an Apple", "azure": "an Azure"}[name]
			wantRefused(t, ask(IDTokenRequest{Provider: name, IDToken: honest(name, map[string]any{"iss": iss})}),
				http.StatusBadRequest, "validation_failed", "Detected ID token issuer is not "+article+
					" ID token issuer")
		}
		wantRefused(t, ask(IDTokenRequest{Provider: name, Issuer: "https://other.example", IDToken: honest(name, nil)}),
			http.StatusBadRequest, "validation_failed", "Provided issuer does not match ID token issuer")
	}

	// Off: refused before a token is parsed or a request made, except for Apple and Azure.
	f.Reset()
	off := setOf(t, Settings{})
	for name, iss := range map[string]string{"google": "https://accounts.google.com",
		"facebook": "https://www.facebook.com", "snapchat": "https://accounts.snapchat.com/accounts/oauth2/token"} {
		_, _, err := off.IDToken(t.Context(), IDTokenRequest{Provider: name, IDToken: "no token"})
		wantRefused(t, err, http.StatusBadRequest, "provider_disabled", `Provider (issuer "`+iss+`") is not enabled`)
	}
	for name, iss := range map[string]string{"apple": "https://account.apple.com",
		"azure": "https://login.microsoftonline.com/9188040d-6c67-4c5b-b112-36a304b66dad/v2.0"} {
		_, _, err := off.IDToken(t.Context(),
			IDTokenRequest{Provider: name, IDToken: honest(name, map[string]any{"iss": iss})})
		wantRefused(t, err, http.StatusBadRequest, "provider_disabled", `Provider (issuer "`+iss+`") is not enabled`)
	}
	_, _, err := off.IDToken(t.Context(), IDTokenRequest{Provider: "https://accounts.google.com", IDToken: "no token"})
	wantRefused(t, err, http.StatusBadRequest, "provider_disabled",
		`Provider (issuer "https://accounts.google.com") is not enabled`)
}

// TestNativeUnreachable: no fault of the token's, so it is not called bad.
func TestNativeUnreachable(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	for _, what := range []string{"discovery", "keys"} {
		f.Behave("google", fakeidp.Behaviour{Answers: map[string]fakeidp.Answer{what: fakeidp.ServerError}})
		f.Behave("facebook", fakeidp.Behaviour{Answers: map[string]fakeidp.Answer{what: fakeidp.ServerError}})
		dialect := map[string]string{"discovery": "google", "keys": "facebook"}[what]
		_, _, err := set.IDToken(t.Context(),
			IDTokenRequest{Provider: dialect, IDToken: f.IDToken(dialect, fakeidp.Ann, nil)})
		wantRefused(t, err, http.StatusInternalServerError, "unexpected_failure",
			"Error reaching the external provider")
	}
}

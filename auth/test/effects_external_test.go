package test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gatehouse/auth/internal/provider"
	"gatehouse/shared/fakeidp"
	"gatehouse/shared/must"
)

const backHere = "http://localhost:9999/callback"

func startIDP(t *testing.T) *fakeidp.Server {
	t.Helper()
	idp, err := fakeidp.Start(fakeidp.Options{})
	must.Succeed(t, err)
	t.Cleanup(idp.Close)
	return idp
}

// someone is a user that the daemon doesn't know yet, with a proven address.
func (d *tuned) someone() fakeidp.User {
	email := d.unusedAddress()
	return fakeidp.User{ID: strconv.Itoa(1000000 + d.users), Login: "login", Name: "Some One", GivenName: "Some",
		FamilyName: "One", Email: email, Verified: true}
}

// browse is one step of a browser: it follows no redirect. A form, if there is one, is posted.
func (d *tuned) browse(t *testing.T, path string, form url.Values, cookies []*http.Cookie) *http.Response {
	t.Helper()
	method := http.MethodGet
	if form != nil {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(t.Context(), method, d.http+path, strings.NewReader(form.Encode()))
	must.Succeed(t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for _, c := range cookies {
		r.AddCookie(c)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	must.Succeed(t, err)
	resp.Body.Close()
	return resp
}

// begin is where the daemon sends a browser that wants to sign in, and the cookies that it gives it.
func (d *tuned) begin(t *testing.T, name string) (*url.URL, []*http.Cookie) {
	t.Helper()
	resp := d.browse(t, "/authorize?connection=c&provider="+name, nil, nil)
	at, err := resp.Location()
	if err != nil || resp.StatusCode != http.StatusFound {
		t.Fatalf("%s: %d %v", name, resp.StatusCode, err)
	}
	return at, resp.Cookies()
}

// visit signs u in through a provider, and returns what the application receives. bare: the browser keeps no cookies.
func (d *tuned) visit(t *testing.T, idp *fakeidp.Server, name string, u fakeidp.User, bare bool) url.Values {
	t.Helper()
	idp.SetUser(u)
	at, cookies := d.begin(t, name)
	back, err := idp.Visit(t.Context(), at.String())
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if bare {
		cookies = nil
	}
	to, err := url.Parse(back.URL)
	must.Succeed(t, err)
	end, err := d.browse(t, "/callback?"+to.RawQuery, back.Form, cookies).Location()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	told, err := url.ParseQuery(end.Fragment)
	must.Succeed(t, err)
	for key, values := range end.Query() {
		told[key] = values
	}
	return told
}

// comes wants u to be let in, where code is "", or to be refused with it.
func (d *tuned) comes(t *testing.T, idp *fakeidp.Server, code, name string, u fakeidp.User) {
	t.Helper()
	told := d.visit(t, idp, name, u, false)
	if told.Get("error_code") != code || (told.Get("access_token") != "") != (code == "") {
		t.Errorf("%s: %v, want the error %q", name, told, code)
	}
}

// native signs in with an ID token; more are further members of the body.
func (d *tuned) native(t *testing.T, name, idToken string, more ...string) answer {
	t.Helper()
	in := map[string]string{"provider": name, "id_token": idToken}
	for i := 0; i < len(more); i += 2 {
		in[more[i]] = more[i+1]
	}
	body, err := json.Marshal(in)
	must.Succeed(t, err)
	a, err := call("POST", d.http+"/token?grant_type=id_token", "", string(body))
	must.Succeed(t, err)
	return a
}

// What each built-in provider and a custom one have: one setting at a time is turned for all of them.
func TestEffects_providers(t *testing.T) {
	t.Parallel()
	idp, d := startIDP(t), startTuned(t)
	type one struct{ name, dialect, prefix string }
	all := []one{{"acme", "oidc", "AUTH_EXTERNAL_OIDC_ACME_"}}
	for _, name := range provider.Names() {
		all = append(all, one{name, name, "AUTH_EXTERNAL_" + strings.ToUpper(name) + "_"})
	}
	base := append(providersAt(idp, backHere), "AUTH_EXTERNAL_OIDC_ACME_ISSUER="+idp.Base("oidc"),
		"AUTH_EXTERNAL_OIDC_ACME_CLIENT_ID="+fakeidp.ClientID, "AUTH_EXTERNAL_OIDC_ACME_SECRET="+fakeidp.ClientSecret,
		"AUTH_EXTERNAL_OIDC_ACME_REDIRECT_URI="+backHere)
	with := func(suffix string) (lines []string) {
		lines = slices.Clone(base)
		for _, p := range all {
			lines = append(lines, p.prefix+suffix)
		}
		return lines
	}
	proven := func(p one) fakeidp.User {
		u := d.someone()
		if p.name == "azure" { // which vouches for an address by that claim only
			u.Extra = map[string]any{"xms_edov": true}
		}
		return u
	}
	without := func(p one) fakeidp.User {
		u := d.someone()
		u.Email, u.Verified = "", false
		return u
	}

	sum := sha256.Sum256([]byte("another nonce than is sent"))
	wrongNonce := map[string]any{"nonce": hex.EncodeToString(sum[:])}
	natives := strings.Fields("acme apple azure google keycloak snapchat") // facebook's nonces are not checked
	d.with(t, base...)
	for _, p := range all {
		if p.name == "spotify" { // which vouches for no address, ever
			d.comes(t, idp, "provider_email_needs_verification", p.name, proven(p))
		} else {
			d.comes(t, idp, "", p.name, proven(p))
		}
		d.comes(t, idp, "unexpected_failure", p.name, without(p))
		if slices.Contains(natives, p.name) {
			a := d.native(t, p.name, idp.IDToken(p.dialect, proven(p), wrongNonce), "nonce", "mine")
			if a.status != 400 || a.str("error") != "invalid nonce" {
				t.Errorf("%s with the wrong nonce: %d %s", p.name, a.status, a.text)
			}
		}
	}
	d.with(t, with("DISTRUST_EMAIL=true")...)
	for _, p := range all {
		d.comes(t, idp, "provider_email_needs_verification", p.name, proven(p))
	}
	d.with(t, with("EMAIL_OPTIONAL=true")...)
	for _, p := range all {
		d.comes(t, idp, "", p.name, without(p))
	}
	d.with(t, with("SKIP_NONCE_CHECK=true")...)
	for _, p := range all {
		if slices.Contains(natives, p.name) {
			if a := d.native(t, p.name, idp.IDToken(p.dialect, proven(p), wrongNonce), "nonce",
				"mine"); a.status != 200 {
				t.Errorf("%s without a look at the nonce: %d %s", p.name, a.status, a.text)
			}
		}
	}

	// Without what only browsers need.
	isSecret := func(line string) bool {
		name, _, _ := strings.Cut(line, "=")
		return strings.HasSuffix(name, "_SECRET") || strings.HasSuffix(name, "_REDIRECT_URI")
	}
	var missing []string
	for _, p := range all {
		missing = append(missing, p.prefix+"SECRET is required", p.prefix+"REDIRECT_URI is required")
	}
	d.mistaken(t, slices.DeleteFunc(slices.Clone(base), isSecret), missing...)
	d.with(t, slices.DeleteFunc(with("ID_TOKEN_ONLY=true"), isSecret)...)
	for _, p := range all {
		if status := d.browse(t, "/authorize?connection=c&provider="+p.name, nil, nil).StatusCode; status != 400 {
			t.Errorf("%s with ID tokens only: /authorize answers %d", p.name, status)
		}
		if slices.Contains(natives, p.name) {
			if a := d.native(t, p.name, idp.IDToken(p.dialect, proven(p), nil)); a.status != 200 {
				t.Errorf("%s with ID tokens only: %d %s", p.name, a.status, a.text)
			}
		}
	}
}

// What free providers have beyond that.
func TestEffects_freeProviders(t *testing.T) {
	t.Parallel()
	idp, other, d := startIDP(t), startIDP(t), startTuned(t)
	const p = "AUTH_EXTERNAL_OIDC_ACME_"
	with := func(more ...string) {
		t.Helper()
		d.with(t, append([]string{p + "ISSUER=" + idp.Base("oidc"), p + "CLIENT_ID=" + fakeidp.ClientID,
			p + "SECRET=" + fakeidp.ClientSecret, p + "REDIRECT_URI=" + backHere}, more...)...)
	}
	begins := func(at, id, back, scope string) {
		t.Helper()
		got, _ := d.begin(t, "acme")
		q := got.Query()
		if !strings.HasPrefix(got.String(), at+"/authorize?") || q.Get("client_id") != id ||
			q.Get("redirect_uri") != back || q.Get("scope") != scope {
			t.Errorf("to %s, want %s for %s, back to %s, with %s", got, at, id, back, scope)
		}
	}
	on := func() bool {
		t.Helper()
		external, _ := d.want(t, 200, "GET", "/settings", "", "").body["external"].(map[string]any)
		return external["acme"] == true
	}
	d.with(t)
	d.refuses(t, "validation_failed", "GET", "/authorize?provider=acme", "", "")
	with()
	if !on() {
		t.Error("acme is not on")
	}
	begins(idp.Base("oidc"), fakeidp.ClientID, backHere, "openid email profile")
	d.comes(t, idp, "", "acme", d.someone())
	with(p + "ENABLED=false")
	if on() {
		t.Error("acme is on")
	}
	d.refuses(t, "validation_failed", "GET", "/authorize?provider=acme", "", "")
	with(p + "ISSUER=" + other.Base("oidc"))
	begins(other.Base("oidc"), fakeidp.ClientID, backHere, "openid email profile")
	with(p+"CLIENT_ID=first,second", p+"REDIRECT_URI=http://localhost:9999/elsewhere", p+"SCOPES=openid,groups")
	begins(idp.Base("oidc"), "first", "http://localhost:9999/elsewhere", "openid groups")
	for audience, want := range map[string]int{"first": 200, "second": 200, fakeidp.ClientID: 400} {
		if a := d.native(t, "acme",
			idp.IDToken("oidc", d.someone(), map[string]any{"aud": audience})); a.status != want {
			t.Errorf("an ID token for %s: %d %s", audience, a.status, a.text)
		}
	}
	with(p + "SECRET=wrong")
	if told := d.visit(t, idp, "acme", d.someone(), false); told.Get("access_token") != "" || told.Get("error") == "" {
		t.Errorf("with a wrong secret: %v", told)
	}
}

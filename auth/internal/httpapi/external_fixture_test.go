package httpapi

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/provider"
	"gatehouse/shared/fakeidp"
	"gatehouse/shared/must"
)

const pkceVerifier = "a-verifier-of-at-least-forty-three-characters"

// challenge belongs to pkceVerifier by the method s256.
var challenge = func() string {
	sum := sha256.Sum256([]byte(pkceVerifier))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}()

// githubAlone is a set with one provider, of which tests use only the redirect to it.
func githubAlone(t testing.TB) *provider.Set {
	t.Helper()
	set, err := provider.New(provider.Settings{Clients: map[string]provider.Client{
		"github": {Enabled: true, ClientIDs: []string{"client"}, Secret: "secret",
			RedirectURI: externalURL + "/callback"}}})
	must.Succeed(t, err)
	t.Cleanup(set.Close)
	return set
}

// abroad is the API with every provider at a fake.
type abroad struct {
	*api
	idp       *fakeidp.Server
	providers provider.Settings
}

func openAbroad(t *testing.T, changes ...change) *abroad {
	t.Helper()
	idp, err := fakeidp.Start(fakeidp.Options{})
	must.Succeed(t, err)
	t.Cleanup(idp.Close)
	a := &abroad{idp: idp, providers: provider.Settings{Clients: map[string]provider.Client{},
		OIDC: map[string]provider.Client{}}}
	for _, id := range append(provider.Names(), "oidc") {
		c := provider.Client{Enabled: true, ClientIDs: []string{fakeidp.ClientID}, Secret: fakeidp.ClientSecret,
			RedirectURI: externalURL + "/callback", URL: idp.Base(id)}
		if id == "oidc" {
			c.Issuer, c.URL = c.URL, ""
			a.providers.OIDC["local"] = c
		} else {
			a.providers.Clients[id] = c
		}
	}
	a.api = open(t, append([]change{func(s *flow.Settings, _ *Settings) {
		s.External = flow.ExternalSettings{StateCookie: true, ManualLinking: true, IDTokenOnce: true}
		s.External.Providers = a.set(t)
	}}, changes...)...)
	return a
}

func (a *abroad) set(t testing.TB) *provider.Set {
	t.Helper()
	set, err := provider.New(a.providers)
	must.Succeed(t, err)
	t.Cleanup(set.Close)
	return set
}

// client changes what is agreed with a provider.
func (a *abroad) client(id string, f func(*provider.Client)) {
	a.t.Helper()
	c := a.providers.Clients[id]
	f(&c)
	a.providers.Clients = maps.Clone(a.providers.Clients)
	a.providers.Clients[id] = c
	a.apply(func(s *flow.Settings, _ *Settings) { s.External.Providers = a.set(a.t) })
}

func (a *abroad) settings(f func(*flow.Settings)) {
	a.t.Helper()
	a.apply(func(s *flow.Settings, _ *Settings) { f(s) })
}

// person is an account at the fake whose address is verified unless it begins with "!".
func person(id, email string) fakeidp.User {
	u := fakeidp.Ann
	u.ID, u.Login = id, "p"+id
	u.Email, u.Verified = strings.TrimPrefix(email, "!"), !strings.HasPrefix(email, "!") && email != ""
	return u
}

// begun is a browser on its way.
type begun struct {
	cookies []header
	back    fakeidp.Callback
	url     string
}

// authorize begins, and does what is to be done at the provider.
func (a *abroad) authorize(query string, headers ...header) begun {
	a.t.Helper()
	if strings.Contains(strings.ToLower(query), "provider=workos") {
		query += "&connection=conn_1"
	}
	got := a.do("GET /authorize?"+query, nil, headers...)
	if got.StatusCode != http.StatusFound {
		a.t.Fatalf("/authorize?%s: %d %s", query, got.StatusCode, got.body)
	}
	b := begun{url: got.Header.Get("Location")}
	for _, c := range got.Cookies() {
		b.cookies = append(b.cookies, header{"Cookie", c.Name + "=" + c.Value})
	}
	b.back = a.visit(b.url)
	return b
}

func (a *abroad) visit(address string) fakeidp.Callback {
	a.t.Helper()
	back, err := a.idp.Visit(a.t.Context(), address)
	must.Succeed(a.t, err)
	return back
}

// landing is where the browser ends.
type landing struct {
	answer
	to              string
	query, fragment url.Values
}

// callback brings the provider's answer to us.
func (a *abroad) callback(b fakeidp.Callback, cookies ...header) landing {
	a.t.Helper()
	if b.Form != nil {
		return landed(a.do("POST /callback", b.Form.Encode(),
			append(cookies, header{"Content-Type", "application/x-www-form-urlencoded"})...))
	}
	u, err := url.Parse(b.URL)
	if err != nil || u.Path != "/callback" {
		a.t.Fatalf("%v: %s", err, b.URL)
	}
	return landed(a.do("GET /callback?"+u.RawQuery, nil, cookies...))
}

func landed(got answer) landing {
	got.t.Helper()
	u, err := url.Parse(got.Header.Get("Location"))
	must.Succeed(got.t, err)
	l := landing{answer: got, query: u.Query()}
	if l.fragment, err = url.ParseQuery(u.EscapedFragment()); err != nil {
		got.t.Fatal(err)
	}
	u.RawQuery, u.Fragment, u.RawFragment = "", "", ""
	l.to = u.String()
	return l
}

// signIn is the whole way.
func (a *abroad) signIn(query string, headers ...header) landing {
	a.t.Helper()
	b := a.authorize(query, headers...)
	return a.callback(b.back, b.cookies...)
}

// in is a landing with a session.
func (l landing) in() landing {
	l.t.Helper()
	if l.StatusCode != http.StatusFound || l.fragment.Get("access_token") == "" {
		l.t.Fatalf("no session: %d %s", l.StatusCode, l.Header.Get("Location"))
	}
	return l
}

// out is a landing with an error, the same in query and fragment.
func (l landing) out(error, code, description string) landing {
	l.t.Helper()
	if l.StatusCode != http.StatusFound || l.query.Get("error") != error ||
		l.query.Get("error_code") != code || !like(l.query.Get("error_description"), description) {
		l.t.Errorf("%d %s\nwant %s %s %s", l.StatusCode, l.Header.Get("Location"), error, code, description)
	}
	for _, key := range []string{"error", "error_code", "error_description"} {
		if l.query.Get(key) != l.fragment.Get(key) {
			l.t.Errorf("%s: query and fragment differ: %s", key, l.Header.Get("Location"))
		}
	}
	return l
}

// astray is a landing on the site, with the error in the query alone.
func (l landing) astray(code, description string) {
	l.t.Helper()
	if l.StatusCode != http.StatusSeeOther || l.to != siteURL || l.query.Get("error_code") != code ||
		!like(l.query.Get("error_description"), description) || len(l.fragment) > 0 {
		l.t.Errorf("%d %s\nwant %s %s", l.StatusCode, l.Header.Get("Location"), code, description)
	}
}

// user is the user of a landing's session.
func (a *abroad) user(l landing) (u userJSON) {
	a.t.Helper()
	a.do("GET /user", nil, bearer(l.in().fragment.Get("access_token"))).json(&u)
	return u
}

func jsonText(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	must.Succeed(t, err)
	return string(text)
}

package provider

import (
	"net/url"
	"strings"
	"testing"

	"gatehouse/shared/fakeidp"
	"gatehouse/shared/must"
)

func start(t testing.TB) *fakeidp.Server {
	t.Helper()
	s, err := fakeidp.Start(fakeidp.Options{})
	must.Succeed(t, err)
	t.Cleanup(s.Close)
	return s
}

const callback = "https://auth.test/callback"

// clientOf is a dialect of the fake as a provider.
func clientOf(f *fakeidp.Server, dialect string) Client {
	return Client{Enabled: true, ClientIDs: []string{fakeidp.ClientID, "second-client"}, Secret: fakeidp.ClientSecret,
		RedirectURI: callback, URL: f.Base(dialect)}
}

func settingsOf(f *fakeidp.Server) Settings {
	s := Settings{Clients: map[string]Client{}, OIDC: map[string]Client{}}
	for _, id := range Names() {
		s.Clients[id] = clientOf(f, id)
	}
	custom := clientOf(f, "oidc")
	custom.Issuer, custom.URL = custom.URL, ""
	s.OIDC["local"] = custom
	return s
}

func setOf(t testing.TB, s Settings) *Set {
	t.Helper()
	set, err := New(s)
	must.Succeed(t, err)
	t.Cleanup(set.Close)
	return set
}

// flow goes through a whole sign-in.
func flow(t testing.TB, f *fakeidp.Server, set *Set, name string, params url.Values) (Profile, error) {
	t.Helper()
	p, err := set.Lookup(name)
	if err != nil {
		return Profile{}, err
	}
	if strings.EqualFold(name, "workos") && params == nil {
		params = url.Values{"connection": {"conn_1"}}
	}
	b, err := p.Begin(t.Context(), Start{State: "the state", Params: params})
	if err != nil {
		return Profile{}, err
	}
	back, err := f.Visit(t.Context(), b.URL)
	must.Succeed(t, err)
	if got := back.Params().Get("state"); got != "the state" {
		t.Errorf("%s: the state came back as %q", name, got)
	}
	return p.Finish(t.Context(), back.Params(), b.Private)
}

func TestFlowOfEach(t *testing.T) {
	f := start(t)
	set := setOf(t, settingsOf(f))
	for _, name := range set.Names() {
		_, err := flow(t, f, set, name, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		dialect := name
		if name == "local" {
			dialect = "oidc"
		}
		if c := f.Complaints(dialect); c != nil {
			t.Errorf("%s", c)
		}
	}
}

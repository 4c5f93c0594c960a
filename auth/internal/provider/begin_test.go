package provider

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"gatehouse/shared/must"
)

func begin(t *testing.T, set *Set, name string, r Start) (url.Values, Begun) {
	t.Helper()
	p, err := set.Lookup(name)
	must.Succeed(t, err)
	b, err := p.Begin(t.Context(), r)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	u, err := url.Parse(b.URL)
	must.Succeed(t, err)
	return u.Query(), b
}

// TestReserved: the author of a link to /authorize can't change what the flow depends on.
func TestReserved(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	names := append([]string{}, reserved...)
	for _, name := range reserved {
		names = append(names, strings.ToUpper(name), strings.ToUpper(name[:1])+name[1:])
	}
	params := url.Values{"prompt": {"consent", "second"}, "access_type": {"offline"}, "connection": {"c"},
		"login_hint": {"a&b=c"}}
	for _, name := range names {
		params[name] = []string{"evil"}
	}
	for _, name := range set.Names() {
		if name == "twitter" {
			continue // has none of them
		}
		q, _ := begin(t, set, name, Start{State: "s", Params: params})
		for key, values := range q {
			if len(values) != 1 || strings.Contains(values[0], "evil") {
				t.Errorf("%s: %s is %q", name, key, values)
			}
		}
		passes := name != "apple"
		if (q.Get("prompt") == "consent" && q.Get("access_type") == "offline" &&
			q.Get("login_hint") == "a&b=c") != passes {
			t.Errorf("%s: %v", name, q)
		}
	}
}

func TestScopes(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	for name, want := range map[string]string{
		"github": "user:email repo read:org", "google": "email profile repo read:org", "apple": "email name",
		"bitbucket": "account email",
		"notion":    "", "workos": "", "spotify": "user-read-email repo read:org",
		"local": "openid email profile repo read:org",
	} {
		q, _ := begin(t, set, name, Start{State: "s", Scopes: "repo,,read:org repo, ",
			Params: url.Values{"organization": {"o"}}})
		if q.Get("scope") != want {
			t.Errorf("%s: scope %q, want %q", name, q.Get("scope"), want)
		}
	}
}

// TestNonce: an application may bring its own, which is then the one that must come back.
func TestNonce(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	for _, name := range []string{"google", "azure", "local"} {
		q, b := begin(t, set, name, Start{State: "s", Params: url.Values{"nonce": {"mine"}}})
		kept, err := openPrivate(b.Private)
		if q.Get("nonce") != "mine" || kept.Nonce != "mine" || err != nil {
			t.Errorf("%s: %v %+v", name, q, kept)
		}
		if _, err := flow(t, f, set, name, url.Values{"nonce": {"mine"}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		first, _ := begin(t, set, name, Start{State: "s"})
		second, _ := begin(t, set, name, Start{State: "s"})
		if first.Get("nonce") == second.Get("nonce") || first.Get("code_challenge") == second.Get("code_challenge") {
			t.Errorf("%s: nonce or challenge is used twice", name)
		}
	}
}

func TestWorkOSParameters(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	for _, name := range []string{"connection", "organization"} {
		if q, _ := begin(t, set, "workos", Start{State: "s", Params: url.Values{name: {"x"}}}); q.Get(name) != "x" ||
			q.Has("scope") {
			t.Errorf("%v", q)
		}
	}
	if q, _ := begin(t, set, "workos",
		Start{State: "s", Params: url.Values{"workos_provider": {"GoogleOAuth"},
			"provider": {"workos"}}}); q.Get("provider") != "GoogleOAuth" || q.Has("workos_provider") {
		t.Errorf("%v", q)
	}
	p, _ := set.Lookup("workos")
	_, err := p.Begin(t.Context(), Start{State: "s", Params: url.Values{"provider": {"workos"}}})
	wantError(t, err, http.StatusBadRequest, "validation_failed",
		"WorkOS needs one of the parameters connection, organization and workos_provider", "")
}

func TestCallbackErrors(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	p, err := set.Lookup("github")
	must.Succeed(t, err)
	_, err = p.Finish(t.Context(), url.Values{"error": {"access_denied"}, "error_description": {"The user said no"}},
		nil)
	wantError(t, err, http.StatusBadRequest, "", "The user said no", "access_denied")
	_, err = p.Finish(t.Context(), url.Values{"state": {"s"}}, nil)
	wantError(t, err, http.StatusBadRequest, "bad_oauth_callback",
		"OAuth callback with missing authorization code missing", "")
	_, err = p.Finish(t.Context(), url.Values{"code": {"c"}}, []byte("not what Begin gave"))
	wantError(t, err, http.StatusInternalServerError, "unexpected_failure", noCode, "")
	if n := len(f.Requests("github", "")); n != 0 {
		t.Errorf("%d requests", n)
	}
	// A code with the verifier of another sign-in.
	_, b := begin(t, set, "github", Start{State: "s"})
	back, err := f.Visit(t.Context(), b.URL)
	must.Succeed(t, err)
	_, other := begin(t, set, "github", Start{State: "s"})
	_, err = p.Finish(t.Context(), back.Params(), other.Private)
	wantError(t, err, http.StatusInternalServerError, "unexpected_failure", noCode, "")
	if strings.Contains(err.Error(), back.Params().Get("code")) {
		t.Error("the error tells the code")
	}
}

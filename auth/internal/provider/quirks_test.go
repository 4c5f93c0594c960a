package provider

import (
	"encoding/json"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gatehouse/shared/fakeidp"
)

// signInAs is the profile of a user at a well-behaved provider.
func signInAs(t *testing.T, f *fakeidp.Server, set *Set, name string, u fakeidp.User, b fakeidp.Behaviour) Profile {
	t.Helper()
	f.Reset()
	f.SetUser(u)
	f.Behave(spec{name: name}.dialect(), b)
	d, err := flow(t, f, set, name, nil)
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
	return d
}

func with(extra map[string]any) fakeidp.User {
	u := fakeidp.Ann
	u.Extra = extra
	return u
}

func TestNoEmail(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	nobody := fakeidp.User{ID: "9", Login: "quiet", Name: "Quiet"}
	for _, name := range set.Names() {
		if d := signInAs(t, f, set, name, nobody, fakeidp.Behaviour{}); len(d.Emails) != 0 ||
			strings.Trim(d.Subject, "{}") != "9" {
			t.Errorf("%s: %+v", name, d)
		}
	}
	odd := nobody
	for _, address := range []string{"not an address", "a@b@c", "<script>@x.example",
		strings.Repeat("a", 300) + "@x.example", "a\x00@x.example"} {
		odd.Email, odd.Verified = address, true
		for _, name := range []string{"github", "discord", "google", "local"} {
			if d := signInAs(t, f, set, name, odd, fakeidp.Behaviour{}); len(d.Emails) != 0 {
				t.Errorf("%s takes %q for an address", name, address)
			}
		}
	}
}

// TestUnverified: an address that the provider declares unproven counts as unproven.
func TestUnverified(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	u := fakeidp.Ann
	u.Verified = false
	for _, name := range []string{"azure", "bitbucket", "discord", "github", "gitlab", "google", "keycloak", "linkedin",
		"slack", "spotify", "local"} {
		if d := signInAs(t, f, set, name, u, fakeidp.Behaviour{}); shown(d.Emails) != "ann@example.org!" {
			t.Errorf("%s: %s", name, shown(d.Emails))
		}
	}
	// A flag of another type than a JSON boolean proves nothing, except where the provider writes text.
	for name, flag := range map[string]string{"discord": "verified", "keycloak": "email_verified",
		"slack": "email_verified", "local": "email_verified"} {
		for _, v := range []any{"true", 1, "yes", []bool{true}} {
			if d := signInAs(t, f, set, name, with(map[string]any{flag: v}),
				fakeidp.Behaviour{}); shown(d.Emails) != "ann@example.org!" {
				t.Errorf("%s: %s = %v proves an address", name, flag, v)
			}
		}
	}
	for v, want := range map[string]string{"true": "ann@example.org+!", "false": "ann@example.org!"} {
		if d := signInAs(t, f, set, "google", with(map[string]any{"email_verified": v}),
			fakeidp.Behaviour{}); shown(d.Emails) != want {
			t.Errorf("google: email_verified as text: %s", shown(d.Emails))
		}
	}
}

// TestDistrustEmail: with DISTRUST_EMAIL no provider proves an address.
func TestDistrustEmail(t *testing.T) {
	t.Parallel()
	f := start(t)
	s := settingsOf(f)
	for id, c := range s.Clients {
		c.DistrustEmail = true
		s.Clients[id] = c
	}
	set := setOf(t, s)
	for _, name := range Names() {
		if d := signInAs(t, f, set, name, fakeidp.Ann, fakeidp.Behaviour{}); shown(d.Emails) != "ann@example.org!" {
			t.Errorf("%s: %s", name, shown(d.Emails))
		}
	}
}

func TestSeveralEmails(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	u := fakeidp.Ann
	u.Emails = []fakeidp.Email{{Address: "old@example.org", Verified: true},
		{Address: "Ann@Example.org", Verified: true, Primary: true}, {Address: "new@example.org"}, {Address: ""}}
	for name, want := range map[string]string{
		"github":    "old@example.org+ ann@example.org+! new@example.org",
		"bitbucket": "old@example.org+ ann@example.org+! new@example.org",
		"gitlab":    "old@example.org new@example.org ann@example.org+!", // only the first is known to be proven
	} {
		if d := signInAs(t, f, set, name, u, fakeidp.Behaviour{}); shown(d.Emails) != want {
			t.Errorf("%s: %s, want %s", name, shown(d.Emails), want)
		}
	}
}

func TestDiscordPicture(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	const cdn = "https://cdn.discordapp.com/"
	check := func(extra map[string]any, name, picture string) {
		t.Helper()
		u := with(extra)
		u.ID = "80351110224678912"
		d := signInAs(t, f, set, "discord", u, fakeidp.Behaviour{})
		if d.Data["name"] != name || d.Data["picture"] != picture || d.Data["avatar_url"] != picture {
			t.Errorf("%v: %v %v", extra, d.Data["name"], d.Data["picture"])
		}
	}
	check(map[string]any{"avatar": "8342729096ea3675442027381ff50dfe"}, "ann#0",
		cdn+"avatars/80351110224678912/8342729096ea3675442027381ff50dfe.png")
	check(map[string]any{"avatar": "a_8342"}, "ann#0", cdn+"avatars/80351110224678912/a_8342.gif")
	check(map[string]any{"avatar": nil, "discriminator": "1337"}, "ann#1337", cdn+"embed/avatars/2.png")
	check(map[string]any{"avatar": "", "discriminator": "0005"}, "ann#0005", cdn+"embed/avatars/0.png")
	check(map[string]any{"avatar": nil, "discriminator": "0"}, "ann#0",
		cdn+"embed/avatars/5.png") // 80351110224678912 >> 22 % 6
	check(map[string]any{"avatar": nil, "discriminator": nil}, "ann#0", cdn+"embed/avatars/5.png")
	check(map[string]any{"avatar": nil, "discriminator": "x"}, "ann#x", cdn+"embed/avatars/5.png")
}

func TestPictures(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	check := func(name string, extra map[string]any, want any) {
		t.Helper()
		if d := signInAs(t, f, set, name, with(extra), fakeidp.Behaviour{}); d.Data["picture"] != want {
			t.Errorf("%s %v: %v, want %v", name, extra, d.Data["picture"], want)
		}
	}
	old := map[string]any{"href": "https://old.example/1"}
	check("bitbucket", map[string]any{"links": nil, "avatar": old}, "https://old.example/1")
	check("bitbucket", map[string]any{"links": nil}, nil)
	image := func(u string, w, h any) map[string]any { return map[string]any{"url": u, "width": w, "height": h} }
	check("spotify", map[string]any{"images": []any{image("a", 10, 10), image("b", 20, 5), image("c", 30, 30),
		image("d", 30, 30)}}, "c")
	check("spotify", map[string]any{"images": []any{image("a", nil, nil), image("b", "9", 9)}}, "a")
	check("spotify", map[string]any{"images": []any{"x", 1, nil}}, nil)
	check("spotify", map[string]any{"images": nil}, nil)
}

// An answer without an ID token: the profile endpoint says the same.
func TestLinkedInUserinfo(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	told := signInAs(t, f, set, "linkedin", fakeidp.Ann, fakeidp.Behaviour{})
	asked := signInAs(t, f, set, "linkedin", fakeidp.Ann, fakeidp.Behaviour{NoIDToken: true})
	if told.Subject != asked.Subject || !slices.Equal(told.Emails, asked.Emails) ||
		!reflect.DeepEqual(told.Data, asked.Data) {
		t.Errorf("the ID token says\n%+v, the profile endpoint\n%+v", told, asked)
	}
	unproven := fakeidp.Ann
	unproven.Verified = false
	if d := signInAs(t, f, set, "linkedin", unproven, fakeidp.Behaviour{NoIDToken: true}); len(d.Emails) != 1 ||
		d.Emails[0].Verified {
		t.Errorf("%+v", d.Emails)
	}
}

func TestLinkedInLegacy(t *testing.T) {
	t.Parallel()
	f := start(t)
	s := settingsOf(f)
	c := s.Clients["linkedin"]
	c.Mode = "Legacy"
	s.Clients["linkedin"] = c
	set := setOf(t, s)
	local := func(language, key string) map[string]any {
		return map[string]any{"localized": map[string]any{key: "Ann"},
			"preferredLocale": map[string]any{"language": language, "country": "DE"}}
	}
	for _, v := range []struct {
		extra map[string]any
		name  any
	}{
		{map[string]any{"firstName": local("de", "de_DE")}, "Ann Example"},
		{map[string]any{"firstName": local("de", "en_US")}, "Example"},
		{map[string]any{"firstName": nil, "lastName": nil}, nil},
		{map[string]any{"firstName": "Ann", "lastName": []any{}}, nil},
		{map[string]any{"profilePicture": map[string]any{"displayImage~": map[string]any{"elements": []any{}}}},
			"Ann Example"},
		{map[string]any{"profilePicture": map[string]any{
			"displayImage~": map[string]any{"elements": []any{map[string]any{"identifiers": nil}}}}}, "Ann Example"},
	} {
		d := signInAs(t, f, set, "linkedin", with(v.extra), fakeidp.Behaviour{})
		if d.Data["name"] != v.name || v.extra["profilePicture"] != nil && d.Data["picture"] != nil {
			t.Errorf("%v: %v", v.extra, d.Data)
		}
	}
	d := signInAs(t, f, set, "linkedin", fakeidp.Ann,
		fakeidp.Behaviour{Answers: map[string]fakeidp.Answer{"/v2/emailAddress": fakeidp.JSON(`{"elements":[]}`)}})
	if len(d.Emails) != 0 {
		t.Errorf("an empty list of addresses: %v", d.Emails)
	}
	if _, err := set.Lookup("linkedin_oidc"); err == nil {
		t.Error("linkedin_oidc is found in the legacy mode, whose subjects are others")
	}
}

func TestSlack(t *testing.T) {
	t.Parallel()
	f := start(t)
	s := settingsOf(f)
	oidc := setOf(t, s)
	c := s.Clients["slack"]
	c.Mode = "legacy"
	s.Clients["slack"] = c
	legacy := setOf(t, s)
	check := func(set *Set, extra map[string]any, want string) {
		t.Helper()
		if d := signInAs(t, f, set, "slack", with(extra), fakeidp.Behaviour{}); shown(d.Emails) != want {
			t.Errorf("%v: %s, want %s", extra, shown(d.Emails), want)
		}
	}
	check(legacy, nil, "ann@example.org+!")
	check(legacy, map[string]any{"email_verified": false}, "ann@example.org!")
	check(oidc, map[string]any{"email_verified": nil}, "ann@example.org!")
	check(oidc, map[string]any{"https://slack.com/user_id": nil}, "ann@example.org+!") // sub says the same
	p, err := oidc.Lookup("Slack_OIDC")
	if err != nil || p.Name() != "slack" || len(p.Aliases()) != 1 || p.Aliases()[0] != "slack_oidc" {
		t.Errorf("today's name: %v %v", p, err)
	}
}

func TestGoogleUserinfo(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	d := signInAs(t, f, set, "google", with(map[string]any{"hd": "example.org"}), fakeidp.Behaviour{NoIDToken: true})
	custom, _ := d.Data["custom_claims"].(map[string]any)
	if d.Data["iss"] != f.Base("google")+"/userinfo/v2/me" || d.Data["sub"] != "1234567" ||
		d.Data["avatar_url"] != pic || custom["hd"] != "example.org" || shown(d.Emails) != "ann@example.org+!" {
		t.Errorf("%+v", d)
	}
	for flag, want := range map[any]string{true: "ann@example.org+!", false: "ann@example.org!"} {
		d := signInAs(t, f, set, "google", with(map[string]any{"verified_email": nil, "email_verified": flag}),
			fakeidp.Behaviour{NoIDToken: true})
		if shown(d.Emails) != want {
			t.Errorf("email_verified %v: %s, want %s", flag, shown(d.Emails), want)
		}
	}
}

func TestKeycloakClaims(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	d := signInAs(t, f, set, "keycloak",
		with(map[string]any{"roles": []string{"a"}, "n": json.Number("9007199254740993"),
			"nul": "a\x00b", "deep": deep(200)}), fakeidp.Behaviour{})
	text, err := json.Marshal(d.Data["custom_claims"])
	if err != nil || strings.Contains(string(text), `\u0000`) ||
		!strings.Contains(string(text), `"n":9007199254740993`) ||
		!strings.Contains(string(text), `"nul":"ab"`) || strings.Count(string(text), "[") > 2*maxDepth {
		t.Errorf("%s %v", text, err)
	}
}

func deep(n int) any {
	var v any = "bottom"
	for range n {
		v = []any{v}
	}
	return v
}

// TestCustomUserinfo: an address missing from the ID token is read at the profile endpoint.
func TestCustomUserinfo(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	quiet := func(c map[string]any) { delete(c, "email"); delete(c, "name") }
	d := signInAs(t, f, set, "local", fakeidp.Ann, fakeidp.Behaviour{Claims: quiet})
	if shown(d.Emails) != "ann@example.org+!" || d.Data["name"] != "Ann Example" || d.Data["given_name"] != "Ann" {
		t.Errorf("%+v", d)
	}
	f.Behave("oidc", fakeidp.Behaviour{Claims: quiet,
		Answers: map[string]fakeidp.Answer{
			"/userinfo": fakeidp.JSON(`{"sub":"other","email":"victim@example.org","email_verified":true}`)}})
	_, err := flow(t, f, set, "local", nil)
	wantError(t, err, http.StatusInternalServerError, "unexpected_failure", noMe, "")
}

// TestCustomAuthMethod: the document says how the client authenticates, and it is tried in no other way.
func TestCustomAuthMethod(t *testing.T) {
	t.Parallel()
	f := start(t)
	for list, basic := range map[string]bool{"": true, "client_secret_basic": true, "client_secret_post": false,
		"client_secret_post client_secret_basic": true, "private_key_jwt": true} {
		f.Reset()
		f.Behave("oidc", fakeidp.Behaviour{Discovery: func(d map[string]any) {
			if list != "" {
				d["token_endpoint_auth_methods_supported"] = strings.Fields(list)
			}
			delete(d, "code_challenge_methods_supported")
		}})
		set := setOf(t, settingsOf(f))
		p, err := set.Lookup("local")
		if err != nil {
			t.Fatal(err)
		}
		b, err := p.Begin(t.Context(), Start{State: "s"})
		if err != nil || strings.Contains(b.URL, "code_challenge") {
			t.Errorf("PKCE that the provider doesn't offer: %s %v", b.URL, err)
		}
		_, _ = p.Finish(t.Context(), url.Values{"code": {"unknown"}, "iss": {f.Base("oidc")}}, b.Private)
		seen := f.Requests("oidc", "/token")
		if len(seen) != 1 || (seen[0].Header.Get("Authorization") != "") != basic ||
			seen[0].Form.Has("client_secret") == basic {
			t.Errorf("%s: %d requests, %v", list, len(seen), seen)
		}
	}
}

func TestTwitch_noUser(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	f.Behave("twitch",
		fakeidp.Behaviour{Answers: map[string]fakeidp.Answer{"/helix/users": fakeidp.JSON(`{"data":[]}`)}})
	_, err := flow(t, f, set, "twitch", nil)
	wantError(t, err, http.StatusInternalServerError, "unexpected_failure", noMe, "")
}

func TestGitHubForm(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	d := signInAs(t, f, set, "github", fakeidp.Ann, fakeidp.Behaviour{FormToken: true})
	if d.Token == "" || d.RefreshToken == "" || d.Subject != "1234567" {
		t.Errorf("%+v", d)
	}
	d = signInAs(t, f, set, "github", fakeidp.Ann, fakeidp.Behaviour{Token: func(a map[string]any) {
		a["expires_in"] = "28800"
	}})
	if d.Token == "" {
		t.Error("expires_in as text")
	}
}

// TestTokenCalledText: JSON is JSON, whatever its sender calls it.
func TestTokenCalledText(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	for _, kind := range []string{"text/plain; charset=utf-8", "application/x-www-form-urlencoded", "text/html",
		"application/json"} {
		for _, before := range []string{"", "\n  "} {
			f.Behave("workos", fakeidp.Behaviour{Answers: map[string]fakeidp.Answer{
				"token": {Type: kind,
					Body: before + `{"access_token":"a","profile":{"id":"p","email":"ann@example.org"}}`},
			}})
			if d, err := flow(t, f, set, "workos", nil); err != nil || d.Token != "a" || d.Subject != "p" {
				t.Errorf("%s: %+v %v", kind, d, err)
			}
		}
	}
}

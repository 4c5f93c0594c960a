package provider

import (
	"net/http"
	"net/url"
	"testing"

	"gatehouse/shared/fakeidp"
	"gatehouse/shared/must"
)

func TestApple(t *testing.T) {
	t.Parallel()
	f := start(t)
	set := setOf(t, settingsOf(f))
	p, err := set.Lookup("apple")
	if err != nil || !p.FormPost() {
		t.Fatal("Apple's callback is a POST", err)
	}
	signIn := func(user string) (Profile, error) {
		t.Helper()
		b, err := p.Begin(t.Context(),
			Start{State: "s", Scopes: "more", Params: url.Values{"prompt": {"none"}, "response_mode": {"query"}}})
		must.Succeed(t, err)
		back, err := f.Visit(t.Context(), b.URL)
		must.Succeed(t, err)
		if back.URL != callback || back.Form == nil {
			t.Fatalf("the callback is %+v, not a POST", back)
		}
		back.Form.Set("user", user)
		return p.Finish(t.Context(), back.Form, b.Private)
	}
	for user, name := range map[string]any{
		`{"name":{"firstName":"Ann","lastName":"Example"},"email":"victim@example.org"}`: "Ann Example",
		`{"name":{"firstName":"Ann"}}`:      "Ann",
		`{"name":{"lastName":" Example "}}`: "Example", `{"name":{}}`: nil, `{}`: nil, ``: nil, `{"name":"Ann"}`: nil,
		`{"name":{"firstName":7}}`: nil,
	} {
		d, err := signIn(user)
		if err != nil || d.Data["name"] != name || d.Data["full_name"] != name ||
			shown(d.Emails) != "ann@example.org+!" {
			t.Errorf("user %s: %v %v %v", user, d.Data, d.Emails, err)
		}
	}
	for _, user := range []string{`{`, `[]`, `"x"`, `null`, `{} {}`} {
		_, err := signIn(user)
		wantError(t, err, http.StatusInternalServerError, "unexpected_failure", noMe, "")
	}
	for v, want := range map[any]any{"true": true, "false": false, true: true, false: false, "x": false} {
		f.Behave("apple", fakeidp.Behaviour{Claims: func(c map[string]any) {
			c["is_private_email"] = v
			c["transfer_sub"] = "t"
		}})
		d, err := signIn("")
		custom, _ := d.Data["custom_claims"].(map[string]any)
		if err != nil || custom["is_private_email"] != want || custom["transfer_sub"] != "t" {
			t.Errorf("is_private_email %v: %v %v", v, custom, err)
		}
	}
	// Both of Apple's names, when it is Apple.
	public := &Provider{row: rowOf("apple", "")}
	for iss, want := range map[string]bool{"https://appleid.apple.com": true, "https://account.apple.com": true,
		"https://evil.example": false, "": false} {
		if public.trust().accepts(iss) != want {
			t.Errorf("Apple's issuer %q: %v", iss, !want)
		}
	}
	if p.trust().accepts("https://appleid.apple.com") {
		t.Error("Apple itself is believed although the base is another")
	}
	if g := (&Provider{row: rowOf("google", "")}); !g.trust().accepts("accounts.google.com") {
		t.Error("Google's issuer without scheme")
	}
}

// A stand-in for apple may have a document that names its keys and nothing else.
func TestAppleWithoutEndpoints(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.Behave("apple", fakeidp.Behaviour{Discovery: func(d map[string]any) {
		delete(d, "authorization_endpoint")
		delete(d, "token_endpoint")
	}})
	if _, err := flow(t, f, setOf(t, settingsOf(f)), "apple", nil); err != nil {
		t.Error(err)
	}
}

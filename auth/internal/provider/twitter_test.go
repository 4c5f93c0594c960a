package provider

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse/shared/fakeidp"
	"gatehouse/shared/must"
)

// TestRFC5849 are the examples of RFC 5849: the base string of section 3.4.1.1, and the requests of section
// 1.2 with the signatures printed there.
func TestRFC5849(t *testing.T) {
	u, _ := url.Parse("http://EXAMPLE.COM:80/request?b5=%3D%253D&a3=a&c%40=&a2=r%20b")
	params := url.Values{
		"b5": {"=%3D"}, "a3": {"a", "2 q"}, "c@": {""}, "a2": {"r b"}, "oauth_consumer_key": {"9djdj82h48djs9d2"},
		"oauth_token": {"kkk9d7dh3k39sjv7"}, "oauth_signature_method": {"HMAC-SHA1"}, "oauth_timestamp": {"137131201"},
		"oauth_nonce": {"7d8f3e4a"}, "c2": {""},
	}
	const want = "POST&http%3A%2F%2Fexample.com%2Frequest&a2%3Dr%2520b%26a3%3D2%2520q%26a3%3Da%26b5%3D%253D%25253D%26c%2540%3D%26c2%3D%26" +
		"oauth_consumer_key%3D9djdj82h48djs9d2%26oauth_nonce%3D7d8f3e4a%26oauth_signature_method%3DHMAC-SHA1%26oauth_timestamp%3D137131201%26oauth_token%3Dkkk9d7dh3k39sjv7"
	if got := baseString("post", u, params); got != want {
		t.Errorf("the base string of section 3.4.1.1:\n%s\nwant\n%s", got, want)
	}

	f := func(method, address, timestamp, nonce, tok, tokenSecret, signature string, more ...[2]string) {
		t.Helper()
		u, err := url.Parse(address)
		must.Succeed(t, err)
		all := u.Query()
		for _, p := range append(more, [][2]string{{"oauth_consumer_key", "dpf43f3p2l4k3l03"},
			{"oauth_signature_method", "HMAC-SHA1"}, {"oauth_timestamp", timestamp}, {"oauth_nonce", nonce}}...) {
			all.Add(p[0], p[1])
		}
		if tok != "" {
			all.Add("oauth_token", tok)
		}
		c := credentials{key: "dpf43f3p2l4k3l03", secret: "kd94hf93k423kf44", token: tok, tokenSecret: tokenSecret}
		if got := c.sign(baseString(method, u, all)); got != signature {
			t.Errorf("%s: signature %s, want %s", address, got, signature)
		}
	}
	f("POST", "https://photos.example.net/initiate", "137131200", "wIjqoS", "", "", "74KNZJeDHnMBp0EMJ9ZHt/XKycU=",
		[2]string{"oauth_callback", "http://printer.example.com/ready"})
	f("POST", "https://photos.example.net/token", "137131201", "walatlh", "hh5s93j4hdidpola", "hdhd0244k9j7ao03",
		"gKgrFCywp7rO0OXSjdot/IHF7IU=", [2]string{"oauth_verifier", "hfdp7dh39dks9884"})
	f("GET", "http://photos.example.net/photos?file=vacation.jpg&size=original", "137131202", "chapoH",
		"nnch734d00sl2jdk", "pfkkdhi9sl3r4s00", "MdpQcU8iPSUjWoN/UDMsK2sui9I=")
}

func TestAuthorizationHeader(t *testing.T) {
	u, _ := url.Parse("http://photos.example.net/photos?file=vacation.jpg&size=original")
	c := credentials{key: "k&", secret: "s", token: "t", tokenSecret: "ts"}
	got := c.authorization("GET", u, map[string]string{"oauth_verifier": "v +"}, "n", time.Unix(5, 0))
	const want = `OAuth oauth_consumer_key="k%26", oauth_nonce="n", oauth_signature="SIG", oauth_signature_method="HMAC-SHA1", oauth_timestamp="5", oauth_token="t", oauth_verifier="v%20%2B", oauth_version="1.0"`
	start, end := strings.Index(got, `oauth_signature="`)+17, strings.Index(got, `", oauth_signature_method`)
	if start < 17 || end < start || got[:start]+"SIG"+got[end:] != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if strings.Contains(got, "file=") {
		t.Error("the query stands in the header")
	}
}

func TestTwitter(t *testing.T) {
	f := start(t)
	s := settingsOf(f)
	set := setOf(t, s)
	d, err := flow(t, f, set, "twitter", url.Values{"prompt": {"x"}})
	if err != nil {
		t.Fatal(err, f.Complaints("twitter"))
	}
	base := f.Base("twitter")
	if diff := cmp.Diff(map[string]any{
		"iss": base + "/1.1/account/verify_credentials.json", "sub": "1234567", "provider_id": "1234567",
		"name": "Ann Example", "full_name": "Ann Example",
		"preferred_username": "ann", "user_name": "ann", "picture": pic, "avatar_url": pic,
	}, d.Data); diff != "" {
		t.Error(diff)
	}
	if shown(d.Emails) != "ann@example.org+!" || d.Token == "" || d.RefreshToken != "" || d.Subject != "1234567" {
		t.Errorf("%+v", d)
	}
	if c := f.Complaints("twitter"); c != nil {
		t.Errorf("the fake complains: %q", c)
	}
	if q := f.Requests("twitter", "/oauth/authenticate")[0].Query; len(q) != 1 || q.Get("oauth_token") == "" {
		t.Errorf("the browser carries %v, want oauth_token alone", q)
	}

	// Another user's request token.
	p, err := set.Lookup("twitter")
	must.Succeed(t, err)
	mine, err := p.Begin(t.Context(), Start{State: "mine"})
	must.Succeed(t, err)
	other, err := p.Begin(t.Context(), Start{State: "other"})
	must.Succeed(t, err)
	back, err := f.Visit(t.Context(), other.URL)
	must.Succeed(t, err)
	f.Reset()
	wantError(t, finish(t, p, back, mine.Private), http.StatusBadRequest, "bad_oauth_callback",
		"OAuth callback with the request token of another sign-in", "")
	wantError(t, finish(t, p, back, nil), http.StatusBadRequest, "bad_oauth_callback",
		"OAuth callback with the request token of another sign-in", "")
	if n := len(f.Requests("twitter", "")); n != 0 {
		t.Errorf("%d requests went to the provider all the same", n)
	}
	wantError(t, finish(t, p, fakeidp.Callback{URL: callback + "?state=x&oauth_token=t"}, mine.Private),
		http.StatusBadRequest, "bad_oauth_callback", "OAuth callback with missing authorization code missing", "")

	f.Behave("twitter", fakeidp.Behaviour{Deny: true})
	_, err = flow(t, f, set, "twitter", nil)
	wantError(t, err, http.StatusForbidden, "", "The sign-in was refused at twitter", "access_denied")

	for path, want := range map[string]string{
		"/oauth/request_token":                 "Error getting a request token from external provider",
		"/oauth/access_token":                  "Unable to exchange external code",
		"/1.1/account/verify_credentials.json": "Error getting user profile from external provider",
	} {
		for name, a := range badAnswers() {
			f.Behave("twitter", fakeidp.Behaviour{Answers: map[string]fakeidp.Answer{path: a}})
			if path != "/1.1/account/verify_credentials.json" && name == "an empty object" {
				continue // that is no form either
			}
			_, err = flow(t, f, set, "twitter", nil)
			wantError(t, err, http.StatusInternalServerError, "unexpected_failure", want, "")
		}
	}
	f.Behave("twitter",
		fakeidp.Behaviour{Answers: map[string]fakeidp.Answer{
			"/oauth/request_token": {Body: "oauth_token=a&oauth_token_secret=b&oauth_callback_confirmed=false"}}})
	_, err = flow(t, f, set, "twitter", nil)
	wantError(t, err, http.StatusInternalServerError, "unexpected_failure",
		"Error getting a request token from external provider", "")

	f.Reset()
	f.SetUser(fakeidp.User{ID: "5", Login: "quiet"})
	if d, err = flow(t, f, set, "twitter", nil); err != nil || len(d.Emails) != 0 {
		t.Errorf("without an address: %+v %v", d, err)
	}
	// A redirect URI with a query keeps it.
	c := s.Clients["twitter"]
	c.RedirectURI += "?tenant=1"
	s.Clients["twitter"] = c
	if _, err = flow(t, f, setOf(t, s), "twitter", nil); err != nil {
		t.Error(err)
	}
}

func finish(t *testing.T, p *Provider, back fakeidp.Callback, keep []byte) error {
	t.Helper()
	_, err := p.Finish(t.Context(), back.Params(), keep)
	return err
}

func wantError(t *testing.T, err error, status int, code, message, oauth string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Status != status || e.Code != code || e.Message != message || e.OAuth != oauth {
		t.Errorf("error %#v, want %d %s %q %s", err, status, code, message, oauth)
	}
	if err != nil && (strings.Contains(err.Error(), fakeidp.ClientSecret) ||
		strings.Contains(err.Error(), "proof=") || strings.Contains(err.Error(), "refresh-")) {
		t.Errorf("the error tells a secret: %v", err)
	}
}

package httpapi

import (
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/await"
	"gatehouse/shared/fakeidp"
	"gatehouse/shared/must"
)

// A state is good for one callback, whatever becomes of it.
func TestCallback_stateOnce(t *testing.T) {
	a := openAbroad(t)
	get := func(query string) landing { t.Helper(); return landed(a.do("GET /callback?"+query, nil)) }
	get("").astray("bad_oauth_callback", "OAuth state parameter missing")
	get("state=x&code=y").astray("bad_oauth_state", "OAuth state parameter is invalid")
	get("state=0f4e6c1a-1f6b-4d0b-8d8e-4a3f2f1b7c55&code=y").astray("bad_oauth_state",
		"OAuth state not found or expired")
	landed(a.do("POST /callback", "state=x",
		header{"Content-Type", "application/x-www-form-urlencoded"})).astray("bad_oauth_state", "*")
	landed(a.do("POST /callback", "%zz",
		header{"Content-Type", "application/x-www-form-urlencoded"})).astray("bad_oauth_callback",
		"OAuth state parameter missing")

	b := a.authorize("provider=github")
	state := b.back.Params().Get("state")
	a.do("HEAD /callback?state="+state, nil, b.cookies...).is(204, "")
	a.do("GET /callback?state="+state+"&code=x", nil, append(b.cookies, header{"Sec-Purpose", "prefetch"})...).is(
		204, "")
	landed(a.do("GET /callback?state="+state, nil, b.cookies...)).out("invalid_request", "bad_oauth_callback",
		"OAuth callback with missing authorization code missing")
	a.callback(b.back, b.cookies...).astray("bad_oauth_state", "OAuth state not found or expired")

	b = a.authorize("provider=github")
	a.pass(5 * time.Minute)
	a.callback(b.back, b.cookies...).astray("bad_oauth_state", "OAuth state has expired")

	// While the database is unreachable nothing is used up, and the browser is answered to retry.
	b = a.authorize("provider=github")
	t.Run("away", func(t *testing.T) {
		lost := openOn(t, storetest.Open(t))
		lost.db.Close()
		u, err := url.Parse(b.back.URL)
		must.Succeed(t, err)
		l := landed(lost.do("GET /callback?"+u.RawQuery, nil))
		if l.StatusCode != 303 || l.query.Get("error") != "temporarily_unavailable" ||
			l.query.Get("error_code") != "unexpected_failure" {
			t.Errorf("%d %s", l.StatusCode, l.Header.Get("Location"))
		}
	})

	// Many at once: one gets in.
	b = a.authorize("provider=github")
	var mu sync.Mutex
	in := 0
	await.Together(8, func(int) {
		if l := a.callback(b.back, b.cookies...); l.fragment.Get("access_token") != "" {
			mu.Lock()
			in++
			mu.Unlock()
		}
	})
	if in != 1 {
		t.Errorf("%d got in", in)
	}
}

// The problem that a redirect carries is logged too, at the level of other answers.
func TestCallback_log(t *testing.T) {
	a := openAbroad(t)
	f := func(level, cause string, b fakeidp.Behaviour) {
		t.Helper()
		a.idp.Behave("keycloak", b)
		before := len(a.log.String())
		a.signIn("provider=keycloak")
		for _, want := range []string{"level=" + level, "route=/callback", cause} {
			if log := a.log.String()[before:]; !strings.Contains(log, want) {
				t.Errorf("no %s in %s", want, log)
			}
		}
	}
	f("INFO", "status=302", fakeidp.Behaviour{})
	f("INFO", "error_code=provider_refused", fakeidp.Behaviour{Deny: true})
	f("WARN", "https://evil.example", fakeidp.Behaviour{ResponseIssuer: "https://evil.example"})
	f("ERROR", "answers 500",
		fakeidp.Behaviour{Answers: map[string]fakeidp.Answer{"/protocol/openid-connect/userinfo": fakeidp.ServerError}})
}

// A callback that another browser began opens no session: an attacker's code in a victim's browser.
func TestCallback_boundToTheBrowser(t *testing.T) {
	a := openAbroad(t)
	got := a.do("GET /authorize?provider=github", nil)
	k := got.Cookies()[0]
	if !strings.HasPrefix(k.Name, "__Host-gatehouse-state-") || !k.HttpOnly ||
		!k.Secure || k.SameSite != http.SameSiteLaxMode || k.Path != "/" || k.MaxAge != 300 || k.Domain != "" {
		t.Errorf("%+v", k)
	}
	const other = "OAuth state was not issued to this browser"
	b := a.authorize("provider=github")
	a.callback(b.back).astray("bad_oauth_state", other)
	a.callback(b.back, b.cookies...).astray("bad_oauth_state", "OAuth state not found or expired")
	victims, attackers := a.authorize("provider=github"), a.authorize("provider=github")
	a.callback(attackers.back, victims.cookies...).astray("bad_oauth_state", other)
	l := a.callback(victims.back, victims.cookies...).in()
	if k := l.Cookies()[0]; k.MaxAge >= 0 || k.Value != "" {
		t.Errorf("the cookie stays: %+v", k)
	}
	// Two flows in one browser don't disturb each other.
	one, two := a.authorize("provider=github"), a.authorize("provider=google")
	both := append(one.cookies, two.cookies...)
	a.callback(one.back, both...).in()
	a.callback(two.back, both...).in()
	// Apple's is a POST from another site.
	k = a.do("GET /authorize?provider=apple", nil).Cookies()[0]
	if k.SameSite != http.SameSiteNoneMode || !k.Secure {
		t.Errorf("%+v", k)
	}
	// By http, which is for development, the name can't promise that.
	a.apply(func(f *flow.Settings, _ *Settings) { f.BaseURL = "http://localhost:9999" })
	k = a.do("GET /authorize?provider=github", nil).Cookies()[0]
	if !strings.HasPrefix(k.Name, "gatehouse-state-") || k.Secure {
		t.Errorf("%+v", k)
	}
	b = a.authorize("provider=github")
	a.callback(b.back, b.cookies...).in()
	// Nor would a client bring a Secure cookie back.
	k = a.do("GET /authorize?provider=apple", nil).Cookies()[0]
	if k.SameSite != 0 || k.Secure {
		t.Errorf("%+v", k)
	}
	a.apply(func(f *flow.Settings, _ *Settings) { f.BaseURL = externalURL })
	// For clients without cookies.
	b = a.authorize("provider=github")
	a.settings(func(s *flow.Settings) { s.External.StateCookie = false })
	a.callback(b.back).astray("bad_oauth_state", other) // begun with one
	b = a.authorize("provider=github")
	if b.cookies != nil {
		t.Errorf("%v", b.cookies)
	}
	a.callback(b.back).in()
}

func TestAuthorize(t *testing.T) {
	a := openAbroad(t)
	f := func(query, msg string) {
		t.Helper()
		a.do("GET /authorize?"+query, nil).refused(400, "validation_failed", msg)
	}
	f("", "Unsupported provider: no provider is named")
	f("provider=none", "Unsupported provider: Provider none could not be found")
	f("provider=github&code_challenge=x", "PKCE flow requires code_challenge_method and code_challenge")
	f("provider=github&code_challenge=x&code_challenge_method=s256",
		"code challenge has to be between 43 and 128 characters")
	f("provider=github&code_challenge="+strings.Repeat("!", 43)+"&code_challenge_method=s256",
		"code challenge can only contain alphanumeric characters, hyphens, periods, underscores and tildes")
	f("provider=github&code_challenge="+challenge+"&code_challenge_method=md5", "Invalid code_challenge_method")
	a.do("GET /authorize?provider=github&invite_token=x&code_challenge=x",
		nil).refused(404, "user_not_found", "User identified by token not found")
	a.client("github", func(c *provider.Client) { c.Enabled = false })
	f("provider=github", "Unsupported provider: provider is not enabled")
	a.client("google", func(c *provider.Client) { c.IDTokenOnly, c.Secret = true, "" })
	f("provider=google", "Unsupported provider: missing OAuth secret")
	if got := a.do("HEAD /authorize?provider=gitlab", nil); got.StatusCode != 405 {
		t.Errorf("HEAD: %d", got.StatusCode)
	}
	a.do("GET /authorize?provider=gitlab", nil, header{"X-JWT-AUD", "other"}).refused(400, "validation_failed", "*")

	// Twitter gets a request first; its failure is reported at once.
	a.idp.Behave("twitter", answers("/oauth/request_token", fakeidp.ServerError))
	a.do("GET /authorize?provider=twitter", nil).refused(500, "unexpected_failure", "*")

	// Only what is the provider's goes there, and a target that is not allowed is the site.
	u, err := url.Parse(
		a.do("GET /authorize?provider=gitlab&prompt=consent&redirect_to=https://evil.example/&scope=all&state=mine&client_id=x&scopes=a,b&nul=%00", nil).Header.Get("Location"))
	must.Succeed(t, err)
	q := u.Query()
	if q.Get("prompt") != "consent" || q.Has("redirect_to") || q.Get("scope") != "read_user a b" ||
		q.Get("client_id") != fakeidp.ClientID || len(q.Get("state")) != 36 {
		t.Errorf("%s", u)
	}
	if l := a.signIn("provider=gitlab&redirect_to=" + url.QueryEscape("https://evil.example/")).in(); l.to != siteURL {
		t.Errorf("led to %s", l.to)
	}
	if l := a.signIn("provider=gitlab&redirect_to=" +
		url.QueryEscape("https://other.example.org/"+strings.Repeat("x", 5000))).in(); l.to != siteURL {
		t.Errorf("led to %s", l.to)
	}
	if l := a.signIn("provider=gitlab",
		header{"Referer", "https://other.example.org/page"}).in(); l.to != "https://other.example.org/page" {
		t.Errorf("led to %s", l.to)
	}
	// An error is encoded once.
	a.idp.SetUser(person("1", ""))
	l := a.signIn("provider=gitlab&redirect_to=" + url.QueryEscape("https://other.example.org/in?x=y#z"))
	if l.out("server_error", "unexpected_failure", "*"); strings.Contains(l.Header.Get("Location"), "%25") ||
		l.query.Get("x") != "y" {
		t.Errorf("%s", l.Header.Get("Location"))
	}
}

// The parameters of a redirect_to never stand next to an answer's: a client library reads the first of a name.
func TestAnswers_alone(t *testing.T) {
	a := openAbroad(t)
	const foreign = "access_token=x&refresh_token=x&expires_in=1&error=x&error_code=x&sb=x&provider_token=x"
	to := url.QueryEscape("https://other.example.org/in?a=1&type=recovery&" + foreign + "#code=x&type=x&" + foreign)
	check := func(doing string, l landing) {
		t.Helper()
		if strings.Contains(l.Header.Get("Location"), "=x") || l.query.Get("a") != "1" ||
			l.query.Get("type") != "recovery" {
			t.Errorf("%s leads to %s", doing, l.Header.Get("Location"))
		}
	}
	a.member("mia@example.org")
	for i, challenge := range []string{"", strings.Repeat("c", 43)} {
		a.pass(time.Hour)
		ask := map[string]any{"email": "mia@example.org"}
		if challenge != "" {
			ask["code_challenge"], ask["code_challenge_method"] = challenge, "plain"
		}
		a.do("POST /recover?redirect_to="+to, ask).is(200, "{}")
		link := a.newest("mia@example.org").Link
		if strings.Contains(link, "%3Dx") {
			t.Errorf("the mail's link is %s", link)
		}
		_, query, _ := strings.Cut(link, "?")
		before, _, _ := strings.Cut(query, "&redirect_to=")
		if before == query {
			t.Fatalf("link %s", link)
		}
		l := landed(a.do("GET /verify?"+before+"&redirect_to="+to, nil)) // as a mail of an older program has it
		check("a link", l)
		if i == 0 && l.fragment.Get("access_token") == "" || i == 1 && l.query.Get("code") == "" {
			t.Errorf("no session: %s", l.Header.Get("Location"))
		}
	}
	check("a dead link", landed(a.do("GET /verify?type=signup&token=pkce_x&redirect_to="+to, nil)))
	check("a provider", a.signIn("provider=github&redirect_to="+to).in())
	check("a provider, with a challenge", a.signIn("provider=github&code_challenge_method=plain&code_challenge="+
		strings.Repeat("c", 43)+"&redirect_to="+to))
}

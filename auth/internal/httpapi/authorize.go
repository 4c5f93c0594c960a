package httpapi

import (
	"net/http"
	"strings"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/oauth"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/jsontext"
)

// getAuthorize redirects a browser to an external provider. Its failures are not redirected to the application, since
// the application's URL has not been verified yet.
func (s *Server) getAuthorize(c *call) error {
	if err := c.noHead(); err != nil {
		return err
	}
	if err := s.limit(c, byAuthorize); err != nil {
		return err
	}
	if err := c.knownAud(); err != nil {
		return err
	}
	return s.startExternal(c, nil)
}

// getLinkAuthorize begins the linking of an identity to the caller's account. It sets no cookie: the client library
// requests the URL with fetch and then navigates by itself, so the browser would not store the cookie.
func (s *Server) getLinkAuthorize(c *call, principal flow.Principal) error {
	if err := c.noHead(); err != nil {
		return err
	}
	return s.startExternal(c, &principal)
}

func (s *Server) startExternal(c *call, linking *flow.Principal) error {
	if strings.IndexByte(c.rawParam("provider"), 0) >= 0 {
		return invalidRequest("provider contains a NUL byte")
	}
	p := oauth.OAuthStart{
		Provider: c.param("provider"), Scopes: c.param("scopes"), InviteToken: c.param("invite_token"),
		Challenge: flow.Challenge{Challenge: c.param("code_challenge"), Method: c.param("code_challenge_method")},
		Linking:   linking,
	}
	p.Params = c.query // the query has been parsed by param
	client := c.requestInfo()
	client.RedirectTo = encodeHeader(client.RedirectTo)
	out, err := s.oauth.StartOAuth(c.ctx(), client, p)
	if err != nil {
		return err
	}
	if linking != nil && c.param("skip_http_redirect") == "true" {
		return c.json(200, append(jsontext.AppendString([]byte(`{"url":`), out.URL), '}'))
	}
	if out.CookieName != "" {
		c.setStateCookie(out)
	}
	return c.redirect(http.StatusFound, out.URL)
}

// noHead refuses a HEAD request for a route whose GET has an effect.
func (c *call) noHead() error {
	if c.r.Method != http.MethodHead {
		return nil
	}
	c.Header()["Allow"] = []string{http.MethodGet}
	return newProblem(405, refusal.CodeMethodNotAllowed, "This path does not know the method HEAD")
}

// secure reports whether browsers reach the daemon by https.
func (c *call) secure() bool { return strings.HasPrefix(c.live.flows.BaseURL, "https://") }

// cookieName returns the name of a cookie, under https with the prefix __Host-: browsers accept such a cookie only from
// this host itself (RFC 6265bis, section 4.1.3.2).
func (c *call) cookieName(name string) string {
	if c.secure() {
		return "__Host-" + name
	}
	return name
}

// setStateCookie marks the browser that begins a sign-in with an external provider, so that no other browser can be
// made to finish it. If the provider's page calls back with a POST, browsers send only a cookie with SameSite=None,
// which must be Secure. Over http, which is for development, browsers drop a Secure cookie. So neither attribute is set
// then; browsers send a cookie without them with a POST for a short time after it was set.
func (c *call) setStateCookie(s oauth.OAuthStarted) {
	k := &http.Cookie{
		Name: c.cookieName(s.CookieName), Value: s.CookieValue, Path: "/", MaxAge: int(s.Life / time.Second),
		HttpOnly: true, Secure: c.secure(), SameSite: http.SameSiteLaxMode,
	}
	switch {
	case s.CrossSite && k.Secure:
		k.SameSite = http.SameSiteNoneMode
	case s.CrossSite:
		k.SameSite = 0 // no attribute SameSite
	}
	http.SetCookie(c.ResponseWriter, k)
}

// takeStateCookie returns the value of a state's cookie, and deletes the cookie, which serves for one callback.
func (c *call) takeStateCookie(state string) string {
	name := c.cookieName(oauth.StateCookie(state))
	k, err := c.r.Cookie(name)
	if err != nil {
		return ""
	}
	http.SetCookie(c.ResponseWriter, &http.Cookie{Name: name, Path: "/", MaxAge: -1, HttpOnly: true,
		Secure: c.secure()})
	return k.Value
}

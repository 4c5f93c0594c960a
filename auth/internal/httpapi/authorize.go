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

// getAuthorize sends a browser to a provider. Its failures do not redirect: no target has been verified yet.
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
// requests the URL with fetch and navigates by itself, so the browser would not send the cookie.
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
	p.Params = c.query // parsed by param
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

// noHead refuses a HEAD where a GET has an effect.
func (c *call) noHead() error {
	if c.r.Method != http.MethodHead {
		return nil
	}
	c.Header()["Allow"] = []string{http.MethodGet}
	return newProblem(405, refusal.CodeMethodNotAllowed, "This path does not know the method HEAD")
}

// secure reports whether browsers use https.
func (c *call) secure() bool { return strings.HasPrefix(c.live.flows.BaseURL, "https://") }

// cookieName adds the prefix __Host- under https: only this host can set such a cookie (RFC 6265bis 4.1.3.2).
func (c *call) cookieName(name string) string {
	if c.secure() {
		return "__Host-" + name
	}
	return name
}

// setStateCookie marks the browser that begins a flow, so that no other browser can be made to finish it. With a POST
// from the provider's page browsers send only a cookie with SameSite=None, which must be Secure. Over http, which is
// for development, browsers drop a Secure cookie, so neither attribute is set: browsers then send the cookie for a
// short time with a POST too.
func (c *call) setStateCookie(s oauth.OAuthStarted) {
	k := &http.Cookie{
		Name: c.cookieName(s.CookieName), Value: s.CookieValue, Path: "/", MaxAge: int(s.Life / time.Second),
		HttpOnly: true, Secure: c.secure(), SameSite: http.SameSiteLaxMode,
	}
	switch {
	case s.CrossSite && k.Secure:
		k.SameSite = http.SameSiteNoneMode
	case s.CrossSite:
		k.SameSite = 0 // no attribute
	}
	http.SetCookie(c.ResponseWriter, k)
}

// takeStateCookie returns the value of a state's cookie and deletes the cookie, which is for one callback.
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

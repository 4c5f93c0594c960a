package httpapi

import (
	"errors"
	"net/http"
	"net/url"

	"gatehouse/auth/internal/account/oauth"
	"gatehouse/auth/internal/account/refusal"
)

// getCallback handles the URL to which an external provider sends the browser back. A HEAD request does not use up the
// state.
func (s *Server) getCallback(c *call) error {
	if c.r.Method == http.MethodHead || looksAhead(c.r) {
		return c.noContent(nil)
	}
	if err := s.limit(c, byCallback); err != nil {
		return err
	}
	return s.callback(c, c.r.URL.Query()) // a parameter that cannot be read counts as missing
}

// postCallback does what getCallback does, for providers that answer with a form (Apple).
func (s *Server) postCallback(c *call) error {
	if err := s.limit(c, byCallback); err != nil {
		return err
	}
	text, err := c.body()
	if err != nil {
		return err
	}
	form, _ := url.ParseQuery(string(text)) // a parameter that cannot be read counts as missing
	return s.callback(c, form)
}

// callback redirects the browser in every case: to the application, with a session, a code or an error. As long as it
// is unknown which sign-in the callback belongs to, it redirects to the site.
func (s *Server) callback(c *call, params url.Values) error {
	for _, values := range params {
		for i := range values {
			values[i] = cleanText(values[i], 8<<10)
		}
	}
	out, err := s.oauth.FinishOAuth(c.ctx(), c.requestInfo(), params, c.takeStateCookie(params.Get("state")))
	if err != nil {
		return c.externalFailed(out.RedirectTo, err)
	}
	c.user = out.User
	if out.Code != "" {
		return c.redirect(http.StatusFound, withQuery(out.RedirectTo, url.Values{"code": {out.Code}}))
	}
	g := out.Grant
	v := grantValues(g)
	v.Set("provider", out.Provider)
	v.Set("provider_token", g.ProviderToken)
	if g.ProviderRefreshToken != "" {
		v.Set("provider_refresh_token", g.ProviderRefreshToken)
	}
	return c.redirect(http.StatusFound, withFragment(out.RedirectTo, v))
}

// externalFailed redirects the browser to a URL of the application, given as to, and reports the failed sign-in in the
// URL's query and fragment. As long as the state is unknown, to is "", and the browser is sent to the site, with the
// failure in the query only.
func (c *call) externalFailed(to string, err error) error {
	v := url.Values{}
	if refused, ok := errors.AsType[*oauth.ProviderRefused](err); ok {
		c.code = "provider_refused"
		v.Set("error", cleanText(refused.Code, 256))
		v.Set("error_description", cleanText(refused.Description, 2048))
		if refused.Description == "" {
			v.Set("error_description", v.Get("error"))
		}
	} else {
		p := c.learn(err)
		c.Header()["X-Sb-Error-Code"] = []string{p.code}
		v.Set("error", externalErrorOf(p))
		v.Set("error_code", p.code)
		v.Set("error_description", p.msg)
	}
	if to == "" {
		return c.redirect(http.StatusSeeOther, withQuery(c.live.flows.SiteURL, v))
	}
	return c.redirect(http.StatusFound, withFragment(withQuery(to, v), v))
}

// externalErrorOf returns the value of the parameter "error" in the redirect after a provider's answer. It is never "".
func externalErrorOf(p *problem) string {
	switch p.code {
	case refusal.CodeSignupDisabled, refusal.CodeUserBanned, refusal.CodeProviderEmailUnverified:
		return "access_denied"
	}
	if e := errorOf[p.status]; e != "" && p.status != http.StatusGatewayTimeout {
		return e
	}
	return "server_error"
}

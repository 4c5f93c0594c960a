package httpapi

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/jsontext"
)

// postVerify redeems a one-time code that a user has typed, or the token of a link.
func (s *Server) postVerify(c *call) error {
	var in flow.Verify
	if err := c.decode(&in); err != nil {
		return err
	}
	v, err := s.accounts.Verify(c.ctx(), c.requestInfo(), in)
	if err != nil {
		return err
	}
	if v.Half || v.Grant == nil {
		return c.json(200, append(jsontext.AppendString([]byte(`{"code":"200","msg":`), flow.HalfMessage), '}'))
	}
	v.Grant.Type = cmp.Or(v.Grant.Type, v.Type)
	return c.grantView(*v.Grant, nil)
}

// getVerify handles the link in a mail: it redeems the link and redirects the browser, or asks for a click first
// (ConfirmPage). A HEAD request, a prefetch or a preview does not use up the link.
func (s *Server) getVerify(c *call) error {
	if c.r.Method == http.MethodHead || looksAhead(c.r) {
		return c.noContent(nil)
	}
	kind, token := c.param("type"), c.param("token")
	if c.live.ConfirmPage && c.badQuery() == nil && token != "" && linkPages[kind][0] != "" {
		return c.confirmPage(kind, token)
	}
	if err := s.limit(c, byVerify); err != nil {
		return err
	}
	if err := c.badQuery(); err != nil {
		return c.redirect(http.StatusSeeOther, failed(c.target(""), c.learn(err), strings.HasPrefix(token, "pkce_")))
	}
	return s.redeemLink(c, c.requestInfo(), kind, token)
}

// redeemLink redeems a link and redirects the browser.
func (s *Server) redeemLink(c *call, client flow.RequestInfo, kind, token string) error {
	if kind == "" {
		return invalidRequest("Verify requires a verification type")
	}
	if token == "" {
		return invalidRequest("Verify requires a token or a token hash")
	}
	pkce := strings.HasPrefix(token, "pkce_")
	v, err := s.accounts.Verify(c.ctx(), client, flow.Verify{Type: kind, TokenHash: token, Link: true})
	switch {
	case err != nil:
		return c.redirect(http.StatusSeeOther, failed(client.RedirectTo, c.learn(err), pkce))
	case v.Half:
		return c.redirect(http.StatusSeeOther, half(client.RedirectTo, pkce))
	case v.Code != "":
		c.user = v.User.ID
		return c.redirect(http.StatusSeeOther, withQuery(client.RedirectTo, url.Values{"code": {v.Code}}))
	}
	c.user = v.Grant.User.ID
	v.Grant.Type = cmp.Or(v.Grant.Type, v.Type)
	return c.redirect(http.StatusSeeOther, granted(client.RedirectTo, v.Grant))
}

// looksAhead reports whether the request's headers say that a browser or scanner fetches the page before a user has
// clicked.
func looksAhead(r *http.Request) bool {
	for _, name := range [...]string{"Purpose", "X-Purpose", "Sec-Purpose", "X-Moz"} {
		for _, v := range r.Header[name] {
			v = strings.ToLower(v)
			if strings.Contains(v, "prefetch") || strings.Contains(v, "preview") {
				return true
			}
		}
	}
	return false
}

// learn converts an error to the problem that a redirect reports, and stores it for the log.
func (c *call) learn(err error) *problem {
	p := c.problemOf(err)
	c.code, c.told = p.code, p.status
	if c.err == nil && (p.status >= 500 || p.err != nil) {
		c.err = p.err
	}
	return p
}

// granted returns the URL in to with the session in its fragment, which browsers do not send to servers.
func granted(to string, g *flow.Grant) string {
	v := grantValues(g)
	v.Set("type", g.Type)
	v.Set("sb", "")
	return withFragment(to, v)
}

// grantValues returns the members of a session as parameters for a fragment.
func grantValues(g *flow.Grant) url.Values {
	return url.Values{
		"access_token": {g.AccessToken}, "token_type": {"bearer"}, "refresh_token": {g.RefreshToken},
		"expires_in": {strconv.Itoa(g.ExpiresIn)}, "expires_at": {strconv.FormatInt(g.ExpiresAt.Unix(), 10)},
	}
}

// errorOf maps statuses to the parameter "error" of a redirect. With another status there is no such parameter.
var errorOf = map[int]string{400: "invalid_request", 401: "unauthorized_client", 403: "access_denied",
	500: "server_error", 503: "temporarily_unavailable", 504: "temporarily_unavailable"}

// failed returns the URL in to with the problem in its fragment and, in a PKCE flow, in its query too.
func failed(to string, p *problem, pkce bool) string {
	v := url.Values{"error_code": {p.code}, "error_description": {p.msg}}
	if p.msg == "" {
		v.Set("error_description", p.code) // the client library recognizes a failure by this parameter
	}
	if e := errorOf[p.status]; e != "" {
		v.Set("error", e)
	}
	return inBoth(to, v, pkce)
}

// half returns the URL in to with the message that the first of the two confirmations of an e-mail change was accepted.
func half(to string, pkce bool) string {
	return inBoth(to, url.Values{"message": {flow.HalfMessage}}, pkce)
}

// inBoth returns the URL in to with the values v in its fragment and, in a PKCE flow, in its query too.
func inBoth(to string, v url.Values, pkce bool) string {
	if pkce {
		to = withQuery(to, v)
	}
	v.Set("sb", "")
	return withFragment(to, v)
}

// withFragment returns the URL in to with the values v as its fragment.
func withFragment(to string, v url.Values) string {
	to, _, _ = strings.Cut(to, "#")
	return to + "#" + v.Encode()
}

// withQuery returns the URL in to with the values v set in its query. The rest of the query and the fragment stay.
func withQuery(to string, v url.Values) string {
	before, fragment, hashed := strings.Cut(to, "#")
	path, query, _ := strings.Cut(before, "?")
	old, _ := url.ParseQuery(query) // parts that cannot be read are left out
	for key := range v {
		old[key] = v[key]
	}
	to = path + "?" + old.Encode()
	if hashed {
		to += "#" + fragment
	}
	return to
}

// redirect redirects the browser to the URL in to, which has been checked before, and keeps the link out of caches and
// out of the Referer of the next page. Characters that a header cannot contain are percent-encoded.
func (c *call) redirect(status int, to string) error {
	h := c.Header()
	h["Location"] = []string{encodeHeader(to)}
	h["Cache-Control"] = noStore
	h["Referrer-Policy"] = []string{"no-referrer"}
	h["Content-Type"] = []string{"text/html; charset=utf-8"}
	c.WriteHeader(status)
	c.ResponseWriter.Write([]byte("<!doctype html><title>Elsewhere</title><p>Please go on to the application.</p>"))
	return nil
}

// encodeHeader percent-encodes spaces, control characters and characters that are not ASCII.
func encodeHeader(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c > ' ' && c < 0x7f {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

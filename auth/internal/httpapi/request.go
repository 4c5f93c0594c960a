package httpapi

import (
	"net/url"
	"strings"
	"unicode/utf8"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/redirect"
)

// ip returns the client's address; "" if it is unknown.
func (c *call) ip() string {
	if !c.ipKnown {
		c.ipText, c.ipKnown = clientIP(&c.live.Settings, c.r), true
	}
	return c.ipText
}

// param returns a query parameter, cleaned by cleanText; "" if it is missing.
func (c *call) param(name string) string { return cleanText(c.rawParam(name), 8<<10) }

// rawParam returns a query parameter as it was sent; "" if it is missing.
func (c *call) rawParam(name string) string {
	if c.r.URL.RawQuery == "" {
		return ""
	}
	c.parseQuery()
	return c.query.Get(name)
}

func (c *call) parseQuery() {
	if c.query == nil {
		c.query, c.queryErr = url.ParseQuery(c.r.URL.RawQuery)
	}
}

// checkQuery refuses a query of which package url would drop a part, because it contains a raw ";" or a malformed
// percent escape. The dropped parameter might restrict what the request does.
func (c *call) checkQuery() error {
	if c.r.URL.RawQuery == "" || c.is(ready|anyQuery) {
		return nil
	}
	c.parseQuery()
	return c.badQuery()
}

func (c *call) badQuery() error {
	if c.queryErr == nil {
		return nil
	}
	return &problem{status: 400, code: refusal.CodeValidationFailed, err: c.queryErr,
		msg: `The query cannot be parsed: ";" is written %3B, and each "%" must begin an escape`}
}

// cleanText makes a text from a client fit for the database: valid UTF-8 without U+0000. It cuts the text to the number
// of bytes in most.
func cleanText(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", "")
	}
	return s
}

// requestInfo returns what flows need to know about the client.
func (c *call) requestInfo() flow.RequestInfo {
	base, unlisted := c.live.baseURL(c.r)
	c.unlisted = unlisted
	network, _ := c.limitKey()
	return flow.RequestInfo{
		IP: c.ip(), Network: network, UserAgent: cleanText(c.r.Header.Get("User-Agent"), 1024), Aud: c.aud(),
		BaseURL: base, RedirectTo: c.target(""), AcceptLanguage: c.acceptLanguage(),
	}
}

// acceptLanguage returns the header Accept-Language; "" for administrators, whose header says nothing about the user.
func (c *call) acceptLanguage() string {
	if c.byAdmin {
		return ""
	}
	return c.r.Header.Get("Accept-Language")
}

// aud returns the audience that the header X-JWT-AUD names; "" if the header is missing.
func (c *call) aud() string { return cleanText(c.r.Header.Get("X-Jwt-Aud"), 255) }

// target returns where a link leads in the end: the first allowed URL among body (the target in the request's body),
// the query's redirect_to, the Referer and the site's URL. Parameters that only an answer may have are removed from it.
func (c *call) target(body string) string {
	l := c.live
	for _, t := range [...]string{body, c.rawParam("redirect_to")} {
		switch {
		case t == "":
		case l.Redirects.Allowed(t):
			return redirect.Clean(t)
		default:
			c.srv.logRefused(c, t)
		}
	}
	if t := c.r.Header.Get("Referer"); t != "" && l.Redirects.Allowed(t) {
		return redirect.Clean(t)
	}
	return l.flows.SiteURL
}

// bearer returns the token in the Authorization header; "" if the header is missing or has another form.
func (c *call) bearer() string {
	h := c.r.Header["Authorization"]
	if len(h) == 0 {
		return ""
	}
	const scheme = "bearer "
	if len(h[0]) <= len(scheme) || !strings.EqualFold(h[0][:len(scheme)], scheme) {
		return ""
	}
	token := h[0][len(scheme):]
	if strings.ContainsAny(token, " \t") {
		return ""
	}
	return token
}

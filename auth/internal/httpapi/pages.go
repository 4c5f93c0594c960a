package httpapi

import (
	"math"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/pages"
)

// mostForm is the maximum length of the body of POST /verify/confirm in bytes.
const mostForm = 16 << 10

// linkPages has, for each type of link in a mail, the keys of the texts on the confirmation page: the heading and the
// button of the mail.
var linkPages = map[string][2]string{
	"signup":       {"mails.confirmation.heading", "mails.confirmation.button"},
	"invite":       {"mails.invite.heading", "mails.invite.button"},
	"recovery":     {"mails.recovery.heading", "mails.recovery.button"},
	"magiclink":    {"mails.magic_link.heading", "mails.magic_link.button"},
	"email":        {"mails.magic_link.heading", "mails.magic_link.button"},
	"email_change": {"pages.change_heading", "pages.change_button"},
}

// confirmPage shows a page that asks for a click before a link is used up, since mail filters open links. It does not
// query the database. The form's target is relative, so that it works below every host and prefix.
func (c *call) confirmPage(kind, token string) error {
	texts, lang := linkPages[kind], c.live.Look.Language(c.r.Header.Get("Accept-Language"))
	p := pages.Page{
		Heading: texts[0], Text: "pages.confirm", Button: texts[1], Action: "verify/confirm",
		Device: strings.HasPrefix(token, "pkce_"),
		Fields: [][2]string{{"type", kind}, {"token", token}, {"redirect_to", c.target("")}},
	}
	if c.slash {
		p.Action = "confirm"
	}
	c.live.Look.Write(c, http.StatusOK, lang, p)
	return nil
}

// postConfirm redeems the link for which getVerify has shown a page. It needs no protection against forged requests: a
// page of another site that knew the token could also open the link.
func (s *Server) postConfirm(c *call) error {
	if !c.live.ConfirmPage {
		return errNotFound
	}
	// Read before the limit is checked, since the form says where the page about a refusal links to.
	form, unread := c.form()
	c.back = c.target(form.Get("redirect_to"))
	if err := s.limit(c, byVerify); err != nil {
		return err
	}
	if unread != nil {
		return unread
	}
	client := c.requestInfo()
	client.RedirectTo = c.back
	return s.redeemLink(c, client, cleanText(form.Get("type"), 8<<10), cleanText(form.Get("token"), 8<<10))
}

// form reads a body that is an HTML form. It refuses a body of more than mostForm bytes.
func (c *call) form() (url.Values, error) {
	kind, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if err != nil || kind != "application/x-www-form-urlencoded" {
		return nil, invalidRequest("The body must be a form, application/x-www-form-urlencoded")
	}
	if c.r.ContentLength > mostForm {
		c.Header()["Connection"] = []string{"close"} // do not read the rest of the body
		return nil, invalidRequest("The form has more than 16 KiB")
	}
	c.r.Body = http.MaxBytesReader(c.ResponseWriter, c.r.Body, mostForm)
	text, err := c.body()
	if p, ok := err.(*problem); ok && p.status != problemTimeout.status {
		return nil, invalidRequest("The form has more than 16 KiB or cannot be read")
	}
	if err != nil {
		return nil, err
	}
	form, err := url.ParseQuery(string(text))
	if err != nil {
		return nil, invalidRequest("The form cannot be parsed")
	}
	return form, nil
}

// prefersHTML reports whether an Accept header names HTML. If it names JSON too, HTML must be preferred.
func prefersHTML(accept []string) bool {
	html, json := 0.0, 0.0
	for part := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		name, params, _ := strings.Cut(part, ";")
		weight := 1.0
		for param := range strings.SplitSeq(params, ";") {
			key, value, _ := strings.Cut(param, "=")
			if strings.EqualFold(strings.TrimSpace(key), "q") {
				var err error
				if weight, err = strconv.ParseFloat(strings.TrimSpace(value), 64); err != nil || !(weight >= 0 && weight <= 1) {
					weight = 0
				}
			}
		}
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "text/html":
			html = max(html, weight)
		case "application/json":
			json = max(json, weight)
		}
	}
	return html > json
}

// errorPage answers a browser with a page about a problem. Status and headers are the same as for programs. The page
// does not repeat any text of the request or of a provider.
func (c *call) errorPage(p *problem) {
	text := "pages.failed"
	switch {
	case p.code == refusal.CodeOverRequestRate:
		text = "pages.limited"
	case p.status >= 500:
		text = "pages.broken"
	case p.status == 400 || p.status == 404 || p.status == 405 || p.status == 422:
		text = "pages.unavailable"
	}
	back := c.back
	if back == "" {
		back = c.target("")
	}
	if u, err := url.Parse(back); err != nil || u.Scheme != "https" && u.Scheme != "http" {
		back = c.live.flows.SiteURL
	}
	lang := c.live.Look.Language(c.r.Header.Get("Accept-Language"))
	minutes := time.Duration(max(1, math.Ceil(p.retryAfter.Minutes()))) * time.Minute
	c.live.Look.Write(c, p.status, lang, pages.Page{
		Heading: text, Text: text + "_advice", Back: back, Details: "pages.details",
		Variables: map[string]any{"Wait": lang.Duration(minutes), "Code": p.code, "RequestID": c.id},
	})
}

// Package pages renders the pages that a browser shows on the way from a mail or an external provider to the
// application: the confirmation of a link, and errors. All pages share one template without scripts, with the languages
// and the look of mails.
//
// It knows neither requests nor accounts.
package pages

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the template
	"encoding/base64"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"gatehouse/auth/internal/locale"
	"gatehouse/auth/internal/mail"
)

//go:embed page.html
var source string

//go:embed page.css
var styles string

var parsed = sync.OnceValue(func() *template.Template { return template.Must(template.New("page").Parse(source)) })

// Look holds the look and the languages of pages. It may be used by many goroutines.
type Look struct {
	site      mail.Site
	languages *locale.Catalog
	style     template.CSS
	csp       []string
}

// NewLook returns the Look of a site, whose colors must have been checked.
func NewLook(site mail.Site, languages *locale.Catalog) *Look {
	style := strings.NewReplacer("COLOR", site.Color, "CONTRAST", mail.Contrasting(site.Color)).Replace(styles)
	sum := sha256.Sum256([]byte(style))
	images := "'none'"
	if u, err := url.Parse(site.LogoURL); err == nil && u.Host != "" {
		images = u.Scheme + "://" + u.Host
	}
	// The policy has no form-action: Chromium would apply it to the redirect after the form, which leads to the
	// application.
	csp := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; img-src " + images +
		"; base-uri 'none'; frame-ancestors 'none'"
	return &Look{site: site, languages: languages, style: template.CSS(style), csp: []string{csp}}
}

// Page is the content of a page. Heading, Text, Button and Details are keys of texts in the strings files.
type Page struct {
	Heading, Text string
	// Device adds the sentence that the link must be opened in the browser that requested it.
	Device bool
	// Button is the text of the button of a form that posts Fields to Action; "": the page has no form.
	Button, Action string
	Fields         [][2]string
	// Back is the URL of the application, to which the page links; "": the page has no link.
	Back string
	// Details is shown in small print. Its text may contain Variables.
	Details   string
	Variables map[string]any
}

// Language returns the language of a page for a client with this Accept-Language header.
func (l *Look) Language(accept string) *locale.Language {
	return l.languages.Choose(l.languages.Candidates(nil, accept)...)
}

// Write answers a request with a page.
func (l *Look) Write(w http.ResponseWriter, status int, lang *locale.Language, p Page) {
	vars := map[string]any{"SiteName": l.site.Name, "Support": l.site.Support}
	for name, value := range p.Variables {
		vars[name] = value
	}
	say := func(key string) string {
		if key == "" {
			return ""
		}
		text, _ := lang.Text(key, vars) // errors in texts were reported when the texts were loaded
		return text
	}
	data := map[string]any{
		"Style": l.style, "Lang": lang.Tag, "Dir": lang.Dir(), "Site": l.site, "Page": p,
		"Heading": say(p.Heading), "Text": say(p.Text), "Button": say(p.Button), "Details": say(p.Details),
	}
	if p.Device {
		data["Device"] = say("common.device")
	}
	if p.Back != "" {
		data["Back"] = say("pages.back")
	}
	if l.site.Support != "" {
		data["Support"], data["SupportURL"] = say("common.support"), l.site.SupportURL()
	}
	var out bytes.Buffer
	if err := parsed().Execute(&out, data); err != nil {
		panic(err) // cannot fail: the template is part of the program
	}
	h := w.Header()
	h["Content-Security-Policy"] = l.csp
	h["Content-Type"] = []string{"text/html; charset=utf-8"}
	h["Content-Language"] = []string{lang.Tag}
	h["Cache-Control"] = []string{"no-store"}
	h["Referrer-Policy"] = []string{"no-referrer"}
	h["X-Robots-Tag"] = []string{"noindex"}
	h["Vary"] = append(h["Vary"], "Accept, Accept-Language")
	w.WriteHeader(status)
	w.Write(out.Bytes()) // an error means that the client has gone
}

package fakeidp

import (
	"html"
	"html/template"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

var page = template.Must(template.New("").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Local fake provider</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:26rem;margin:4rem auto;padding:0 1rem}
button,input{font:inherit;width:100%;box-sizing:border-box;padding:.6rem;margin:.2rem 0}label{display:block}small{color:#666}</style>
<h1>Sign in as &hellip;</h1>
<p><small>This is the local fake provider, speaking {{.Dialect}}. Nothing here is real, and no password is asked.</small></p>
{{range .People}}<form><input type="hidden" name="-as" value="{{.ID}}">{{template "q" $.Query}}
<button>{{.Name}} &lt;{{.Email}}&gt;{{if not .Verified}} (address not proven){{end}}</button></form>
{{end}}<form>{{template "q" .Query}}<label>somebody else <input name="-email" type="email" placeholder="carol@example.org" required></label><button>Sign in</button></form>
<form><input type="hidden" name="-as" value="-">{{template "q" .Query}}<button>Refuse</button></form>
{{define "q"}}{{range $name, $v := .}}<input type="hidden" name="{{$name}}" value="{{$v}}">{{end}}{{end}}`))

// choose returns the user who signs in. If the provider is interactive and the request names no user yet, choose sends
// a page on which a user is chosen, and ok is false. A user without ID means that the user refuses.
func (x *exchange) choose() (u User, ok bool) {
	if !x.interactive {
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.user, true
	}
	q := x.r.URL.Query()
	if email := q.Get("-email"); email != "" {
		name, _, _ := strings.Cut(email, "@")
		return User{ID: idOf(email), Login: name, Name: name, GivenName: name, Email: email, Verified: true}, true
	}
	as := q.Get("-as")
	for _, p := range x.people {
		if p.ID == as {
			return p, true
		}
	}
	if as == "-" {
		return User{}, true
	}
	query := map[string]string{}
	for name, values := range q {
		if !strings.HasPrefix(name, "-") {
			query[name] = values[0]
		}
	}
	x.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	x.w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	page.Execute(x.w, map[string]any{"Dialect": x.name, "People": x.people, "Query": query})
	return User{}, false
}

// idOf returns a number made from an email address, the same each time.
func idOf(email string) string {
	n := uint32(2166136261) // FNV-1a
	for _, c := range []byte(strings.ToLower(email)) {
		n = (n ^ uint32(c)) * 16777619
	}
	const digits = "0123456789"
	var out []byte
	for i := 0; i < 10; i++ {
		out = append(out, digits[n%10])
		n /= 10
	}
	return "9" + string(out)
}

// writeForm writes the page for response_mode=form_post. The page posts the values in form to the URL in action without
// a click.
func writeForm(w http.ResponseWriter, action string, form url.Values) {
	var b strings.Builder
	b.WriteString(
		`<!doctype html><title>Back</title><body onload="document.forms[0].submit()"><form method="post" action="` +
			html.EscapeString(action) + `">`)
	for name, values := range form {
		b.WriteString(`<input type="hidden" name="` + html.EscapeString(name) +
			`" value="` + html.EscapeString(values[0]) + `">`)
	}
	b.WriteString(`<noscript><button>Continue</button></noscript></form>`)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	io.WriteString(w, b.String())
}

var (
	formAction = regexp.MustCompile(`<form method="post" action="([^"]*)">`)
	formInput  = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)
)

// readForm returns what the browser would post from the page that writeForm writes.
func readForm(resp *http.Response) (Callback, error) {
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return Callback{}, err
	}
	action := formAction.FindSubmatch(body)
	if action == nil {
		return Callback{}, errNoForm
	}
	c := Callback{URL: html.UnescapeString(string(action[1])), Form: url.Values{}}
	for _, m := range formInput.FindAllSubmatch(body, -1) {
		c.Form.Set(html.UnescapeString(string(m[1])), html.UnescapeString(string(m[2])))
	}
	return c, nil
}

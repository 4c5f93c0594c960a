package fakeidp

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// This file serves OAuth 1.0a (RFC 5849) as Twitter does. It checks requests without the code of the auth daemon.

func (x *exchange) serveOAuth1() {
	switch x.path {
	case "/oauth/request_token":
		p := x.signedWith("", "")
		if p == nil {
			return
		}
		back, err := url.Parse(p["oauth_callback"])
		if err != nil || back.Host == "" {
			x.wrong(http.StatusBadRequest, "invalid_request", "oauth_callback is no address")
			return
		}
		g := &grant{dialect: x.name, redirect: p["oauth_callback"], token: random(), tokenSecret: random() + "/&"}
		x.mu.Lock()
		x.codes[g.token] = g
		x.mu.Unlock()
		x.form(url.Values{"oauth_token": {g.token}, "oauth_token_secret": {g.tokenSecret},
			"oauth_callback_confirmed": {"true"}})
	case "/oauth/authenticate":
		x.mu.Lock()
		g := x.codes[x.r.URL.Query().Get("oauth_token")]
		x.mu.Unlock()
		if g == nil || len(x.r.URL.Query()) != 1 && !x.interactive {
			x.wrong(http.StatusBadRequest, "invalid_request", "oauth_token is unknown, or not alone")
			return
		}
		user, ok := x.choose()
		if !ok {
			return
		}
		back, _ := url.Parse(g.redirect)
		q := back.Query()
		if x.b.Deny || user.ID == "" {
			q.Set("denied", g.token)
		} else {
			x.mu.Lock()
			g.user, g.challenge = user, random() // g.challenge is the verifier in OAuth 1.0a
			x.mu.Unlock()
			q.Set("oauth_token", g.token)
			q.Set("oauth_verifier", g.challenge)
		}
		back.RawQuery = q.Encode()
		http.Redirect(x.w, x.r, back.String(), http.StatusFound)
	case "/oauth/access_token":
		g := x.byOAuthToken(x.codes)
		if g == nil {
			return
		}
		p := x.signedWith(g.token, g.tokenSecret)
		if p == nil {
			return
		}
		x.mu.Lock()
		used := g.used
		g.used = true
		x.mu.Unlock()
		if used || g.challenge == "" || p["oauth_verifier"] != g.challenge {
			x.wrong(http.StatusUnauthorized, "invalid_grant", "the verifier is wrong, or comes a second time")
			return
		}
		a := &grant{dialect: x.name, user: g.user, token: random(), tokenSecret: random() + "+"}
		x.mu.Lock()
		x.access[a.token] = a
		x.mu.Unlock()
		x.form(url.Values{"oauth_token": {a.token}, "oauth_token_secret": {a.tokenSecret}, "user_id": {g.user.ID},
			"screen_name": {g.user.Login}})
	default:
		page := x.pages[x.path]
		if page == nil {
			http.NotFound(x.w, x.r)
			return
		}
		g := x.byOAuthToken(x.access)
		if g == nil || x.signedWith(g.token, g.tokenSecret) == nil {
			return
		}
		x.answerPage(page(x, g.user))
	}
}

func (x *exchange) form(v url.Values) {
	x.w.Header().Set("Content-Type", "text/html; charset=utf-8") // as Twitter does
	x.w.Write([]byte(v.Encode()))
}

// protocol returns the parameters in the Authorization header.
func (x *exchange) protocol() map[string]string {
	text, ok := strings.CutPrefix(x.r.Header.Get("Authorization"), "OAuth ")
	if !ok {
		return nil
	}
	p := map[string]string{}
	for _, part := range strings.Split(text, ", ") {
		name, value, _ := strings.Cut(part, "=")
		p[name], _ = url.PathUnescape(strings.Trim(value, `"`))
	}
	return p
}

func (x *exchange) byOAuthToken(in map[string]*grant) *grant {
	x.mu.Lock()
	g := in[x.protocol()["oauth_token"]]
	x.mu.Unlock()
	if g == nil || g.dialect != x.name {
		x.wrong(http.StatusUnauthorized, "invalid_token", "oauth_token is unknown")
		return nil
	}
	return g
}

// signedWith checks the signature of a request and returns the parameters of its Authorization header. If the signature
// is wrong, it responds with an error and returns nil.
func (x *exchange) signedWith(token, secret string) map[string]string {
	p := x.protocol()
	seconds, _ := strconv.ParseInt(p["oauth_timestamp"], 10, 64)
	age := time.Since(time.Unix(seconds, 0)).Abs()
	if x.r.Method != http.MethodGet || p["oauth_consumer_key"] != ClientID ||
		p["oauth_token"] != token || p["oauth_nonce"] == "" ||
		p["oauth_signature_method"] != "HMAC-SHA1" || age > 5*time.Minute {
		x.wrong(http.StatusUnauthorized, "invalid_request", "the protocol parameters are wrong")
		return nil
	}
	enc := func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
	var list []string
	for name, value := range p {
		if name != "oauth_signature" {
			list = append(list, enc(name)+"="+enc(value))
		}
	}
	for name, values := range x.r.URL.Query() {
		for _, value := range values {
			list = append(list, enc(name)+"="+enc(value))
		}
	}
	slices.Sort(list)
	mac := hmac.New(sha1.New, []byte(enc(ClientSecret)+"&"+enc(secret)))
	mac.Write([]byte("GET&" + enc(x.Base(x.name)+x.path) + "&" + enc(strings.Join(list, "&"))))
	if p["oauth_signature"] != base64.StdEncoding.EncodeToString(mac.Sum(nil)) {
		x.wrong(http.StatusUnauthorized, "invalid_signature", "the signature is wrong")
		return nil
	}
	return p
}

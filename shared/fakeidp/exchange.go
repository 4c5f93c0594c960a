package fakeidp

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// exchange is one HTTP request to a dialect, with its response.
type exchange struct {
	*Server
	dialect
	name, path string
	w          http.ResponseWriter
	r          *http.Request
	b          Behaviour
	grant      *grant // the grant of the access token, in a request to a profile endpoint
}

func (x *exchange) serve() {
	kind := x.path
	switch {
	case slices.Contains(x.token, x.path):
		kind = "token"
	case x.path == x.discovery && x.discovery != "":
		kind = "discovery"
	case x.path == x.keys && x.keys != "":
		kind = "keys"
	}
	for _, name := range []string{x.path, kind} {
		if a, ok := x.b.Answers[name]; ok {
			a.write(x.w, x.r)
			return
		}
	}
	page := x.pages[x.path]
	switch {
	case x.name == "twitter":
		x.serveOAuth1()
	case slices.Contains(x.authorize, x.path):
		x.serveAuthorize()
	case kind == "token":
		x.serveToken()
	case kind == "discovery":
		x.answer(http.StatusOK, x.document())
	case kind == "keys":
		x.answer(http.StatusOK, x.ring.set())
	case page != nil:
		x.servePage(page)
	default:
		x.complain(x.name, "%s %s: no such path", x.r.Method, x.path)
		http.NotFound(x.w, x.r)
	}
}

func (x *exchange) answer(status int, v any) {
	x.w.Header().Set("Content-Type", "application/json; charset=utf-8")
	x.w.Header().Set("Cache-Control", "no-store")
	x.w.WriteHeader(status)
	json.NewEncoder(x.w).Encode(v)
}

// wrong responds with an error that the client has made, and records it as a complaint.
func (x *exchange) wrong(status int, code, why string) {
	x.complain(x.name, "%s: %s", x.path, why)
	x.w.Header().Set("X-Complaint", why)
	x.answer(status, map[string]any{"error": code, "error_description": why})
}

func (x *exchange) issuer() string { return x.Base(x.name) + x.dialect.issuer }

func (x *exchange) document() map[string]any {
	base := x.Base(x.name)
	d := map[string]any{
		"issuer": x.issuer(), "jwks_uri": base + x.keys, "id_token_signing_alg_values_supported": x.algs,
		"authorization_endpoint": base + x.authorize[0], "token_endpoint": base + x.token[0],
		"response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"},
	}
	if x.pages["/userinfo"] != nil {
		d["userinfo_endpoint"] = base + "/userinfo"
	}
	if x.pkce {
		d["code_challenge_methods_supported"] = []string{"plain", "S256"}
	}
	if x.sendIss {
		d["authorization_response_iss_parameter_supported"] = true
	}
	if !x.basic {
		d["token_endpoint_auth_methods_supported"] = []string{"client_secret_post"}
	}
	if x.b.Discovery != nil {
		x.b.Discovery(d)
	}
	return d
}

// serveAuthorize serves the authorize endpoint, to which the client sends the user's browser.
func (x *exchange) serveAuthorize() {
	q := x.r.URL.Query()
	redirect, err := url.Parse(q.Get("redirect_uri"))
	switch {
	case err != nil || redirect.Host == "":
		x.wrong(http.StatusBadRequest, "invalid_request", "redirect_uri is no address")
		return
	case q.Get("client_id") != ClientID:
		x.wrong(http.StatusBadRequest, "invalid_client", "client_id is unknown")
		return
	case q.Get("response_type") != "code" || q.Get("state") == "":
		x.wrong(http.StatusBadRequest, "invalid_request", "response_type is not code, or state is missing")
		return
	case x.pkce && (q.Get("code_challenge_method") != "S256" || len(q.Get("code_challenge")) != 43):
		x.wrong(http.StatusBadRequest, "invalid_request", "an S256 code_challenge is missing")
		return
	case !x.pkce && q.Has("code_challenge"):
		x.wrong(http.StatusBadRequest, "invalid_request", "code_challenge is not a parameter of this provider")
		return
	}
	for name, values := range q {
		if len(values) > 1 {
			x.wrong(http.StatusBadRequest, "invalid_request", name+" is given twice")
			return
		}
	}
	if x.check != nil {
		if why := x.check(x); why != "" {
			x.wrong(http.StatusBadRequest, "invalid_request", why)
			return
		}
	}
	user, ok := x.choose()
	if !ok {
		return // choose has sent a page on which the user is chosen
	}
	form := url.Values{"state": {q.Get("state")}}
	if x.b.Deny || user.ID == "" {
		form.Set("error", "access_denied")
		form.Set("error_description", "The user said no")
	} else {
		code := random()
		x.mu.Lock()
		x.codes[code] = &grant{
			dialect: x.name, clientID: q.Get("client_id"), redirect: q.Get("redirect_uri"), nonce: q.Get("nonce"),
			challenge: q.Get("code_challenge"),
			scopes:    strings.Fields(q.Get("scope")), user: user, old: x.path != x.authorize[0],
		}
		first := !x.seen[x.name+" "+user.ID]
		x.seen[x.name+" "+user.ID] = true
		x.mu.Unlock()
		form.Set("code", code)
		if x.name == "apple" && first {
			text, _ := json.Marshal(map[string]any{"name": map[string]any{"firstName": user.GivenName,
				"lastName": user.FamilyName}, "email": "anything@attacker.example"})
			form.Set("user", string(text))
		}
	}
	switch {
	case x.b.ResponseIssuer == "-":
	case x.b.ResponseIssuer != "":
		form.Set("iss", x.b.ResponseIssuer)
	case x.sendIss:
		form.Set("iss", x.issuer())
	}
	if q.Get("response_mode") == "form_post" {
		writeForm(x.w, redirect.String(), form)
		return
	}
	back := redirect.Query()
	for name, values := range form {
		back[name] = values
	}
	redirect.RawQuery = back.Encode()
	http.Redirect(x.w, x.r, redirect.String(), http.StatusFound)
}

// clientKnown reports whether a token request is from the client that the provider knows, authenticated in the way that
// the dialect requires. If it is not, clientKnown has responded with an error.
func (x *exchange) clientKnown() bool {
	f := x.r.PostForm
	id, secret, hasBasic := x.r.BasicAuth()
	if hasBasic {
		id, _ = url.QueryUnescape(id)
		secret, _ = url.QueryUnescape(secret)
	}
	switch {
	case hasBasic != x.basic:
		x.wrong(http.StatusUnauthorized, "invalid_client", "the client authenticates in the wrong style")
		return false
	case hasBasic && (f.Has("client_id") || f.Has("client_secret")):
		x.wrong(http.StatusUnauthorized, "invalid_client", "the client authenticates in two styles at once")
		return false
	case !hasBasic:
		id, secret = f.Get("client_id"), f.Get("client_secret")
	}
	if id != ClientID || secret != ClientSecret || x.name == "apple" && f.Get("secret") != ClientSecret {
		x.wrong(http.StatusUnauthorized, "invalid_client", "id or secret of the client is wrong")
		return false
	}
	return true
}

// serveToken serves the token endpoint, at which a client exchanges a code, once, for tokens.
func (x *exchange) serveToken() {
	f := x.r.PostForm
	if x.r.Method != http.MethodPost || x.r.URL.RawQuery != "" {
		x.wrong(http.StatusBadRequest, "invalid_request", "not a POST without a query")
		return
	}
	if !x.clientKnown() {
		return
	}
	if f.Get("grant_type") != "authorization_code" {
		x.wrong(http.StatusBadRequest, "unsupported_grant_type", "grant_type is not authorization_code")
		return
	}
	g := x.redeem()
	if g == nil {
		return
	}
	access := random()
	x.mu.Lock()
	x.access[access] = g
	x.mu.Unlock()
	answer := map[string]any{"access_token": access, "token_type": "bearer", "expires_in": 3600,
		"refresh_token": "refresh-" + g.user.ID}
	if x.keys != "" && !x.b.NoIDToken && (x.idToken == nil || x.idToken(g)) {
		answer["id_token"] = x.mint(g.user, map[string]any{"nonce": g.nonce}, access, x.b)
	}
	if x.more != nil {
		x.more(x, g.user, answer)
	}
	if x.b.Token != nil {
		x.b.Token(answer)
	}
	if x.b.FormToken || x.name == "github" && x.r.Header.Get("Accept") != "application/json" {
		form := url.Values{}
		for name, v := range answer {
			if s, ok := v.(string); ok {
				form.Set(name, s)
			}
		}
		x.w.Header().Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
		x.w.Write([]byte(form.Encode()))
		return
	}
	x.answer(http.StatusOK, answer)
}

// redeem returns the grant for which the request's code was issued, and makes the code invalid. If the code is not
// acceptable, it responds with an error and returns nil.
func (x *exchange) redeem() *grant {
	f := x.r.PostForm
	x.mu.Lock()
	g := x.codes[f.Get("code")]
	used := g != nil && g.used
	if g != nil {
		g.used = true
	}
	x.mu.Unlock()
	sum := sha256.Sum256([]byte(f.Get("code_verifier")))
	switch {
	case g == nil || g.dialect != x.name:
		x.wrong(http.StatusBadRequest, "invalid_grant", "the code is unknown")
		return nil
	case used:
		x.wrong(http.StatusBadRequest, "invalid_grant", "the code comes a second time")
		return nil
	case f.Get("redirect_uri") != g.redirect:
		x.wrong(http.StatusBadRequest, "invalid_grant", "redirect_uri is another than before")
		return nil
	case g.challenge != "" && base64.RawURLEncoding.EncodeToString(sum[:]) != g.challenge:
		x.wrong(http.StatusBadRequest, "invalid_grant", "code_verifier does not fit")
		return nil
	case g.challenge == "" && f.Has("code_verifier"):
		x.wrong(http.StatusBadRequest, "invalid_grant", "code_verifier without a challenge")
		return nil
	}
	return g
}

// mint returns an ID token for a user. claims override the usual claims; a claim that is nil or "" is removed. b says
// how the token deviates from a correct one.
func (x *exchange) mint(u User, claims map[string]any, access string, b Behaviour) string {
	alg := b.Alg
	if alg == "" {
		alg = x.algs[0]
	}
	now := time.Now()
	c := map[string]any{
		"iss": x.issuer(), "aud": ClientID, "sub": u.ID, "iat": now.Unix(), "exp": now.Add(10 * time.Minute).Unix(),
		"email": u.Email, "email_verified": u.Verified, "name": u.Name, "picture": u.Picture,
		"given_name": u.GivenName, "family_name": u.FamilyName,
	}
	if access != "" {
		c["at_hash"] = accessHash(alg, access)
	}
	maps.Copy(c, claims)
	if x.claims != nil {
		x.claims(u, c)
	}
	maps.Copy(c, u.Extra)
	if b.Claims != nil {
		b.Claims(c)
	}
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil || v == "" })
	return x.ring.sign(alg, c, b.Header, b.Forged)
}

// IDToken returns an ID token of a dialect for a user, as an application on a phone gets it from the provider's native
// sign-in. claims override the usual claims. The Behaviour of the dialect applies.
func (s *Server) IDToken(dialect string, u User, claims map[string]any) string {
	x := &exchange{Server: s, dialect: dialects[dialect], name: dialect}
	return x.mint(u, claims, "", s.behaves(dialect))
}

// AccessHash returns the claim at_hash for an access token, as ID tokens signed with alg have it.
func AccessHash(alg, access string) string { return accessHash(alg, access) }

func (x *exchange) bearer() string {
	token, _ := strings.CutPrefix(x.r.Header.Get("Authorization"), "Bearer ")
	return token
}

// servePage serves a profile endpoint.
func (x *exchange) servePage(page func(*exchange, User) any) {
	x.mu.Lock()
	x.grant = x.access[x.bearer()]
	x.mu.Unlock()
	if x.r.Method != http.MethodGet || x.grant == nil || x.grant.dialect != x.name {
		x.wrong(http.StatusUnauthorized, "invalid_token", "not a GET with an access token of this provider")
		return
	}
	x.answerPage(page(x, x.grant.user))
}

func (x *exchange) answerPage(v any) {
	if r, ok := v.(refusal); ok {
		x.answer(http.StatusBadRequest, map[string]any{"error": "invalid_request", "error_description": r.text})
		return
	}
	x.answer(http.StatusOK, v)
}

// proof returns the parameter appsecret_proof that Facebook requires with an access token.
func proof(access string) string {
	mac := hmac.New(sha256.New, []byte(ClientSecret))
	mac.Write([]byte(access))
	return hex.EncodeToString(mac.Sum(nil))
}

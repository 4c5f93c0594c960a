package fakeidp

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"gatehouse/shared/must"
)

func start(t *testing.T, o Options) *Server {
	t.Helper()
	s, err := Start(o)
	must.Succeed(t, err)
	t.Cleanup(s.Close)
	return s
}

const back = "http://client.test/callback"

// code is a fresh one of github's, with the verifier that belongs to it.
func code(t *testing.T, s *Server) (string, string) {
	t.Helper()
	const verifier, challenge = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
		"E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM" // RFC 7636 appendix B
	c, err := s.Visit(t.Context(),
		s.Base("github")+"/login/oauth/authorize?"+url.Values{"client_id": {ClientID}, "redirect_uri": {back},
			"response_type": {"code"},
			"state":         {"s"}, "code_challenge": {challenge}, "code_challenge_method": {"S256"}}.Encode())
	if err != nil || c.Params().Get("code") == "" || c.Params().Get("state") != "s" ||
		!strings.HasPrefix(c.URL, back+"?") {
		t.Fatalf("%+v %v", c, err)
	}
	return c.Params().Get("code"), verifier
}

func post(t *testing.T, address string, form url.Values, basic bool) (int, map[string]any) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader(form.Encode()))
	must.Succeed(t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Accept", "application/json")
	if basic {
		r.SetBasicAuth(url.QueryEscape(ClientID), url.QueryEscape(ClientSecret))
	}
	resp, err := http.DefaultClient.Do(r)
	must.Succeed(t, err)
	defer resp.Body.Close()
	var answer map[string]any
	must.Succeed(t, json.NewDecoder(resp.Body).Decode(&answer))
	return resp.StatusCode, answer
}

// TestStrict: what a client must not do is refused and remembered. Else tests of clients would prove little.
func TestStrict(t *testing.T) {
	s := start(t, Options{})
	at := s.Base("github") + "/login/oauth/access_token"
	good := func() url.Values {
		c, v := code(t, s)
		return url.Values{"grant_type": {"authorization_code"}, "code": {c}, "code_verifier": {v},
			"redirect_uri": {back},
			"client_id":    {ClientID}, "client_secret": {ClientSecret}}
	}
	form := good()
	if status, answer := post(t, at, form, false); status != 200 || answer["access_token"] == "" ||
		s.Complaints("github") != nil {
		t.Fatalf("%d %v %v", status, answer, s.Complaints("github"))
	}
	f := func(what, want string, status int, change func(url.Values), basic bool) {
		t.Helper()
		s.Reset()
		form := good()
		change(form)
		got, answer := post(t, at, form, basic)
		if c := s.Complaints("github"); got != status || answer["access_token"] != nil ||
			len(c) != 1 || !strings.Contains(c[0], want) {
			t.Errorf("%s: %d %v, complaints %q, want %q", what, got, answer, c, want)
		}
	}
	set := func(name, value string) func(url.Values) { return func(f url.Values) { f.Set(name, value) } }
	f("another code", "the code is unknown", 400, set("code", "x"), false)
	f("the code once more", "a second time", 400, func(f url.Values) { f.Set("code", form.Get("code")) }, false)
	f("another address", "redirect_uri", 400, set("redirect_uri", back+"/"), false)
	f("another verifier", "code_verifier does not fit", 400, set("code_verifier", "x"), false)
	f("no verifier", "code_verifier does not fit", 400, func(f url.Values) { f.Del("code_verifier") }, false)
	f("another secret", "secret", 401, set("client_secret", "x"), false)
	f("Basic", "wrong style", 401, func(f url.Values) { f.Del("client_id"); f.Del("client_secret") }, true)
	f("another grant", "grant_type", 400, set("grant_type", "password"), false)

	s.Reset()
	if _, answer := post(t, s.Base("gitlab")+"/oauth/token", good(), false); answer["access_token"] != nil ||
		len(s.Complaints("gitlab")) != 1 {
		t.Errorf("a code of another dialect: %v", answer)
	}
	for _, q := range []string{"", "client_id=x", "client_id=" + ClientID + "&redirect_uri=" + back} {
		if _, err := s.Visit(t.Context(), s.Base("github")+"/login/oauth/authorize?"+q); err == nil {
			t.Errorf("authorize with %q goes back", q)
		}
	}
	for _, path := range []string{"/nobody/authorize", "/github/nowhere", "/"} {
		resp, err := http.Get(s.URL + path)
		must.Succeed(t, err)
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s answers %d", path, resp.StatusCode)
		}
	}
	resp, err := http.Get(s.Base("github") + "/api/v3/user")
	must.Succeed(t, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a profile without a token: %d", resp.StatusCode)
	}
}

// TestTokens: another library reads the ID tokens, with each algorithm.
func TestTokens(t *testing.T) {
	s := start(t, Options{})
	for _, alg := range dialects["oidc"].algs {
		s.Behave("oidc", Behaviour{Alg: alg})
		var public any = &s.ring.rsa.PublicKey
		if k := s.ring.ec[alg]; k != nil {
			public = &k.PublicKey
		} else if alg == "EdDSA" {
			public = s.ring.ed.Public()
		}
		claims := jwt.MapClaims{}
		tok, err := jwt.ParseWithClaims(s.IDToken("oidc", Ann, map[string]any{"nonce": "n"}), claims,
			func(*jwt.Token) (any, error) { return public, nil },
			jwt.WithValidMethods([]string{alg}), jwt.WithExpirationRequired(), jwt.WithAudience(ClientID),
			jwt.WithIssuer(s.Base("oidc")))
		if err != nil || claims["sub"] != Ann.ID || claims["nonce"] != "n" || tok.Header["kid"] == "" {
			t.Errorf("%s: %v %v", alg, claims, err)
		}
		s.Behave("oidc", Behaviour{Alg: alg, Forged: true})
		if _, err := jwt.Parse(s.IDToken("oidc", Ann, nil), func(*jwt.Token) (any, error) {
			return public, nil
		}); err == nil {
			t.Errorf("%s: a forged token is good", alg)
		}
	}
	before := s.ring.kid("RSA")
	s.SwapKeys()
	if s.ring.kid("RSA") == before {
		t.Error("swapped keys keep their ids")
	}
}

// TestPage: a user chooses an identity, and is sent back.
func TestPage(t *testing.T) {
	s := start(t, Options{Interactive: true})
	at := s.Base("gitlab") + "/oauth/authorize?" + url.Values{"client_id": {ClientID}, "redirect_uri": {back},
		"response_type": {"code"}, "state": {`"><script>`},
		"code_challenge": {strings.Repeat("c", 43)}, "code_challenge_method": {"S256"}}.Encode()
	resp, err := http.Get(at)
	must.Succeed(t, err)
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	text := string(body)
	for _, want := range []string{"Sign in as", "Ann Example", "Bob Unproven", "address not proven",
		"&#34;&gt;&lt;script&gt;", "somebody else"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q: %s", want, text)
		}
	}
	if strings.Contains(text, `"><script>`) {
		t.Error("the page repeats what it was given")
	}
	for choice, want := range map[string]string{"-as=7654321": "code", "-email=Carol%40example.org": "code",
		"-as=-": "error"} {
		c, err := s.Visit(t.Context(), at+"&"+choice)
		if err != nil || c.Params().Get(want) == "" || c.Params().Get("state") != `"><script>` {
			t.Errorf("%s: %+v %v", choice, c, err)
		}
	}
	if idOf("Carol@example.org") != idOf("carol@Example.org") || idOf("carol@example.org") == idOf("dave@example.org") {
		t.Error("who somebody is changes")
	}
}

func TestAnswers(t *testing.T) {
	get := func(a Answer, ctx context.Context) (int, string) {
		w := httptest.NewRecorder()
		a.write(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
		return w.Code, w.Body.String()
	}
	if status, body := get(Redirect(307, "/x"), t.Context()); status != 307 || body != "" {
		t.Errorf("%d %q", status, body)
	}
	if status, body := get(Oversized, t.Context()); status != 200 || len(body) <= 1<<20 {
		t.Errorf("%d, %d bytes", status, len(body))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, body := get(Slow(time.Hour), ctx); body != "" {
		t.Errorf("an answer to somebody who has left: %q", body)
	}
}

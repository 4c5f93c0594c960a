package httpapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/redirect"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/logtest"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

func TestMain(m *testing.M) {
	workers()
	storetest.Watched()
	goleak.VerifyTestMain(suite{m}, testdb.IgnoreServers(), goleak.IgnoreCurrent())
}

// workers are shared by all tests and hash as cheaply as bcrypt allows.
var workers = sync.OnceValue(func() *password.Workers {
	params, err := password.ParseParams("bcrypt:4")
	if err != nil {
		panic(err)
	}
	return password.NewWorkers(password.Options{Workers: 2, Queue: 1000, Params: params})
})

const (
	siteURL     = "https://app.example.org/home"
	externalURL = "https://auth.example.org"
	sesame      = "open sesame 1"
)

// api is the whole API over a database of its own, on a real port.
type api struct {
	t       testing.TB
	db      *store.DB
	server  *Server
	http    *httptest.Server
	core    *flow.Core
	root    *secret.Root
	keys    *token.Live
	log     *logtest.Buffer
	account flow.Settings
	set     Settings

	mu  sync.Mutex
	now time.Time
}

// change adapts what a test needs before the API begins.
type change func(*flow.Settings, *Settings)

func accountSettings() flow.Settings {
	links, err := mail.NewLinks(mail.Paths{})
	if err != nil {
		panic(err)
	}
	many := flow.Rate{N: 1000, Per: time.Hour}
	return flow.Settings{
		SiteURL: siteURL, BaseURL: externalURL, Audience: "authenticated", Role: "authenticated", Issuer: externalURL,
		AccessLife: time.Hour, AdminRoles: []string{"service_role", "supabase_admin"}, Anonymous: true,
		FlowLife: 5 * time.Minute, ClaimUnproven: true,
		Email: flow.EmailSettings{Enabled: true, MagicLink: true, Configured: true, SecureChange: true,
			OTPLife:   time.Hour,
			OTPLength: 6, Sent: many, Links: links},
		Phone: flow.PhoneSettings{Enabled: true, Configured: true, OTPLife: 5 * time.Minute, OTPLength: 6,
			Sent: many},
		Passwords: flow.PasswordSettings{Policy: password.NewPolicy(6, "", false), PolicyForAdmin: true,
			TriesPerAccount: 20, ChangeEndsSessions: true},
		Sessions: flow.SessionSettings{Rotation: true, ReuseInterval: 10 * time.Second, RefreshBurst: 60},
		Factors: flow.FactorSettings{
			TOTP:          flow.FactorSwitches{Enroll: true, Verify: true},
			Phone:         flow.FactorSwitches{Enroll: true, Verify: true},
			ChallengeLife: 5 * time.Minute, UnverifiedLife: 5 * time.Minute, MaxEnrolled: 10, MaxVerified: 10,
			OTPLength: 6,
		},
	}
}

func open(t *testing.T, changes ...change) *api {
	t.Helper()
	return openOn(t, storetest.Open(t), changes...)
}

func openOn(t testing.TB, db *store.DB, changes ...change) *api {
	t.Helper()
	a := &api{t: t, db: db, root: secret.NewRoot("root key"), keys: new(token.Live), log: new(logtest.Buffer),
		now: time.Now().UTC().Truncate(time.Second)}
	a.account = accountSettings()
	a.set = Settings{Redirects: testRedirects(t), MaxDuration: time.Minute, Limits: defaultLimits}
	for _, f := range changes {
		f(&a.account, &a.set)
	}
	a.keys.Store(testKeys(t))
	codec := token.NewRefreshCodec(a.root.Keys(secret.Refresh))
	a.core = flow.New(flow.Options{DB: a.db, Keys: a.keys, Refresh: codec, Root: a.root, Passwords: workers(),
		Now: a.clock}, a.account)
	var err error
	a.server, err = New(Options{Core: a.core, Version: "1.2.3", Now: a.clock,
		Log: slog.New(slog.NewTextHandler(a.log, nil))}, a.set)
	must.Succeed(t, err)
	a.http = httptest.NewServer(a.server)
	a.http.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	t.Cleanup(a.http.Close)
	return a
}

// testKeys sign with ES256 and accept the shared secret, with which services' tokens are signed.
func testKeys(t testing.TB) *token.Set {
	t.Helper()
	shared, err := token.NewSecret("", []byte("a shared secret of at least 32 bytes"))
	must.Succeed(t, err)
	ec, err := token.Generate(token.ES256)
	must.Succeed(t, err)
	set, err := token.NewSet(token.SetConfig{Keys: []token.Entry{{Key: ec, State: token.Current}}, Secret: shared,
		AcceptSecret: true, Issuer: externalURL})
	must.Succeed(t, err)
	return set
}

func testRedirects(t testing.TB) *redirect.List {
	t.Helper()
	list, err := redirect.New(siteURL, []string{"https://other.example.org/**", "myapp://callback"}, false)
	must.Succeed(t, err)
	return list
}

// offline is a server whose database no test may need.
func offline(t testing.TB) *Server {
	t.Helper()
	root, keys := secret.NewRoot("root key"), new(token.Live)
	keys.Store(testKeys(t))
	codec := token.NewRefreshCodec(root.Keys(secret.Refresh))
	core := flow.New(flow.Options{Keys: keys, Refresh: codec, Root: root, Passwords: workers()},
		accountSettings())
	srv, err := New(Options{Core: core},
		Settings{Redirects: testRedirects(t), MaxDuration: 10 * time.Second, Limits: defaultLimits})
	must.Succeed(t, err)
	return srv
}

// apply changes the settings in force.
func (a *api) apply(f change) {
	a.t.Helper()
	f(&a.account, &a.set)
	a.core.Apply(a.account)
	must.Succeed(a.t, a.set.Check(&a.account))
	a.server.Apply(a.set)
}

func (a *api) clock() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now
}

func (a *api) pass(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now = a.now.Add(d)
}

// answer is a response with its body read.
type answer struct {
	t testing.TB
	*http.Response
	body string
}

// header is a request header for do: name and value.
type header struct{ name, value string }

func bearer(token string) header { return header{"Authorization", "Bearer " + token} }

// do sends a request: "POST /signup?x=y". body is text as it is, or anything else as JSON; nil is none.
// Each answer is checked against openapi.json.
func (a *api) do(what string, body any, headers ...header) answer {
	a.t.Helper()
	method, path, _ := strings.Cut(what, " ")
	var in io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		in = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		must.Succeed(a.t, err)
		in = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(a.t.Context(), method, a.http.URL+path, in)
	must.Succeed(a.t, err)
	for _, h := range headers {
		r.Header.Add(h.name, h.value)
	}
	resp, err := a.http.Client().Do(r)
	if err != nil {
		a.t.Fatalf("%s: %v", what, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must.Succeed(a.t, err)
	got := answer{a.t, resp, string(text)}
	conforms(a.t, method, r.URL.Path, got)
	return got
}

// is checks status and body; the body may hold a * where anything may stand.
func (a answer) is(status int, body string) answer {
	a.t.Helper()
	if a.StatusCode != status || !like(a.body, body) {
		a.t.Errorf("%s %s: %d %s\nwant %d %s", a.Request.Method, a.Request.URL.Path, a.StatusCode, a.body, status, body)
	}
	return a
}

// refused checks status, code and message of a failure in the old form.
func (a answer) refused(status int, code, msg string) answer {
	a.t.Helper()
	var got struct {
		Code      int
		ErrorCode string `json:"error_code"`
		Msg       string
	}
	json.Unmarshal([]byte(a.body), &got)
	if a.StatusCode != status || got.Code != status || got.ErrorCode != code || !like(got.Msg, msg) {
		a.t.Errorf("%s %s: %d %s\nwant %d %s %q", a.Request.Method, a.Request.URL.Path, a.StatusCode, a.body,
			status, code, msg)
	}
	return a
}

// json reads the body of a 200.
func (a answer) json(into any) answer {
	a.t.Helper()
	if a.StatusCode != 200 {
		a.t.Fatalf("%s %s: %d %s", a.Request.Method, a.Request.URL.Path, a.StatusCode, a.body)
	}
	if err := json.Unmarshal([]byte(a.body), into); err != nil {
		a.t.Fatalf("%v in %s", err, a.body)
	}
	return a
}

// like says whether text is the pattern, in which each * stands for anything.
func like(text, pattern string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return text == pattern
	}
	if !strings.HasPrefix(text, parts[0]) {
		return false
	}
	text = text[len(parts[0]):]
	for _, p := range parts[1 : len(parts)-1] {
		i := strings.Index(text, p)
		if i < 0 {
			return false
		}
		text = text[i+len(p):]
	}
	return strings.HasSuffix(text, parts[len(parts)-1])
}

// userJSON and grantJSON are answers as a client reads them.
type userJSON struct {
	ID, Aud, Role, Email, Phone string
	NewEmail                    string         `json:"new_email"`
	ConfirmedAt                 string         `json:"confirmed_at"`
	InvitedAt                   string         `json:"invited_at"`
	BannedUntil                 string         `json:"banned_until"`
	AppMetadata                 map[string]any `json:"app_metadata"`
	UserMetadata                map[string]any `json:"user_metadata"`
	Identities                  []map[string]any
	Factors                     []factorJSON
	IsAnonymous                 bool `json:"is_anonymous"`
}

type grantJSON struct {
	AccessToken  string `json:"access_token"`
	TokenType    string `json:"token_type"`
	ExpiresIn    int    `json:"expires_in"`
	ExpiresAt    int64  `json:"expires_at"`
	RefreshToken string `json:"refresh_token"`
	Type         string
	User         userJSON
}

// sentMessage is what waits in the outbox.
type sentMessage struct{ To, Kind, Code, Link, Hash string }

// newest is the last message to an address.
func (a *api) newest(to string) sentMessage {
	a.t.Helper()
	list, err := storetest.Claim(a.t.Context(), a.db, a.clock(), 0, 1000)
	must.Succeed(a.t, err)
	var found sentMessage
	var at time.Time
	for _, m := range list {
		text, _, err := a.root.Open(secret.Outbox, m.Payload, m.ID[:])
		must.Succeed(a.t, err)
		l := sentMessage{Kind: m.Kind}
		if m.Channel == mail.ChannelSMS {
			var v mail.SMS
			json.Unmarshal(text, &v)
			l.To, l.Code = v.To, v.Token
		} else {
			var v mail.Payload
			json.Unmarshal(text, &v)
			l.To, l.Code, l.Link, l.Hash = v.To, v.Vars.Token, v.Vars.ConfirmationURL, v.Vars.TokenHash
		}
		if l.To == to && !m.CreatedAt.Before(at) {
			found, at = l, m.CreatedAt
		}
	}
	if found.To == "" {
		a.t.Fatalf("no message to %s", to)
	}
	return found
}

// member signs a user up, confirms the address and returns the session.
func (a *api) member(email string) (g grantJSON) {
	a.t.Helper()
	a.do("POST /signup",
		map[string]any{"email": email, "password": sesame, "data": map[string]any{"nick": "mi"}}).is(200, "*")
	a.do("POST /verify", map[string]any{"type": "signup", "token_hash": a.newest(email).Hash}).json(&g)
	a.pass(time.Second)
	return g
}

// service is a token of the service role.
func (a *api) service() header { return bearer(a.serviceToken("service_role", time.Hour)) }

func (a *api) serviceToken(role string, life time.Duration) string {
	a.t.Helper()
	text, err := a.keys.Load().SignService(nil, role, "gatehouse", a.clock().Add(-time.Hour), a.clock().Add(life))
	must.Succeed(a.t, err)
	return string(text)
}

// claimsOf reads a token without checking it.
func claimsOf(t testing.TB, text string) (claims map[string]any) {
	t.Helper()
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		t.Fatalf("%q is no token", text)
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	must.Succeed(t, err)
	must.Succeed(t, json.Unmarshal(payload, &claims))
	return claims
}

// defaultLimits are the defaults in docs/settings.md#limits.
var defaultLimits = Limits{OTP: 30, Verify: 30, Token: 150, Anonymous: 30, Passkeys: 30, Factors: 15}

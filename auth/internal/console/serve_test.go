package console

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gatehouse/auth/internal/account/admin"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/httpapi"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/redirect"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

func TestMain(m *testing.M) {
	workers()
	storetest.Watched()
	goleak.VerifyTestMain(m, testdb.IgnoreServers(), goleak.IgnoreCurrent())
}

var workers = sync.OnceValue(func() *password.Workers {
	params, err := password.ParseParams("bcrypt:4")
	if err != nil {
		panic(err)
	}
	return password.NewWorkers(password.Options{Workers: 1, Queue: 100, Params: params})
})

// served is a console over a database of its own, with a clock.
type served struct {
	*Console
	t    *testing.T
	db   *store.DB
	boss store.User
	now  time.Time
}

const site = "https://app.example.org"

func serve(t *testing.T) *served {
	t.Helper()
	s := &served{t: t, db: storetest.Open(t), now: time.Now().UTC().Truncate(time.Second)}
	clock := func() time.Time { return s.now }
	root, live := secret.NewRoot("root"), new(token.Live)
	key, err := token.Generate(token.ES256)
	must.Succeed(t, err)
	set, err := token.NewSet(token.SetConfig{Keys: []token.Entry{{Key: key, State: token.Current}}, Issuer: site})
	must.Succeed(t, err)
	live.Store(set)
	codec := token.NewRefreshCodec(root.Keys(secret.Refresh))
	core := flow.New(flow.Options{DB: s.db, Keys: live, Refresh: codec, Root: root, Passwords: workers(), Now: clock},
		flow.Settings{SiteURL: site, BaseURL: site, Audience: "authenticated", Role: "authenticated", Issuer: site,
			AccessLife: time.Hour, AdminRoles: []string{"service_role"}, Email: flow.EmailSettings{Enabled: true},
			Passwords: flow.PasswordSettings{TriesPerAccount: 20}})
	redirects, err := redirect.New(site, nil, false)
	must.Succeed(t, err)
	api, err := httpapi.New(httpapi.Options{Core: core, Now: clock},
		httpapi.Settings{Redirects: redirects})
	must.Succeed(t, err)
	s.Console = New(Options{Core: core, API: api, Root: root, URL: &url.URL{Scheme: "http", Host: "127.0.0.1:8085"},
		Loopback: true, Now: clock})
	yes, pass, email, role := true, "sesame", "boss@example.org", "service_role"
	s.boss, err = admin.New(core).AdminCreate(t.Context(), flow.RequestInfo{}, flow.Actor{Role: "test"},
		flow.Attributes{Email: &email, EmailConfirm: &yes, Password: &pass, Role: &role})
	must.Succeed(t, err)
	return s
}

// send answers a request; cookie "" is none.
func (s *served) send(method, path, body, cookie, key string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest(method, "http://127.0.0.1:8085"+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Cookie", cookie)
	r.Header.Set("X-Console-Key", key)
	s.ServeHTTP(w, r)
	return w
}

func (s *served) signIn() (cookie, key string) {
	s.t.Helper()
	w := s.send("POST", "/session", `{"email":"boss@example.org","password":"sesame"}`, "", "")
	var in struct{ Key string }
	if err := json.Unmarshal(w.Body.Bytes(), &in); err != nil || w.Code != http.StatusOK {
		s.t.Fatal(w.Code, w.Body)
	}
	return cookieOf(w), in.Key
}

func cookieOf(w *httptest.ResponseRecorder) string {
	cookie, _, _ := strings.Cut(w.Header().Get("Set-Cookie"), ";")
	return cookie
}

// A sign-in ends after 30 minutes without a request, and after 8 hours in any case. Its cookie is renewed once a minute.
func TestServe_idle(t *testing.T) {
	t.Parallel()
	s := serve(t)
	cookie, key := s.signIn()
	first := cookie
	want := func(status int, code string) {
		t.Helper()
		w := s.send("GET", "/api/admin/users", "", cookie, key)
		if w.Code != status || w.Header().Get("X-Sb-Error-Code") != code {
			t.Errorf("after %v: %d %s", s.now, w.Code, w.Body)
		}
		if renewed := cookieOf(w); renewed != "" {
			cookie = renewed
		}
	}
	s.now = s.now.Add(59 * time.Second)
	if want(200, ""); cookie != first {
		t.Error("the cookie was renewed within a minute")
	}
	s.now = s.now.Add(28 * time.Minute)
	if want(200, ""); cookie == first {
		t.Error("the cookie was not renewed")
	}
	renewed := cookie
	cookie = first
	s.now = s.now.Add(2 * time.Minute)
	want(401, "session_expired")
	for range 17 {
		cookie = renewed
		s.now = s.now.Add(25 * time.Minute)
		want(200, "")
		renewed = cookie
	}
	s.now = s.now.Add(25 * time.Minute) // 8 hours and a minute
	want(403, "session_expired")
	if w := s.send("DELETE", "/session", "", first, key); w.Code != http.StatusNoContent ||
		!strings.Contains(w.Header().Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("signing out: %d %v", w.Code, w.Header())
	}
}

// No answer holds a secret: each column that holds one is set to a marker.
func TestServe_secrets(t *testing.T) {
	t.Parallel()
	s := serve(t)
	cookie, key := s.signIn()
	boss := s.boss.ID.String()
	for _, sql := range []string{
		`update sessions set secret_hash = 'MARKER'`,
		`insert into outbox (id, channel, kind, user_id, payload, due_at, expires_at, created_at)
			select gen_random_uuid(), 'email', 'recovery', id, 'MARKER', now(), now() + interval '1 h', now() from users`,
		`insert into factors (id, user_id, kind, secret, created_at, updated_at)
			select gen_random_uuid(), id, 'totp', 'MARKER', now(), now() from users`,
		`insert into one_time_tokens (id, user_id, kind, address, link_hash, created_at, expires_at)
			select gen_random_uuid(), id, 'recovery', email, 'MARKER', now(), now() from users`,
		`update users set password_hash = 'MARKER'`,
	} {
		storetest.Exec(t, s.db, sql)
	}
	for _, path := range []string{"/api/admin/users", "/api/admin/users/" + boss, "/api/admin/users/" + boss + "/sessions",
		"/api/admin/users/" + boss + "/factors", "/api/admin/outbox", "/session"} {
		w := s.send("GET", path, "", cookie, key)
		text := w.Body.String()
		if w.Code != http.StatusOK || !strings.Contains(text, `"id"`) {
			t.Errorf("%s: %d %s", path, w.Code, text)
		}
		for _, secret := range []string{"MARKER", "TUFSS0VS", "4d41524b4552", "password_hash", "payload", "token"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s: %s in %s", path, secret, text)
			}
		}
	}
}

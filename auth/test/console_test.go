package test

import (
	"encoding/base32"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/totp"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// consoleSignIn is a browser's side of a sign-in.
type consoleSignIn struct {
	base, key string
	cookie    *http.Cookie
}

// send is a request of the page; more are headers, name and value in turns, "" leaves one out.
func (c *consoleSignIn) send(t *testing.T, what, body string, more ...string) (int, string, http.Header) {
	t.Helper()
	method, path, _ := strings.Cut(what, " ")
	r, err := http.NewRequestWithContext(t.Context(), method, c.base+path, strings.NewReader(body))
	must.Succeed(t, err)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.cookie != nil {
		r.AddCookie(c.cookie)
	}
	r.Header.Set("X-Console-Key", c.key)
	for i := 0; i < len(more); i += 2 {
		switch {
		case more[i] == "Host":
			r.Host = more[i+1]
		case more[i+1] == "":
			r.Header.Del(more[i])
		default:
			r.Header.Set(more[i], more[i+1])
		}
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	must.Succeed(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must.Succeed(t, err)
	return resp.StatusCode, string(text), resp.Header
}

// want sends and checks status and error code, "" for none.
func (c *consoleSignIn) want(t *testing.T, status int, code, what, body string, more ...string) string {
	t.Helper()
	got, text, h := c.send(t, what, body, more...)
	if got != status || h.Get("X-Sb-Error-Code") != code {
		t.Errorf("%s %s %q: %d %s\nwant %d %s", what, body, more, got, text, status, code)
	}
	return text
}

// begin signs in with a password.
func (c *consoleSignIn) begin(t *testing.T, email, password string) {
	t.Helper()
	c.cookie, c.key = nil, ""
	status, text, h := c.send(t, "POST /session", `{"email":"`+email+`","password":"`+password+`"}`)
	var in struct{ Key string }
	if json.Unmarshal([]byte(text), &in); status != 200 || in.Key == "" || strings.Contains(text, "token") {
		t.Fatalf("%d %s", status, text)
	}
	list := (&http.Response{Header: h}).Cookies()
	if len(list) != 1 || !list[0].HttpOnly || list[0].SameSite != http.SameSiteStrictMode || list[0].Path != "/" ||
		!strings.HasPrefix(list[0].Name, "auth_console_") {
		t.Fatalf("cookies %+v", list)
	}
	c.cookie, c.key = list[0], in.Key
}

// Behind a proxy that ends TLS the console answers under the proxy's name, and says that it is reached by https.
func TestConsole_externalURL(t *testing.T) {
	t.Parallel()
	ports, err := localserver.FreePorts(1)
	must.Succeed(t, err)
	d := start(t, environment(testdb.Postgres(t), "AUTH_CONSOLE_ADDR=127.0.0.1:"+ports[0],
		"AUTH_CONSOLE_EXTERNAL_URL=https://console.example"))
	var ready struct{ Console string }
	d.log.await(t, `"msg":"ready"`, &ready)
	if ready.Console != "https://console.example" {
		t.Errorf("ready says %q", ready.Console)
	}
	c := &consoleSignIn{base: "http://127.0.0.1:" + ports[0]}
	status, _, h := c.send(t, "GET /", "", "Host", "console.example")
	if status != 200 || h.Get("Strict-Transport-Security") == "" {
		t.Errorf("%d %v", status, h)
	}
	if status, text, _ := c.send(t, "GET /", "", "Host", "other.example"); status != 403 {
		t.Errorf("another name: %d %s", status, text)
	}
}

// A port that another program has ends the start.
func TestConsole_busyPort(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer l.Close()
	env := environment(testdb.Postgres(t), "AUTH_CONSOLE_ADDR="+l.Addr().String())
	if status, _, stderr := command(t, env, "", "serve"); status != 1 || !strings.Contains(stderr, "AUTH_CONSOLE_ADDR: ") {
		t.Errorf("%d %s", status, stderr)
	}
}

func TestConsole(t *testing.T) {
	t.Parallel()
	env := environment(testdb.Postgres(t), "AUTH_CONSOLE_ADDR=127.0.0.1:0", "AUTH_MAILER_AUTOCONFIRM=true",
		"AUTH_RATE_LIMIT_PASSWORD_PER_ACCOUNT=5", "AUTH_AUDIT_RETENTION=1h")
	d := start(t, env)
	var ready struct{ Console string }
	d.log.await(t, `"msg":"ready"`, &ready)
	create := func(args ...string) {
		t.Helper()
		args = append(append([]string{"admin", "create", "-confirm"}, args...), "-")
		if status, _, stderr := command(t, env, "correct horse\n", args...); status != 0 {
			t.Fatal(stderr)
		}
	}
	create("-admin", "boss@example.org")
	create("mia@example.org")
	boss := &consoleSignIn{base: ready.Console}
	boss.begin(t, "boss@example.org", "correct horse")
	var users struct{ Users []struct{ ID, Email string } }
	json.Unmarshal([]byte(boss.want(t, 200, "", "GET /api/admin/users?email=mia@example.org", "")), &users)
	if len(users.Users) != 1 {
		t.Fatalf("%+v", users)
	}
	mia := "/api/admin/users/" + users.Users[0].ID

	t.Run("cookie and key", func(t *testing.T) {
		other := *boss
		other.key = strings.Repeat("A", len(boss.key))
		other.want(t, 401, "no_authorization", "GET /api/admin/users", "")
		other.want(t, 401, "no_authorization", "GET /session", "")
		boss.want(t, 401, "no_authorization", "GET /api/admin/users", "", "X-Console-Key", "")
		boss.want(t, 401, "no_authorization", "DELETE /session", "", "X-Console-Key", "")
		boss.want(t, 401, "no_authorization", "GET /api/admin/users", "", "Cookie", "")
		second := &consoleSignIn{base: ready.Console}
		second.begin(t, "boss@example.org", "correct horse")
		second.cookie = boss.cookie // one's cookie with another's key
		second.want(t, 401, "no_authorization", "GET /api/admin/users", "")
		flipped := *boss.cookie
		flipped.Value = flipped.Value[:60] + string(flipped.Value[60]^1) + flipped.Value[61:]
		boss.want(t, 401, "no_authorization", "GET /api/admin/users", "", "Cookie", flipped.Name+"="+flipped.Value)
		// Another server of this host may have set a cookie of the same name.
		boss.want(t, 200, "", "GET /api/admin/users", "", "Cookie",
			flipped.Name+"="+flipped.Value+"; "+boss.cookie.Name+"="+boss.cookie.Value)
		_, service, _ := command(t, env, "", "keys", "service")
		none := &consoleSignIn{base: ready.Console}
		none.want(t, 401, "no_authorization", "GET /api/admin/users", "", "Authorization",
			"Bearer "+strings.TrimSpace(service))
		boss.want(t, 200, "", "GET /api/admin/users", "", "Authorization", "Bearer x")
		if got, err := call("GET", d.http+"/admin/users", "", ""); err != nil || got.status != 401 {
			t.Errorf("the public port: %+v, %v", got, err)
		}
	})
	t.Run("other names and origins", func(t *testing.T) {
		for _, host := range []string{"evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example", "0.0.0.0"} {
			if status, text, _ := boss.send(t, "GET /", "", "Host", host); status != 403 {
				t.Errorf("%s: %d %s", host, status, text)
			}
		}
		if status, _, h := boss.send(t, "GET /", "", "Host", "localhost:1234"); status != 200 ||
			!strings.Contains(h.Get("Content-Security-Policy"), "frame-ancestors 'none'") ||
			h.Get("Cross-Origin-Opener-Policy") != "same-origin" || h.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%d %v", status, h)
		}
		for _, h := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"},
			{"Origin", "http://127.0.0.1:1"}, {"Origin", "null"}} {
			if status, text, _ := boss.send(t, "DELETE "+mia[4:], "", h...); status != 403 {
				t.Errorf("%q: %d %s", h, status, text)
			}
			if status, text, _ := boss.send(t, "POST /session", `{}`, h...); status != 403 {
				t.Errorf("%q: %d %s", h, status, text)
			}
		}
		boss.want(t, 400, "bad_json", "PUT "+mia, `{"ban_duration":"1h"}`, "Content-Type", "text/plain")
		boss.want(t, 400, "bad_json", "POST /session", `{}`, "Content-Type", "application/x-www-form-urlencoded")
	})
	t.Run("what is forwarded", func(t *testing.T) {
		const id = "/00000000-0000-4000-8000-000000000000"
		for _, what := range []string{"POST /api/admin/users", "POST /api/admin/generate_link", "GET /api/admin/audit",
			"POST " + mia, "PATCH " + mia, "HEAD /api/admin/users", "PUT " + mia + "/factors" + id, "GET /api/user",
			"PUT /api/user", "POST /api/token", "POST /api/signup", "POST /api/otp", "POST /api/logout", "GET /api/settings",
			"GET /api/health", "POST /api/verify", "GET /api/verify", "POST /api/factors", "GET /api/admin/users/",
			"GET /api//admin/users", "GET /api/admin/./users", "GET /api/x/../admin/users", "GET /api/admin%2Fusers",
			"GET /api/Admin/users", "GET /api/admin/users;x", "GET /API/admin/users", "POST /api/invite/",
			"GET /api/admin/users/x", "POST /api/keys", "GET /keys", "GET /api", "PUT /session", "GET /session/challenge",
			"GET /index.html", "GET /pages/app.js", "GET /.well-known/jwks.json", "HEAD /session"} {
			if status, text, _ := boss.send(t, what, ""); status != 404 {
				t.Errorf("%s: %d %s", what, status, text)
			}
		}
		boss.want(t, 404, "not_found", "POST "+mia, `{"role":"x"}`, "X-HTTP-Method-Override", "PUT")
		for _, member := range []string{"role", "Role", "password", "password_hash", "email", "phone", "email_confirm",
			"user_metadata", "app_metadata", "Ban_Duration", "id", "aud"} {
			boss.want(t, 400, "validation_failed", "PUT "+mia, `{"ban_duration":"1h","`+member+`":null}`)
			boss.want(t, 400, "validation_failed", "PUT "+mia, `{"`+member+`":"x"}`)
		}
		boss.want(t, 400, "validation_failed", "PUT "+mia, `{}`)
		boss.want(t, 400, "bad_json", "PUT "+mia, `[]`)
		boss.want(t, 400, "validation_failed", "POST /api/invite", `{"email":"new@example.org","data":{}}`)
		boss.want(t, 400, "validation_failed", "POST /api/recover", `{"email":"mia@example.org","code_challenge":"x"}`)
		boss.want(t, 200, "", "PUT "+mia, `{"ban_duration":"1h"}`)
		boss.want(t, 200, "", "PUT "+mia, `{"ban_duration":"none"}`)
		boss.want(t, 200, "", "POST /api/invite", `{"email":"new@example.org"}`)
		boss.want(t, 200, "", "POST /api/recover", `{"email":"mia@example.org"}`)
		boss.want(t, 200, "", "GET "+mia+"/sessions", "")
		boss.want(t, 200, "", "GET "+mia+"/factors", "")
		boss.want(t, 204, "", "DELETE "+mia+"/sessions", "")
		if text := boss.want(t, 200, "", "GET /api/admin/outbox?user_id="+users.Users[0].ID, ""); !strings.Contains(text,
			`"recovery"`) || strings.Contains(text, "token") {
			t.Error(text)
		}
		if text := boss.want(t, 200, "", "GET /api/keys", ""); !strings.Contains(text, `"alg":"ES256"`) ||
			strings.Contains(text, `"d"`) {
			t.Error(text)
		}
	})
	t.Run("sign-in", func(t *testing.T) {
		none := &consoleSignIn{base: ready.Console}
		in := func(email, password string) string {
			t.Helper()
			return none.want(t, 400, "invalid_credentials", "POST /session",
				`{"email":"`+email+`","password":"`+password+`"}`)
		}
		want := in("boss@example.org", "wrong horse")
		for _, got := range []string{in("mia@example.org", "correct horse"), in("no@example.org", "correct horse")} {
			if got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
		for range 6 { // empties the bucket of the public port
			call("POST", d.http+"/token?grant_type=password", "", `{"email":"boss@example.org","password":"x"}`)
		}
		if got, _ := call("POST", d.http+"/token?grant_type=password", "",
			`{"email":"boss@example.org","password":"correct horse"}`); got.status != 429 {
			t.Errorf("%+v", got)
		}
		none.begin(t, "boss@example.org", "correct horse")
		none.want(t, 204, "", "DELETE /session", "")
		none.want(t, 403, "session_not_found", "GET /api/admin/users", "")
		text := boss.want(t, 200, "", "GET /session", "", "X-Forwarded-For", "192.0.2.1", "Auth-Forwarded-For", "192.0.2.1")
		if !strings.Contains(text, `"next":null`) || !strings.Contains(text, "boss@example.org") ||
			strings.Contains(text, `"key"`) || strings.Contains(d.log.text(), "192.0.2.1") {
			t.Error(text)
		}
		if !strings.Contains(d.log.text(), `"console":true`) {
			t.Error("the log does not say which requests are the console's")
		}
	})
	t.Run("factor", func(t *testing.T) {
		create("-admin", "cook@example.org")
		_, key := enrolTOTP(t, d, "cook@example.org")
		step := totp.Step(time.Now())
		cook := &consoleSignIn{base: ready.Console}
		cook.begin(t, "cook@example.org", "correct horse")
		var at struct {
			Next    string
			Factors []struct{ ID string }
		}
		text := cook.want(t, 200, "", "GET /session", "")
		if json.Unmarshal([]byte(text), &at); at.Next != "factor" || len(at.Factors) != 1 {
			t.Fatal(text)
		}
		factor := at.Factors[0].ID
		cook.want(t, 403, "insufficient_aal", "GET /api/admin/users", "")
		cook.want(t, 403, "insufficient_aal", "GET /api/keys", "")
		var ch struct{ ID string }
		json.Unmarshal([]byte(cook.want(t, 200, "", "POST /session/challenge", `{"factor_id":"`+factor+`"}`)), &ch)
		answer := func(step int64) string {
			return fmt.Sprintf(`{"factor_id":%q,"challenge_id":%q,"code":%q}`, factor, ch.ID, totp.Code(key, step))
		}
		cook.want(t, 422, "mfa_verification_failed", "POST /session/verify", answer(step-9)) // long gone
		status, text, h := cook.send(t, "POST /session/verify", answer(step+1))              // a step counts once
		old, before := *cook, *cook
		var in struct{ Key string }
		json.Unmarshal([]byte(text), &in)
		list := (&http.Response{Header: h}).Cookies()
		if status != 200 || in.Key == "" || strings.Contains(text, "token") || len(list) != 1 {
			t.Fatal(status, text, h)
		}
		cook.key, cook.cookie = in.Key, list[0]
		cook.want(t, 200, "", "GET /api/admin/users", "")
		old.cookie = cook.cookie
		old.want(t, 401, "no_authorization", "GET /api/admin/users", "")
		// A cookie with its key from before the factor stay what they were.
		before.want(t, 403, "insufficient_aal", "GET /api/admin/users", "")
		if text := before.want(t, 200, "", "GET /session", ""); !strings.Contains(text, `"next":"factor"`) {
			t.Error(text)
		}
	})
	t.Run("ends", func(t *testing.T) {
		create("-admin", "chief@example.org")
		chief := &consoleSignIn{base: ready.Console}
		chief.begin(t, "chief@example.org", "correct horse")
		service := strings.TrimSpace(func() string { _, s, _ := command(t, env, "", "keys", "service"); return s }())
		var who struct{ User struct{ ID string } }
		json.Unmarshal([]byte(chief.want(t, 200, "", "GET /session", "")), &who)
		put := func(body string) {
			t.Helper()
			if got, err := call("PUT", d.http+"/admin/users/"+who.User.ID, service, body); err != nil || got.status != 200 {
				t.Fatalf("%+v, %v", got, err)
			}
		}
		put(`{"role":"authenticated"}`)
		chief.want(t, 403, "not_admin", "GET /api/admin/users", "")
		chief.want(t, 403, "not_admin", "GET /session", "")
		put(`{"role":"service_role"}`)
		chief.want(t, 200, "", "GET /api/admin/users", "")
		put(`{"ban_duration":"1h"}`)
		chief.want(t, 403, "user_banned", "GET /api/admin/users", "")
		put(`{"ban_duration":"none"}`)
		boss.want(t, 204, "", "DELETE /api/admin/users/"+who.User.ID+"/sessions", "")
		chief.want(t, 403, "session_not_found", "GET /api/admin/users", "")
	})
}

// enrolTOTP gives a user with the password "correct horse" an authenticator app, and returns the user's id and its key.
func enrolTOTP(t *testing.T, d *instance, email string) (user string, key []byte) {
	t.Helper()
	post := func(path, token, body string) map[string]any {
		t.Helper()
		got, err := call("POST", d.http+path, token, body)
		if err != nil || got.status != 200 {
			t.Fatalf("%s: %+v, %v", path, got, err)
		}
		return got.body
	}
	in := post("/token?grant_type=password", "", `{"email":"`+email+`","password":"correct horse"}`)
	token := in["access_token"].(string)
	enrolled := post("/factors", token, `{"factor_type":"totp","friendly_name":"app"}`)
	factor := "/factors/" + enrolled["id"].(string)
	key, err := base32.StdEncoding.WithPadding(base32.NoPadding).DecodeString(
		enrolled["totp"].(map[string]any)["secret"].(string))
	must.Succeed(t, err)
	challenge := post(factor+"/challenge", token, "")["id"]
	post(factor+"/verify", token, fmt.Sprintf(`{"challenge_id":%q,"code":%q}`, challenge,
		totp.Code(key, totp.Step(time.Now()))))
	return in["user"].(map[string]any)["id"].(string), key
}

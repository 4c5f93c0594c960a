package test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// tuned is a daemon whose settings a test changes by .env and SIGHUP.
type tuned struct {
	*instance
	database string
	users    int
}

func startTuned(t *testing.T, more ...string) *tuned {
	t.Helper()
	database := testdb.Postgres(t)
	d := &tuned{database: database,
		instance: launch(t, t.TempDir(), environment(database, append([]string{"AUTH_JWT_ALGORITHM="}, more...)...))}
	d.awaitReady(t)
	return d
}

// unusedAddress is an address without an account.
func (d *tuned) unusedAddress() string {
	d.users++
	return "user" + strconv.Itoa(d.users) + "@example.org"
}

func (d *tuned) admin(t *testing.T, role string) string {
	t.Helper()
	status, out, errs := command(t, d.env, "", "keys", "service", "-role", role, "-exp", "1h")
	if status != 0 {
		t.Fatal(errs)
	}
	return strings.TrimSpace(out)
}

// refuses wants an answer with this error code.
func (d *tuned) refuses(t *testing.T, code, method, path, bearer, body string) {
	t.Helper()
	a, err := call(method, d.http+path, bearer, body)
	if err != nil || a.status < 400 || a.str("error_code") != code {
		t.Errorf("%s %s: %v %d %s, want %s", method, path, err, a.status, a.text, code)
	}
}

// request is call with headers.
func (d *tuned) request(t *testing.T, method, path, body string, headers ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequest(method, d.http+path, strings.NewReader(body))
	must.Succeed(t, err)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	must.Succeed(t, err)
	resp.Body.Close()
	return resp
}

const horse = "correct horse"

func credentials(email, password string) string {
	return `{"email":"` + email + `","password":"` + password + `"}`
}

// tokenParts are the header and the claims of a JWT.
func tokenParts(t *testing.T, token string) (header, claims map[string]any) {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("%q is no JWT", token)
	}
	for i, into := range []*map[string]any{&header, &claims} {
		b, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err != nil || json.Unmarshal(b, into) != nil {
			t.Fatal(err, parts[i])
		}
	}
	return header, claims
}

func TestEffects_tokens(t *testing.T) {
	t.Parallel()
	d := startTuned(t)
	d.with(t, "AUTH_MAILER_AUTOCONFIRM=true", "AUTH_JWT_AUD=team", "AUTH_JWT_ISSUER=https://issuer.test",
		"AUTH_JWT_DEFAULT_GROUP_NAME=member",
		"AUTH_JWT_ALGORITHM=HS256", "AUTH_JWT_KEY_ID=k1", "AUTH_JWT_EXP=77")
	a := d.want(t, 200, "POST", "/signup", "", credentials(d.unusedAddress(), horse))
	header, claims := tokenParts(t, a.str("access_token"))
	life, _ := claims["exp"].(float64)
	iat, _ := claims["iat"].(float64)
	if claims["aud"] != "team" || claims["iss"] != "https://issuer.test" || claims["role"] != "member" ||
		life-iat != 77 {
		t.Errorf("claims %v", claims)
	}
	if header["alg"] != "HS256" || header["kid"] != "k1" {
		t.Errorf("header %v", header)
	}
}

func TestEffects_passwords(t *testing.T) {
	t.Parallel()
	d := startTuned(t)
	const auto = "AUTH_MAILER_AUTOCONFIRM=true"
	d.with(t, auto)
	d.want(t, 200, "POST", "/signup", "", credentials(d.unusedAddress(), "password1"))
	d.with(t, auto, "AUTH_PASSWORD_MIN_LENGTH=12")
	d.refuses(t, "weak_password", "POST", "/signup", "", credentials(d.unusedAddress(), "eleven char"))
	d.want(t, 200, "POST", "/signup", "", credentials(d.unusedAddress(), "twelve chars"))
	d.with(t, auto, "AUTH_PASSWORD_COMMON_REFUSED=true")
	d.refuses(t, "weak_password", "POST", "/signup", "", credentials(d.unusedAddress(), "password1"))
}

func TestEffects_enroll(t *testing.T) {
	t.Parallel()
	d := startTuned(t)
	d.with(t, "AUTH_MAILER_AUTOCONFIRM=true", "AUTH_MFA_TOTP_ENROLL_ENABLED=false")
	access := d.want(t, 200, "POST", "/signup", "", credentials(d.unusedAddress(), horse)).str("access_token")
	d.refuses(t, "mfa_totp_enroll_not_enabled", "POST", "/factors", access, `{"factor_type":"totp"}`)
}

func TestEffects_http(t *testing.T) {
	t.Parallel()
	d := startTuned(t)
	d.with(t, "AUTH_TRUSTED_PROXIES=127.0.0.1")
	d.request(t, "GET", "/settings", "", "X-Forwarded-For", "203.0.113.8")
	d.log.await(t, `"ip":"203.0.113.8"`, nil)
}

// Mails: subjects, bodies, paths, hosts, codes.
func TestEffects_mails(t *testing.T) {
	t.Parallel()
	bodies := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Write([]byte(`<p>body of ` + r.URL.Path[1:] + ` {{ .ConfirmationURL }} {{ .Token }}</p>`))
	}))
	t.Cleanup(bodies.Close)
	d := startTuned(t)
	settings := []string{"AUTH_MAILER_OTP_LENGTH=8", "AUTH_MAILER_OTP_EXP=77", "AUTH_MAILER_EXTERNAL_HOSTS=links.test",
		"AUTH_URI_ALLOW_LIST=https://app.test/**",
		"AUTH_MAILER_NOTIFICATIONS_PASSWORD_CHANGED_ENABLED=true"}
	for _, kind := range strings.Fields(
		"INVITE CONFIRMATION RECOVERY MAGIC_LINK EMAIL_CHANGE REAUTHENTICATION PASSWORD_CHANGED_NOTIFICATION") {
		settings = append(settings, "AUTH_MAILER_SUBJECTS_"+kind+"=subject of "+kind,
			"AUTH_MAILER_TEMPLATES_"+kind+"="+bodies.URL+"/"+kind)
	}
	for _, kind := range strings.Fields("INVITE CONFIRMATION RECOVERY EMAIL_CHANGE") {
		settings = append(settings, "AUTH_MAILER_URLPATHS_"+kind+"=/path/"+strings.ToLower(kind))
	}
	d.with(t, settings...)
	type message struct{ Subject, HTML, Link, Code string }
	mail := func(to, kind string) (m message) {
		t.Helper()
		await.True(t, "the mail of "+kind, func() bool {
			a, err := call("GET", d.mailbox+"/messages?to="+url.QueryEscape(to), "", "")
			var list []message
			if err != nil || json.Unmarshal([]byte(a.text), &list) != nil || len(list) == 0 {
				return false
			}
			m = list[0]
			return m.Subject == "subject of "+kind
		})
		if !strings.Contains(m.HTML, "body of "+kind) {
			t.Errorf("%s: %s", kind, m.HTML)
		}
		return m
	}
	path := func(m message, kind string) {
		t.Helper()
		if u, err := url.Parse(m.Link); err != nil || u.Path != "/path/"+strings.ToLower(kind) {
			t.Errorf("the link of %s is %s", kind, m.Link)
		}
	}
	const mia = "mia@example.org"
	d.want(t, 200, "POST", "/signup?redirect_to=https%3A%2F%2Fapp.test%2Fin", "", credentials(mia, horse))
	m := mail(mia, "CONFIRMATION")
	path(m, "CONFIRMATION")
	if len(m.Code) != 8 || !strings.HasSuffix(m.Link, "redirect_to=https://app.test/in") {
		t.Errorf("%+v", m)
	}
	if life := rows[float64](t, d.database,
		`select extract(epoch from expires_at - created_at)::float8 from one_time_tokens where address = 'mia@example.org'`); len(life) != 1 || life[0] != 77 {
		t.Errorf("AUTH_MAILER_OTP_EXP=77: %v", life)
	}
	access := d.want(t, 200, "POST", "/verify", "",
		`{"type":"signup","email":"`+mia+`","token":"`+m.Code+`"}`).str("access_token")
	d.request(t, "POST", "/recover", `{"email":"`+mia+`"}`, "Content-Type", "application/json", "X-Forwarded-Host",
		"links.test", "X-Forwarded-Proto", "https")
	m = mail(mia, "RECOVERY")
	path(m, "RECOVERY")
	if u, err := url.Parse(m.Link); err != nil || u.Host != "links.test" {
		t.Errorf("AUTH_MAILER_EXTERNAL_HOSTS: %s", m.Link)
	}
	d.want(t, 200, "POST", "/magiclink", "", `{"email":"`+mia+`"}`)
	mail(mia, "MAGIC_LINK")
	d.want(t, 200, "GET", "/reauthenticate", access, "")
	mail(mia, "REAUTHENTICATION")
	d.want(t, 200, "PUT", "/user", access, `{"password":"another horse"}`)
	mail(mia, "PASSWORD_CHANGED_NOTIFICATION")
	d.want(t, 200, "PUT", "/user", access, `{"email":"new@example.org"}`)
	path(mail("new@example.org", "EMAIL_CHANGE"), "EMAIL_CHANGE")
	d.want(t, 200, "POST", "/invite", d.admin(t, "service_role"), `{"email":"guest@example.org"}`)
	path(mail("guest@example.org", "INVITE"), "INVITE")
}

// Two names of one setting: which one wins; and what stands only at the start.
func TestEffects_start(t *testing.T) {
	t.Parallel()
	database := testdb.Postgres(t)
	d := start(t, environment("postgres://nobody@127.0.0.1:1/nothing", "AUTH_DB_DATABASE_URL="+database, "PORT=1",
		"AUTH_API_PORT=0", "LOG_LEVEL=error", "AUTH_LOG_LEVEL=info"))
	if strings.HasSuffix(d.http, ":1") {
		t.Errorf("at %s", d.http)
	}
	text := launch(t, t.TempDir(), environment(database, "AUTH_LOG_FORMAT=text", "LOG_LEVEL=info"))
	text.log.await(t, "msg=ready", nil)

	fresh := testdb.Postgres(t)
	quiet := launch(t, t.TempDir(), environment(fresh, "LOG_LEVEL=error"))
	await.True(t, "the tables are there", func() bool {
		return rows[int](t, fresh, `select count(*)::int from pg_tables where tablename = 'users'`)[0] > 0
	})
	must.Succeed(t, quiet.Stop(20*time.Second))
	if strings.Contains(quiet.log.text(), `"level":"info"`) || !strings.Contains(d.log.text(), `"level":"info"`) {
		t.Errorf("LOG_LEVEL=error:\n%s\nand AUTH_LOG_LEVEL=info:\n%s", quiet.log.text(), d.log.text())
	}

	for _, setting := range []string{"AUTH_DB_DRIVER=mysql", "AUTH_TRACING_EXPORTER=zipkin"} {
		name, _, _ := strings.Cut(setting, "=")
		if status, _, errs := command(t, environment(database, setting), "", "serve"); status != 1 ||
			!strings.Contains(errs, name) {
			t.Errorf("%s: %d %s", setting, status, errs)
		}
	}
	const elsewhere = "https://localhost:4000/x"
	_, strict, _ := command(t, environment(database), "", "redirect", "test", elsewhere)
	_, loose, _ := command(t, environment(database, "AUTH_REDIRECT_ANY_PORT_AND_SCHEME=true"), "", "redirect", "test",
		elsewhere)
	if strict == loose || strict == "" {
		t.Errorf("%q and %q", strict, loose)
	}
}

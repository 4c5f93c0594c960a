package test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/shared/await"
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
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
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
		"AUTH_JWT_ALGORITHM=HS256", "AUTH_JWT_KEY_ID=k1", "AUTH_JWT_EXP=77", "AUTH_JWT_ADMIN_ROLES=root")
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
	d.want(t, 200, "GET", "/admin/users", d.admin(t, "root"), "")
	d.refuses(t, "not_admin", "GET", "/admin/users", d.admin(t, "service_role"), "")

	for _, setting := range []string{"AUTH_JWT_ADMIN_REQUIRE_AAL2=false", "AUTH_JWT_ADMIN_REQUIRE_AAL2=true"} {
		d.with(t, "AUTH_MAILER_AUTOCONFIRM=true", setting)
		email := d.unusedAddress()
		id := d.want(t, 200, "POST", "/signup", "",
			credentials(email, horse)).body["user"].(map[string]any)["id"].(string)
		d.want(t, 200, "PUT", "/admin/users/"+id, d.admin(t, "service_role"), `{"role":"supabase_admin"}`)
		access := d.want(t, 200, "POST", "/token?grant_type=password", "",
			credentials(email, horse)).str("access_token")
		if setting == "AUTH_JWT_ADMIN_REQUIRE_AAL2=false" {
			d.want(t, 200, "GET", "/admin/users", access, "")
		} else {
			d.refuses(t, "insufficient_aal", "GET", "/admin/users", access, "")
		}
	}
}

func TestEffects_passwords(t *testing.T) {
	t.Parallel()
	d := startTuned(t)
	const auto = "AUTH_MAILER_AUTOCONFIRM=true"
	d.with(t, auto)
	d.want(t, 200, "POST", "/signup", "", credentials(d.unusedAddress(), "password1"))
	d.refuses(t, "weak_password", "POST", "/admin/users", d.admin(t, "service_role"),
		credentials(d.unusedAddress(), "x"))
	d.with(t, auto, "AUTH_PASSWORD_MIN_LENGTH=12")
	d.refuses(t, "weak_password", "POST", "/signup", "", credentials(d.unusedAddress(), "eleven char"))
	d.want(t, 200, "POST", "/signup", "", credentials(d.unusedAddress(), "twelve chars"))
	d.with(t, auto, "AUTH_PASSWORD_COMMON_REFUSED=true")
	d.refuses(t, "weak_password", "POST", "/signup", "", credentials(d.unusedAddress(), "password1"))
	d.with(t, auto, "AUTH_PASSWORD_POLICY_FOR_ADMIN=false")
	d.want(t, 200, "POST", "/admin/users", d.admin(t, "service_role"), credentials(d.unusedAddress(), "x"))

	signUp := func() (email, access string) {
		t.Helper()
		email = d.unusedAddress()
		return email, d.want(t, 200, "POST", "/signup", "", credentials(email, horse)).str("access_token")
	}
	const change = `{"password":"another horse"}`
	email, first := signUp()
	other := d.want(t, 200, "POST", "/token?grant_type=password", "", credentials(email, horse)).str("access_token")
	d.want(t, 200, "PUT", "/user", first, change)
	d.refuses(t, "session_not_found", "GET", "/user", other, "")
	d.with(t, auto, "AUTH_SECURITY_PASSWORD_CHANGE_ENDS_SESSIONS=false")
	email, first = signUp()
	other = d.want(t, 200, "POST", "/token?grant_type=password", "", credentials(email, horse)).str("access_token")
	d.want(t, 200, "PUT", "/user", first, change)
	d.want(t, 200, "GET", "/user", other, "")
	d.with(t, auto, "AUTH_SECURITY_UPDATE_PASSWORD_REQUIRE_CURRENT_PASSWORD=true")
	_, first = signUp()
	if a, err := call("PUT", d.http+"/user", first, change); err != nil || a.status < 400 {
		t.Error(a.text, err)
	}
	d.with(t, auto, "AUTH_RATE_LIMIT_PASSWORD_PER_ACCOUNT=1")
	email, _ = signUp()
	d.refuses(t, "invalid_credentials", "POST", "/token?grant_type=password", "", credentials(email, "wrong"))
	d.refuses(t, "over_request_rate_limit", "POST", "/token?grant_type=password", "", credentials(email, "wrong"))
}

func TestEffects_sessions(t *testing.T) {
	t.Parallel()
	d := startTuned(t)
	f := func(ends bool, setting string) {
		t.Helper()
		d.with(t, "AUTH_MAILER_AUTOCONFIRM=true", setting)
		email := d.unusedAddress()
		first := d.want(t, 200, "POST", "/signup", "", credentials(email, horse)).str("access_token")
		d.want(t, 200, "POST", "/token?grant_type=password", "", credentials(email, horse))
		a, err := call("GET", d.http+"/user", first, "")
		if err != nil || (a.status == 200) == ends {
			t.Errorf("%s: %d %s", setting, a.status, a.text)
		}
	}
	f(false, "")
	f(true, "AUTH_SESSIONS_MAX_PER_USER=1")
	f(false, "AUTH_SESSIONS_MAX_PER_USER=2")
	for setting, want := range map[string]int{"": 200, "AUTH_SESSIONS_SINGLE_PER_USER=true": 400} {
		d.with(t, "AUTH_MAILER_AUTOCONFIRM=true", setting)
		email := d.unusedAddress()
		first := d.want(t, 200, "POST", "/signup", "", credentials(email, horse)).str("refresh_token")
		d.want(t, 200, "POST", "/token?grant_type=password", "", credentials(email, horse))
		a, err := call("POST", d.http+"/token?grant_type=refresh_token", "", `{"refresh_token":"`+first+`"}`)
		if err != nil || a.status != want {
			t.Errorf("%s: %v %d %s", setting, err, a.status, a.text)
		}
	}

	d.with(t, "AUTH_MAILER_AUTOCONFIRM=true", "AUTH_MFA_TOTP_ENROLL_ENABLED=false")
	access := d.want(t, 200, "POST", "/signup", "", credentials(d.unusedAddress(), horse)).str("access_token")
	d.refuses(t, "mfa_totp_enroll_not_enabled", "POST", "/factors", access, `{"factor_type":"totp"}`)
	d.with(t, "AUTH_MAILER_AUTOCONFIRM=true", "AUTH_MFA_MAX_ENROLLED_FACTORS=1")
	d.want(t, 200, "POST", "/factors", access, `{"factor_type":"totp","friendly_name":"a"}`)
	if a, err := call("POST", d.http+"/factors", access, `{"factor_type":"totp","friendly_name":"b"}`); err != nil ||
		a.status != 422 {
		t.Error(a.text, err)
	}
}

func TestEffects_signInMethods(t *testing.T) {
	t.Parallel()
	d := startTuned(t)
	signUp := func(email string) string { return credentials(email, horse) }
	d.with(t, "AUTH_EXTERNAL_EMAIL_ENABLED=false")
	d.refuses(t, "email_provider_disabled", "POST", "/signup", "", signUp(d.unusedAddress()))
	d.with(t, "AUTH_EXTERNAL_EMAIL_AUTHORIZED_ADDRESSES=mia@example.org")
	d.refuses(t, "email_address_not_authorized", "POST", "/signup", "", signUp(d.unusedAddress()))
	d.want(t, 200, "POST", "/signup", "", signUp("mia+1@example.org"))
	d.with(t, "AUTH_EXTERNAL_EMAIL_MAGIC_LINK_ENABLED=false")
	if a, err := call("POST", d.http+"/magiclink", "", `{"email":"mia+1@example.org"}`); err != nil || a.status != 422 {
		t.Errorf("%d %s %v", a.status, a.text, err)
	}
	d.with(t, "")
	unknown := `{"email":"nobody@example.org","create_user":false}`
	d.refuses(t, "otp_disabled", "POST", "/otp", "", unknown)
	d.with(t, "AUTH_SECURITY_HIDE_UNKNOWN_ON_OTP=true")
	d.want(t, 200, "POST", "/otp", "", unknown)
	d.refuses(t, "email_not_confirmed", "POST", "/token?grant_type=password", "", signUp("mia+1@example.org"))
	d.with(t, "AUTH_SECURITY_HIDE_UNCONFIRMED=true")
	d.refuses(t, "invalid_credentials", "POST", "/token?grant_type=password", "", signUp("mia+1@example.org"))

	d.signUp(t, "ann@example.org")
	identities := func() int {
		t.Helper()
		list, _ := d.want(t, 200, "POST", "/signup", "", signUp("ann@example.org")).body["identities"].([]any)
		return len(list)
	}
	if n := identities(); n != 1 {
		t.Errorf("%d identities", n)
	}
	d.with(t, "AUTH_SECURITY_REVEAL_EXISTING_USERS=true")
	if n := identities(); n != 0 {
		t.Errorf("%d identities", n)
	}
	large := `{"email":"` + d.unusedAddress() +
		`","password":"correct horse","data":{"a":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}}`
	d.with(t, "AUTH_METADATA_MAX_BYTES=30")
	if a, err := call("POST", d.http+"/signup", "", large); err != nil || a.status < 400 {
		t.Error(a.text, err)
	}
	d.with(t, "AUTH_METADATA_MAX_BYTES=300")
	d.want(t, 200, "POST", "/signup", "", large)
}

// What a client or an account may do at most.
func TestEffects_guesses(t *testing.T) {
	t.Parallel()
	d := startTuned(t)
	const auto = "AUTH_MAILER_AUTOCONFIRM=true"
	d.with(t, auto, "AUTH_RATE_LIMIT_CODES_PER_ACCOUNT=1")
	const code = `{"type":"email","email":"ann@example.org","token":"000000"}`
	d.refuses(t, "otp_expired", "POST", "/verify", "", code)
	d.refuses(t, "over_request_rate_limit", "POST", "/verify", "", code)

	ask := func(client, path, body string, want int) {
		t.Helper()
		if a := d.request(t, "POST", path, body, "X-Real-Ip", client); a.StatusCode != want {
			t.Errorf("%s from %s: %d, want %d", path, client, a.StatusCode, want)
		}
	}
	for i, setting := range []string{"AUTH_RATE_LIMIT_SENT_PER_CLIENT=0.001", "AUTH_RATE_LIMIT_SENT_PER_CLIENT=0"} {
		d.with(t, "AUTH_RATE_LIMIT_HEADER=X-Real-Ip", setting)
		ask("192.0.2.7", "/recover", fmt.Sprintf(`{"email":"a%d@example.org"}`, i), 200)
		ask("192.0.2.7", "/recover", fmt.Sprintf(`{"email":"b%d@example.org"}`, i), []int{429, 200}[i])
		ask("198.51.100.7", "/recover", fmt.Sprintf(`{"email":"c%d@example.org"}`, i), 200)
	}
	const signIn = "/token?grant_type=password"
	for i, setting := range []string{"AUTH_SECURITY_KNOWN_PLACES=true", "AUTH_SECURITY_KNOWN_PLACES=false"} {
		d.with(t, auto, "AUTH_RATE_LIMIT_HEADER=X-Real-Ip", "AUTH_RATE_LIMIT_PASSWORD_PER_ACCOUNT=1", setting)
		email := d.unusedAddress()
		d.want(t, 200, "POST", "/signup", "", credentials(email, horse))
		ask("192.0.2.7", signIn, credentials(email, horse), 200)
		ask("198.51.100.7", signIn, credentials(email, "wrong"), 400)
		ask("192.0.2.7", signIn, credentials(email, horse), []int{200, 429}[i])
	}
}

func TestEffects_http(t *testing.T) {
	t.Parallel()
	d := startTuned(t)
	d.with(t, "AUTH_REQUEST_ID_HEADER=X-Trace", "AUTH_CORS_ALLOWED_HEADERS=x-mine",
		"AUTH_SECURITY_FORWARDED_FOR_ENABLED=true")
	if got := d.request(t, "GET", "/settings", "", "X-Trace", "seven").Header.Get("X-Trace"); got != "seven" {
		t.Errorf("request id %q", got)
	}
	preflight := func(header string) string {
		t.Helper()
		return d.request(t, "OPTIONS", "/settings", "", "Origin", "https://a.test", "Access-Control-Request-Method",
			"GET", "Access-Control-Request-Headers", header).Header.Get("Access-Control-Allow-Headers")
	}
	if preflight("x-mine") == "" || preflight("x-theirs") != "" {
		t.Error("CORS does not follow AUTH_CORS_ALLOWED_HEADERS")
	}
	d.request(t, "GET", "/settings", "", "Auth-Forwarded-For", "203.0.113.7")
	d.log.await(t, `"ip":"203.0.113.7"`, nil)
	d.with(t, "AUTH_TRUSTED_PROXIES=127.0.0.1")
	d.request(t, "GET", "/settings", "", "X-Forwarded-For", "203.0.113.8")
	d.log.await(t, `"ip":"203.0.113.8"`, nil)

	twice := func(code string, settings, path, body string) {
		t.Helper()
		d.with(t, "AUTH_RATE_LIMIT_BY_PEER=true", "AUTH_EXTERNAL_ANONYMOUS_USERS_ENABLED=true", settings)
		a, err := call("POST", d.http+path, "", body)
		if err != nil || a.status == 429 {
			t.Errorf("%s at once: %v %s", settings, err, a.text)
		}
		d.refuses(t, code, "POST", path, "", body)
	}
	twice("over_request_rate_limit", "AUTH_RATE_LIMIT_VERIFY=1", "/verify",
		`{"type":"signup","email":"a@example.org","token":"123456"}`)
	twice("over_request_rate_limit", "AUTH_RATE_LIMIT_OTP=1", "/recover", `{"email":"a@example.org"}`)
	twice("over_request_rate_limit", "AUTH_RATE_LIMIT_ANONYMOUS_USERS=1", "/signup", `{}`)
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
	if err := quiet.Stop(20 * time.Second); err != nil {
		t.Error(err)
	}
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

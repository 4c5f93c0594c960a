package test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"gatehouse/auth/internal/hook"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

const hookSecret = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// hooked is an operator's code that is called by HTTP.
type hooked struct {
	*httptest.Server
	mu     sync.Mutex
	asked  []question
	answer func(q question) (status int, body string)
}

// question is one that was signed as it should be. Point is what the URI's path says.
type question struct {
	point string
	trace string // traceparent
	body  map[string]any
}

func (q question) at(path string) any {
	var v any = q.body
	for name := range strings.SplitSeq(path, ".") {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return v
}

func startHooks(t *testing.T) *hooked {
	h := &hooked{}
	key, _ := base64.StdEncoding.DecodeString(hookSecret)
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost { // auth check
			http.Error(w, "only POST", http.StatusMethodNotAllowed)
			return
		}
		body, _ := io.ReadAll(r.Body)
		mac := hmac.New(sha256.New, key)
		io.WriteString(mac, r.Header.Get("webhook-id")+"."+r.Header.Get("webhook-timestamp")+".")
		mac.Write(body)
		q := question{point: strings.TrimPrefix(r.URL.Path, "/"), trace: r.Header.Get("traceparent")}
		if r.Header.Get("webhook-signature") != "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)) ||
			json.Unmarshal(body, &q.body) != nil {
			t.Errorf("an unsigned question: %v %s", r.Header, body)
		}
		if q.at("metadata.name") != q.point {
			t.Errorf("%s was asked %s", q.point, body)
		}
		h.mu.Lock()
		h.asked = append(h.asked, q)
		answer := h.answer
		h.mu.Unlock()
		status, text := 200, "{}"
		if answer != nil {
			status, text = answer(q)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		io.WriteString(w, text)
	}))
	t.Cleanup(h.Close)
	return h
}

// hookNames are what the settings call a point, between AUTH_HOOK_ and _URI.
var hookNames = map[hook.Point]string{
	hook.SendSMS: "SEND_SMS", hook.SendEmail: "SEND_EMAIL", hook.CustomAccessToken: "CUSTOM_ACCESS_TOKEN",
	hook.FactorAttempt: "MFA_VERIFICATION_ATTEMPT", hook.PasswordAttempt: "PASSWORD_VERIFICATION_ATTEMPT",
	hook.BeforeUserCreated: "BEFORE_USER_CREATED", hook.AfterUserCreated: "AFTER_USER_CREATED",
}

// environ switches the hooks of some points on.
func (h *hooked) environ(points ...hook.Point) (all []string) {
	for _, p := range points {
		name := "AUTH_HOOK_" + hookNames[p]
		all = append(all, name+"_ENABLED=true", name+"_URI="+h.URL+"/"+string(p), name+"_SECRETS=v1,whsec_"+hookSecret)
	}
	return all
}

func (h *hooked) behave(answer func(question) (int, string)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer = answer
}

// of are the questions of a point so far.
func (h *hooked) of(p hook.Point) (all []question) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, q := range h.asked {
		if q.point == string(p) {
			all = append(all, q)
		}
	}
	return all
}

func onlyAt(p hook.Point, status int, body string) func(question) (int, string) {
	return func(q question) (int, string) {
		if q.point == string(p) {
			return status, body
		}
		return 200, "{}"
	}
}

func execSQL(t *testing.T, url string, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		testdb.Exec(t, url, sql)
	}
}

// The hooks around a creation, and those that send: a refused user leaves nothing behind, a created one is reported
// once, and mails and SMS go to the hooks.
func TestHooks_created(t *testing.T) {
	t.Parallel()
	h, url := startHooks(t), testdb.Postgres(t)
	d := launch(t, t.TempDir(), environment(url,
		append(h.environ(hook.BeforeUserCreated, hook.AfterUserCreated, hook.SendEmail, hook.SendSMS),
			"AUTH_EXTERNAL_PHONE_ENABLED=true", "AUTH_EXTERNAL_ANONYMOUS_USERS_ENABLED=true",
			"AUTH_SMS_MAX_FREQUENCY=0", "AUTH_DEV_MAILBOX=false",
			"AUTH_RATE_LIMIT_SMS_PER_NUMBER=0", "AUTH_MAILER_NOTIFICATIONS_PASSWORD_CHANGED_ENABLED=true")...))
	d.awaitReady(t)
	users := func() int { return testdb.One[int](t, url, `select count(*) from users`) }

	const form = `{"email":"ada@example.org","password":"a long enough one","data":{"name":"Ada"}}`
	h.behave(onlyAt(hook.BeforeUserCreated, 200, `{"error":{"http_code":403,"message":"members only"}}`))
	for _, body := range []string{form, `{}`, `{"phone":"+4915112345678","password":"a long enough one"}`} {
		if a := d.want(t, 403, "POST", "/signup", "", body); a.str("msg") != "members only" ||
			a.str("error_code") != hook.CodeRefused {
			t.Error(a.text)
		}
	}
	d.want(t, 403, "POST", "/otp", "", `{"email":"ada@example.org"}`)
	h.behave(onlyAt(hook.BeforeUserCreated, 200, `{"error":{"message":"broken"}}`))
	if a := d.want(t, 500, "POST", "/signup", "", form); a.str("msg") != "broken" {
		t.Error(a.text)
	}
	if n := users(); n != 0 || testdb.One[int](t, url,
		`select (select count(*) from outbox) + (select count(*) from one_time_tokens) + (select count(*) from sessions) + (select count(*) from identities)`) != 0 {
		t.Errorf("the refused left %d users", n)
	}

	h.behave(nil)
	a := d.want(t, 200, "POST", "/signup", "", form)
	id := a.str("id")
	await.True(t, "the mail and the news",
		func() bool { return len(h.of(hook.SendEmail)) == 1 && len(h.of(hook.AfterUserCreated)) == 1 })
	before := h.of(hook.BeforeUserCreated)
	if q := before[len(before)-1]; q.at("user.id") != id || q.at("user.email") != "ada@example.org" ||
		q.at("user.user_metadata.name") != "Ada" || q.at("metadata.ip_address") != "127.0.0.1" {
		t.Errorf("before: %v", q.body)
	}
	if q := h.of(hook.AfterUserCreated)[0]; q.at("user.id") != id || q.at("metadata.ip_address") != "127.0.0.1" {
		t.Errorf("after: %v", q.body)
	}
	q := h.of(hook.SendEmail)[0]
	token, _ := q.at("email_data.token").(string)
	hash, _ := q.at("email_data.token_hash").(string)
	if q.at("metadata.ip_address") != "127.0.0.1" || q.at("user.id") != id ||
		q.at("user.user_metadata.name") != "Ada" ||
		q.at("email_data.email_action_type") != "signup" || len(token) != 6 || len(hash) < 20 ||
		q.at("email_data.site_url") != "http://localhost:9999" ||
		q.at("email_data.redirect_to") != "http://localhost:3000" {
		t.Errorf("mail: %v", q.body)
	}
	// A known address gets no other answer than an unknown one, even if refused.
	h.behave(onlyAt(hook.BeforeUserCreated, 200, `{"error":{"http_code":403,"message":"members only"}}`))
	d.want(t, 403, "POST", "/signup", "", form)
	h.behave(nil)
	bearer := d.want(t, 200, "POST", "/verify", "",
		`{"type":"signup","email":"ada@example.org","token":"`+token+`"}`).str("access_token")
	d.want(t, 200, "PUT", "/user", bearer, `{"password":"another long one"}`)
	await.True(t, "the notification", func() bool {
		return slices.ContainsFunc(h.of(hook.SendEmail), func(q question) bool {
			return q.at("email_data.email_action_type") == "password_changed_notification"
		})
	})
	// Both halves of a change of address are one question, as receivers know it: the present address has token and
	// token_hash_new, the new one token_new and token_hash.
	d.want(t, 200, "PUT", "/user", bearer, `{"email":"new@example.org"}`)
	changes := func() (all []question) {
		for _, q := range h.of(hook.SendEmail) {
			if q.at("email_data.email_action_type") == "email_change" {
				all = append(all, q)
			}
		}
		return all
	}
	await.True(t, "the change", func() bool { return len(changes()) > 0 })
	q = changes()[0]
	if q.at("user.email") != "ada@example.org" || q.at("user.new_email") != "new@example.org" ||
		q.at("metadata.ip_address") != "127.0.0.1" {
		t.Errorf("change: %v", q.body)
	}
	part := func(name string) string { v, _ := q.at("email_data." + name).(string); return v }
	if part("token") == part("token_new") || len(part("token_new")) != 6 ||
		part("token_hash") == part("token_hash_new") {
		t.Errorf("change: %v", q.body)
	}
	d.want(t, 200, "POST", "/verify", "", `{"type":"email_change","email":"ada@example.org","token":"`+
		part("token")+`"}`)
	if a := d.want(t, 200, "POST", "/verify", "",
		`{"type":"email_change","token_hash":"`+part("token_hash")+`"}`); !strings.Contains(a.text,
		`"email":"new@example.org"`) {
		t.Error(a.text)
	}
	bearer = d.want(t, 200, "POST", "/token?grant_type=password", "",
		`{"email":"new@example.org","password":"another long one"}`).str("access_token")
	d.want(t, 200, "PUT", "/user", bearer, `{"email":"newer@example.org"}`)
	await.True(t, "the second change", func() bool { return len(changes()) > 1 })
	q = changes()[1]
	d.want(t, 200, "POST", "/verify", "",
		`{"type":"email_change","email":"newer@example.org","token":"`+part("token_new")+`"}`)
	d.want(t, 200, "POST", "/verify", "", `{"type":"email_change","token_hash":"`+part("token_hash_new")+`"}`)
	if n := len(changes()); n != 2 {
		t.Errorf("%d questions about two changes", n)
	}

	d.want(t, 200, "POST", "/otp", "", `{"phone":"+4915112345678","channel":"pigeon"}`) // any, where a hook sends
	await.True(t, "the SMS", func() bool { return len(h.of(hook.SendSMS)) == 1 })
	q = h.of(hook.SendSMS)[0]
	code, _ := q.at("sms.otp").(string)
	if q.at("metadata.ip_address") != "127.0.0.1" || q.at("sms.phone") != "4915112345678" ||
		q.at("user.phone") != "4915112345678" || q.at("sms.sms_type") == "mfa" {
		t.Errorf("SMS: %v", q.body)
	}
	d.want(t, 200, "POST", "/verify", "", `{"type":"sms","phone":"+4915112345678","token":"`+code+`"}`)
	d.want(t, 200, "POST", "/signup", "", `{}`)
	await.True(t, "the news of all three", func() bool { return len(h.of(hook.AfterUserCreated)) == 3 })
	d.want(t, 200, "POST", "/otp", "", `{"phone":"+4915112345678"}`)
	await.True(t, "another SMS", func() bool { return len(h.of(hook.SendSMS)) == 2 })

	// A hook's failure is retried, its no is final; neither is the answer.
	h.behave(onlyAt(hook.SendSMS, 500, `{}`))
	d.want(t, 200, "POST", "/otp", "", `{"phone":"+4915112345678"}`)
	await.True(t, "it waits", func() bool {
		return testdb.One[int](t, url,
			`select count(*) from outbox where state = 'pending' and channel = 'sms' and error like '%Unexpected status code returned from hook: 500%'`) == 1
	})
	h.behave(onlyAt(hook.SendSMS, 200, `{"error":{"http_code":422,"message":"no such number"}}`))
	d.want(t, 200, "POST", "/otp", "", `{"phone":"+4915112345678"}`)
	await.True(t, "it is given up", func() bool {
		return testdb.One[int](t, url,
			`select count(*) from outbox where state = 'failed' and channel = 'sms' and error like '%no such number%'`) >= 1
	})
	if n := users(); n != 3 || len(h.of(hook.AfterUserCreated)) != 3 {
		t.Errorf("%d users, told of %d", n, len(h.of(hook.AfterUserCreated)))
	}
}

// AUTH_HOOK_SEND_SYNC: the hook is called before the answer, and what it says is answered.
func TestHooks_sendSync(t *testing.T) {
	t.Parallel()
	h, url := startHooks(t), testdb.Postgres(t)
	d := launch(t, t.TempDir(), environment(url, append(h.environ(hook.SendEmail, hook.SendSMS),
		"AUTH_EXTERNAL_PHONE_ENABLED=true", "AUTH_SMS_MAX_FREQUENCY=0", "AUTH_HOOK_SEND_SYNC=true",
		"AUTH_MFA_PHONE_ENROLL_ENABLED=true", "AUTH_MFA_PHONE_VERIFY_ENABLED=true",
		"AUTH_MFA_PHONE_MAX_FREQUENCY=0")...))
	d.awaitReady(t)
	d.want(t, 200, "POST", "/signup", "", `{"email":"ada@example.org","password":"a long enough one"}`)
	sent := func() []question { return h.of(hook.SendEmail) }
	if q := sent(); len(q) != 1 || testdb.One[int](t, url, `select count(*) from outbox where state = 'sent'`) != 1 {
		t.Fatalf("%v", q)
	}
	token, _ := sent()[0].at("email_data.token").(string)
	bearer := d.want(t, 200, "POST", "/verify", "",
		`{"type":"signup","email":"ada@example.org","token":"`+token+`"}`).str("access_token")
	d.want(t, 200, "POST", "/recover", "", `{"email":"nobody@example.org"}`)
	d.want(t, 200, "POST", "/recover", "", `{"email":"ada@example.org"}`)
	d.want(t, 200, "GET", "/reauthenticate", bearer, "")
	d.want(t, 200, "PUT", "/user", bearer, `{"email":"new@example.org"}`)
	d.want(t, 200, "POST", "/resend", "", `{"type":"email_change","email":"ada@example.org"}`)
	if n := len(sent()); n != 5 {
		t.Errorf("%d mails", n)
	}
	h.behave(func(question) (int, string) { return 200, `{"error":{"http_code":429,"message":"slower"}}` })
	if a := d.want(t, 429, "POST", "/otp", "", `{"email":"ada@example.org"}`); a.str("msg") != "slower" {
		t.Error(a.text)
	}
	d.want(t, 429, "POST", "/otp", "", `{"phone":"+4915112345678"}`)
	d.want(t, 429, "POST", "/signup", "", `{"email":"eve@example.org","password":"a long enough one"}`)
	d.want(t, 200, "POST", "/recover", "", `{"email":"nobody@example.org"}`)
	factor := d.want(t, 200, "POST", "/factors", bearer,
		`{"factor_type":"phone","phone":"+4915112345679","friendly_name":"p"}`).str("id")
	d.want(t, 429, "POST", "/factors/"+factor+"/challenge", bearer, "")
	if q := h.of(hook.SendSMS); len(q) != 2 || q[1].at("sms.sms_type") != "mfa" {
		t.Errorf("%v", q)
	}
	if n := testdb.One[int](t, url, `select count(*) from outbox where state = 'failed' and error like '%slower%'`); n != 4 {
		t.Errorf("%d given up", n)
	}
	if n := testdb.One[int](t, url, `select count(*) from outbox where state = 'pending'`); n != 0 {
		t.Errorf("%d wait", n)
	}
	// Once the hook is back.
	h.behave(nil)
	d.want(t, 200, "POST", "/resend", "", `{"type":"signup","email":"eve@example.org"}`)
}

// The hooks of a sign-in, in PostgreSQL and by HTTP, and by SIGHUP.
func TestHooks_signIn(t *testing.T) {
	t.Parallel()
	h, url, dir := startHooks(t), testdb.Postgres(t), t.TempDir()
	execSQL(t, url,
		`create function claims(event jsonb) returns jsonb language sql as $$
			select jsonb_build_object('claims', (event->'claims') || jsonb_build_object('tenant', 'blue', 'method', event->>'authentication_method')) $$`,
		`create function broken(event jsonb) returns jsonb language sql as $$ select jsonb_build_object('claims', (event->'claims') - 'role') $$`)
	const claims = "AUTH_HOOK_CUSTOM_ACCESS_TOKEN_"
	writeSettings(t, dir, claims+"ENABLED=true", claims+"URI=pg-functions://postgres/public/claims")
	d := launch(t, dir, environment(url, "AUTH_MAILER_AUTOCONFIRM=true"))
	d.awaitReady(t)
	payload := func(a answer) map[string]any {
		t.Helper()
		var m map[string]any
		parts := strings.Split(a.str("access_token"), ".")
		if len(parts) != 3 {
			t.Fatal(a.text)
		}
		text, _ := base64.RawURLEncoding.DecodeString(parts[1])
		must.Succeed(t, json.Unmarshal(text, &m))
		return m
	}
	const form = `{"email":"ada@example.org","password":"a long enough one"}`
	a := d.want(t, 200, "POST", "/signup", "", form)
	if m := payload(a); m["tenant"] != "blue" || m["method"] != "password" {
		t.Errorf("%v", m)
	}
	a = d.want(t, 200, "POST", "/token?grant_type=refresh_token", "", `{"refresh_token":"`+a.str("refresh_token")+`"}`)
	if m := payload(a); m["tenant"] != "blue" || m["method"] != "token_refresh" {
		t.Errorf("%v", m)
	}
	d.want(t, 200, "GET", "/user", a.str("access_token"), "")

	// A hook that breaks the claims: no new session, and a refresh that may come again with its token.
	d.with(t, claims+"ENABLED=true", claims+"URI=pg-functions://postgres/public/broken")
	sessions := func() int { return testdb.One[int](t, url, `select count(*) from sessions where ended_at is null`) }
	had := sessions()
	if b := d.want(t, 500, "POST", "/token?grant_type=password", "",
		form); b.str("msg") != "output claims do not conform to the expected schema" {
		t.Error(b.text)
	}
	d.want(t, 500, "POST", "/signup", "", `{"email":"eve@example.org","password":"a long enough one"}`)
	d.want(t, 503, "POST", "/token?grant_type=refresh_token", "", `{"refresh_token":"`+a.str("refresh_token")+`"}`)
	if sessions() != had || testdb.One[int](t, url, `select count(*) from users`) != 1 {
		t.Errorf("%d sessions, had %d", sessions(), had)
	}
	d.with(t)
	a = d.want(t, 200, "POST", "/token?grant_type=refresh_token", "", `{"refresh_token":"`+a.str("refresh_token")+`"}`)
	if m := payload(a); m["tenant"] != nil {
		t.Errorf("%v", m)
	}

	// The password hook sees the tries for users, and decides.
	d.with(t, h.environ(hook.PasswordAttempt)...)
	d.want(t, 200, "POST", "/token?grant_type=password", "", form)
	wrong := strings.Replace(form, "enough", "wrong", 1)
	d.want(t, 400, "POST", "/token?grant_type=password", "", wrong)
	d.want(t, 400, "POST", "/token?grant_type=password", "", strings.Replace(form, "ada", "nobody", 1))
	tries := h.of(hook.PasswordAttempt)
	if len(tries) != 2 || tries[0].at("valid") != true || tries[1].at("valid") != false ||
		tries[0].at("user_id") != a.body["user"].(map[string]any)["id"] {
		t.Errorf("%v", tries)
	}
	h.behave(onlyAt(hook.PasswordAttempt, 200, `{"decision":"reject","message":"ask support"}`))
	for _, body := range []string{form, wrong} {
		if b := d.want(t, 400, "POST", "/token?grant_type=password", "",
			body); b.str("error_code") != "invalid_credentials" || b.str("msg") != "ask support" {
			t.Error(b.text)
		}
	}
	d.want(t, 200, "GET", "/user", a.str("access_token"), "")
	h.behave(onlyAt(hook.PasswordAttempt, 200, `{"decision":"reject","should_logout_user":true}`))
	if b := d.want(t, 400, "POST", "/token?grant_type=password", "",
		form); b.str("msg") != "Further password verification attempts will be rejected." {
		t.Error(b.text)
	}
	d.want(t, 403, "GET", "/user", a.str("access_token"), "")
	h.behave(onlyAt(hook.PasswordAttempt, 200, `{"decision":"continue"}`))
	a = d.want(t, 200, "POST", "/token?grant_type=password", "", form)

	// The hook of factors.
	d.with(t, h.environ(hook.FactorAttempt)...)
	enrolled := d.want(t, 200, "POST", "/factors", a.str("access_token"),
		`{"factor_type":"totp","friendly_name":"phone"}`)
	factor := "/factors/" + enrolled.str("id")
	challenge := d.want(t, 200, "POST", factor+"/challenge", a.str("access_token"), "").str("id")
	h.behave(onlyAt(hook.FactorAttempt, 200, `{"decision":"reject","message":"not from here"}`))
	if b := d.want(t, 403, "POST", factor+"/verify", a.str("access_token"),
		`{"challenge_id":"`+challenge+`","code":"000000"}`); b.str("msg") != "not from here" {
		t.Error(b.text)
	}
	if q := h.of(hook.FactorAttempt); len(q) != 1 || q[0].at("factor_id") != enrolled.str("id") ||
		q[0].at("factor_type") != "totp" || q[0].at("valid") != false {
		t.Errorf("%v", q)
	}
}

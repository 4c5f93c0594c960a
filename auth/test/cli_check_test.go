package test

import (
	"strings"
	"testing"

	"gatehouse/auth/internal/captcha/captchatest"
	"gatehouse/auth/internal/hook"
	"gatehouse/auth/internal/sms/smstest"
	"gatehouse/shared/fakeidp"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// auth check prints each warning once, also when the settings have an error, and in its report.
func TestCheck_warnings(t *testing.T) {
	status, stdout, stderr := command(t, environment("postgres://h/d", "AUTH_SITE_ULR=x", "AUTH_DB_DRIVER=mysql"), "",
		"check")
	if n := strings.Count(stdout+stderr, "AUTH_SITE_ULR"); status != 1 ||
		n != 1 || !strings.Contains(stdout, "warn  AUTH_SITE_ULR") {
		t.Errorf("status %d, %d times\n%s\n%s", status, n, stdout, stderr)
	}
}

// A start sums up the names whose prefix alone changed; check lists them.
func TestCheck_oldNames(t *testing.T) {
	env := environment("postgres://h/d", "AUTH_DB_DRIVER=mysql", "GOTRUE_JWT_EXP=60", "GOTRUE_JWT_AUD=x",
		"GOTRUE_LOG_LEVEL=", "REQUEST_ID_HEADER=X-Id", "GOTRUE_DISABLE_SIGNUP=true",
		"GOTRUE_SECURITY_SB_FORWARDED_FOR_ENABLED=true")
	const one = "GOTRUE_JWT_EXP is an old name; it is called AUTH_JWT_EXP now"
	if _, stdout, _ := command(t, env, "", "check"); !strings.Contains(stdout, "warn  "+one) ||
		strings.Count(stdout, "is an old name") != 5 || strings.Contains(stdout, "settings have names of") {
		t.Errorf("check:\n%s", stdout)
	}
	const all = "4 settings have names of the replaced service (REQUEST_ID_HEADER, GOTRUE_DISABLE_SIGNUP, " +
		"GOTRUE_JWT_AUD, …): each works as AUTH_… for two major versions; auth check lists them"
	const otherwise = "GOTRUE_SECURITY_SB_FORWARDED_FOR_ENABLED is an old name; it is called " +
		"AUTH_SECURITY_FORWARDED_FOR_ENABLED now"
	d := launch(t, t.TempDir(), append(env, "AUTH_DB_DRIVER=postgres"))
	d.log.await(t, all, nil)
	d.log.await(t, otherwise, nil)
	if strings.Contains(d.log.text(), one) {
		t.Errorf("serve:\n%s", d.log.text())
	}
	// Errors come without warnings: check has both.
	if status, _, stderr := command(t, env, "", "serve"); status != 1 || !strings.Contains(stderr, "AUTH_DB_DRIVER") ||
		strings.Contains(stderr, "old name") {
		t.Errorf("serve: status %d\n%s", status, stderr)
	}
}

// Behind a pooler that loses prepared statements check and start name the parameter that helps; with it all is well.
func TestCheck_pooler(t *testing.T) {
	t.Parallel()
	pg := testdb.PrivatePostgres(t, localserver.PostgresOptions{})
	url := testdb.PgBouncer(t, pg, "default_pool_size = 2").PostgresURL("postgres")
	const advice = "add the parameter default_query_exec_mode=cache_describe"
	status, stdout, stderr := command(t, environment(url), "", "check")
	if strings.Contains(stdout, "ok    database keeps prepared statements\n") {
		t.Skip("prepared statements survive this PgBouncer") // from 1.21 on it can keep track of them
	}
	if status != 1 || !strings.Contains(stdout, "FAIL  database keeps prepared statements: ") ||
		!strings.Contains(stdout, advice) {
		t.Errorf("check: status %d\n%s\n%s", status, stdout, stderr)
	}
	status, _, stderr = command(t, environment(url), "", "serve")
	if status != 1 || !strings.Contains(stderr, "DATABASE_URL: ") || !strings.Contains(stderr, advice) {
		t.Errorf("serve: status %d\n%s", status, stderr)
	}
	env := environment(url + "&default_query_exec_mode=cache_describe")
	start(t, env).signUp(t, "ann@example.org")
	status, stdout, stderr = command(t, env, "", "check")
	if status != 0 || !strings.Contains(stdout, "ok    database keeps prepared statements\n") {
		t.Errorf("check with the parameter: status %d\n%s\n%s", status, stdout, stderr)
	}
	// Without it other commands give the advice too: a run prepares statements that an earlier one has left, once it gets
	// the same connection of the pooler's two.
	for range 20 {
		if status, stdout, stderr = command(t, environment(url), "", "mirror", "check"); strings.Contains(stderr, advice) {
			break
		}
	}
	if status != 1 || !strings.Contains(stderr, advice) {
		t.Errorf("mirror check: status %d\n%s\n%s", status, stdout, stderr)
	}
}

// A database user that may only read and write rows serves a schema that another one has migrated; check prints what
// the next migrations would need.
func TestCheck_rowsOnly(t *testing.T) {
	t.Parallel()
	pg := testdb.PrivatePostgres(t, localserver.PostgresOptions{})
	owner := pg.PostgresURL("postgres")
	if status, out, errs := command(t, environment(owner), "", "migrate"); status != 0 {
		t.Fatal(out, errs)
	}
	conn := testdb.Connect(t, owner)
	if _, err := conn.Exec(t.Context(),
		"create role rows login; grant select, insert, update, delete on all tables in schema public to rows"); err !=
		nil {
		t.Fatal(err)
	}
	env := environment(strings.Replace(owner, "postgres@", "rows@", 1))
	d := start(t, env)
	d.signUp(t, "ann@example.org")
	status, stdout, stderr := command(t, env, "", "check")
	if status != 0 || !strings.Contains(stdout,
		"warn  the next version's migrations would need: CREATE on schema public; ownership of table ") ||
		!strings.Contains(stdout, "ok    database rights\n") {
		t.Errorf("status %d\n%s\n%s", status, stdout, stderr)
	}
}

// It finds out whether the providers' endpoints and request tokens can be fetched.
func TestCheck_providers(t *testing.T) {
	t.Parallel()
	idp, err := fakeidp.Start(fakeidp.Options{})
	must.Succeed(t, err)
	defer idp.Close()
	free := func(name, issuer string) []string {
		p := "AUTH_EXTERNAL_OIDC_" + name + "_"
		return []string{p + "ISSUER=" + issuer, p + "CLIENT_ID=" + fakeidp.ClientID,
			p + "SECRET=" + fakeidp.ClientSecret, p + "REDIRECT_URI=http://localhost:9999/callback"}
	}
	env := append(environment(testdb.Postgres(t), providersAt(idp, "http://localhost:9999/callback")...),
		free("GOOD", idp.Base("oidc"))...)
	env = append(env, free("AWAY", idp.URL+"/nobody")...)
	env = append(env, "AUTH_EXTERNAL_FIGMA_ID_TOKEN_ONLY=true", "AUTH_EXTERNAL_FIGMA_SECRET=")
	status, stdout, _ := command(t, env, "", "check")
	for _, want := range []string{"ok    provider google\n", "ok    provider twitter\n", "ok    provider workos\n",
		"ok    provider good\n", "FAIL  provider away: "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in\n%s", want, stdout)
		}
	}
	if status != 1 || strings.Contains(stdout, "figma") || strings.Contains(stdout, "FAIL  provider good") ||
		strings.Contains(stdout, fakeidp.ClientSecret) {
		t.Errorf("status %d\n%s", status, stdout)
	}
}

// It finds out whether hooks, SMS gateway and captcha provider can be reached, without calling a hook or sending an
// SMS.
func TestCheck_reachability(t *testing.T) {
	t.Parallel()
	url, h, gateway, solved := testdb.Postgres(t), startHooks(t), smstest.Start(t), captchatest.Start(t)
	execSQL(t, url, `create function good(event jsonb) returns jsonb language sql as $$ select event $$`,
		`create function bad(event jsonb) returns int language sql as $$ select 1 $$`)
	env := append(environment(url, "AUTH_DEV_MAILBOX=false", "AUTH_MAILER_AUTOCONFIRM=true", "AUTH_SMS_PROVIDER=twilio",
		"AUTH_HOOK_CUSTOM_ACCESS_TOKEN_ENABLED=true",
		"AUTH_HOOK_CUSTOM_ACCESS_TOKEN_URI=pg-functions://postgres/public/good",
		"AUTH_SECURITY_CAPTCHA_ENABLED=true", "AUTH_SECURITY_CAPTCHA_SECRET="+captchatest.Secret,
		"AUTH_SECURITY_CAPTCHA_URL="+solved.URL()), gateway.Environ()...)
	status, stdout, stderr := command(t, append(env, h.environ(hook.BeforeUserCreated)...), "", "check")
	for _, want := range []string{
		"ok    SMS gateway: twilio at " + gateway.URL() + "\n", "ok    captcha: hcaptcha at ",
		"ok    hook before-user-created: " + h.URL + "/before-user-created\n",
		"ok    hook customize-access-token: function public.good\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in\n%s", want, stdout)
		}
	}
	if status != 0 || len(h.of(hook.BeforeUserCreated)) > 0 || gateway.Asked() > 0 {
		t.Errorf("status %d\n%s\n%s", status, stdout, stderr)
	}
	status, stdout, _ = command(t,
		append(env, "AUTH_SMS_TWILIO_AUTH_TOKEN=hunter2", "AUTH_SMS_TWILIO_MESSAGE_SERVICE_SID=Our Company Ltd",
			"AUTH_HOOK_BEFORE_USER_CREATED_ENABLED=true",
			"AUTH_HOOK_BEFORE_USER_CREATED_URI=http://user:hunter2@127.0.0.1:1/hook?key=hunter2",
			"AUTH_HOOK_BEFORE_USER_CREATED_SECRETS=v1,whsec_"+hookSecret,
			"AUTH_HOOK_PASSWORD_VERIFICATION_ATTEMPT_ENABLED=true",
			"AUTH_HOOK_PASSWORD_VERIFICATION_ATTEMPT_URI=pg-functions://postgres/public/bad",
			"AUTH_HOOK_MFA_VERIFICATION_ATTEMPT_ENABLED=true",
			"AUTH_HOOK_MFA_VERIFICATION_ATTEMPT_URI=pg-functions://postgres/public/none"), "", "check")
	for _, want := range []string{
		"warn  AUTH_SMS_TWILIO_MESSAGE_SERVICE_SID does not look like a messaging service's SID",
		"FAIL  SMS gateway: twilio at " +
			gateway.URL() + ": twilio does not know AUTH_SMS_TWILIO_ACCOUNT_SID, AUTH_SMS_TWILIO_AUTH_TOKEN\n",
		"FAIL  hook before-user-created: http://127.0.0.1:1/hook: calling 127.0.0.1:1: ",
		"FAIL  hook password-verification: function public.bad: bad(jsonb) returns integer, not json or jsonb\n",
		"FAIL  hook mfa-verification: function public.none: there is no function public.none\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in\n%s", want, stdout)
		}
	}
	if status != 1 || strings.Contains(stdout, "hunter2") {
		t.Errorf("status %d\n%s", status, stdout)
	}
}

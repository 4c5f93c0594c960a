package test

import (
	"regexp"
	"strings"
	"testing"

	"gatehouse/shared/testdb"
)

// auth admin lists a user's sessions and factors and ends them, and prints no secret.
func TestCLI_admin(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t)
	env := environment(url)
	d := start(t, env)
	printed := ""
	f := func(status int, want, wantErr string, args ...string) string {
		t.Helper()
		got, out, errs := command(t, env, "better horse\n", append([]string{"admin"}, args...)...)
		if got != status || !regexp.MustCompile(want).MatchString(out) || !strings.Contains(errs, wantErr) {
			t.Errorf("%q: %d\n%s\n%s\nwant %d, %s, %s", args, got, out, errs, status, want, wantErr)
		}
		printed += out + errs
		return out
	}
	const ann = "ann@example.org"
	first := d.signUp(t, ann)
	second := d.want(t, 200, "POST", "/token?grant_type=password", "", `{"email":"`+ann+`","password":"correct horse"}`)
	factor := d.want(t, 200, "POST", "/factors", first.str("access_token"), `{"factor_type":"totp","friendly_name":"my\u001bapp"}`)
	out := f(0, `(?m)^ID +CREATED +REFRESHED +LEVEL +ADDRESS +ENDED +REASON +USER AGENT$`, "", "sessions", ann)
	ids := regexp.MustCompile(`(?m)^[0-9a-f-]{36}`).FindAllString(out, -1)
	if len(ids) != 2 {
		t.Fatal(out)
	}
	f(0, "^ended "+ids[0], "", "sessions", "-end", ids[0], ann) // the newest
	d.want(t, 403, "GET", "/user", second.str("access_token"), "")
	f(1, "^$", "Session not found", "sessions", "-end", "00000000-0000-4000-8000-000000000000", ann)
	f(2, "^$", "-end is an id or all", "sessions", "-end", "x", ann)
	f(0, `(?m)^`+factor.str("id")+` +totp +my\?app `, "", "factors", ann)
	f(1, "^$", "", "factors", "-delete", "00000000-0000-4000-8000-000000000000", ann)
	f(0, "^removed "+factor.str("id"), "", "factors", "-delete", "all", ann)
	f(0, `^ID +KIND +NAME +PHONE +CREATED +VERIFIED +LAST CHALLENGE\n$`, "", "factors", ann)
	f(0, "^ended all of ", "", "sessions", "-end", "all", ann)
	d.want(t, 403, "GET", "/user", first.str("access_token"), "")
	f(0, ` admin +`, "", "sessions", ann)
	f(0, `"has_password": true`, "", "password", ann)
	d.want(t, 200, "POST", "/token?grant_type=password", "", `{"email":"`+ann+`","password":"better horse"}`)
	f(0, ann, "", "list")
	const bob = "bob@example.org" // recovery codes go with the last other factor
	d.signUp(t, bob)
	id, _ := enrolTOTP(t, d, bob)
	execSQL(t, url, `insert into factors (id, user_id, kind, friendly_name, created_at, updated_at, verified_at)
		values (gen_random_uuid(), '`+id+`', 'recovery_code', 'Recovery codes', now(), now(), now())`)
	f(0, `^removed [0-9a-f-]{36}\nremoved [0-9a-f-]{36}\n$`, "", "factors", "-delete", "all", bob)
	totp, _ := factor.body["totp"].(map[string]any)
	for _, secret := range []string{"horse", totp["secret"].(string), first.str("access_token"), first.str("refresh_token"),
		"$2a$"} {
		if strings.Contains(printed, secret) {
			t.Errorf("the output has %q", secret)
		}
	}
}

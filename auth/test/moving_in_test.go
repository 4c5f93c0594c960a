package test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// other is the URL of another role or database of the server.
func other(t *testing.T, link, role, database string) string {
	t.Helper()
	u, err := url.Parse(link)
	must.Succeed(t, err)
	if role != "" {
		u.User = url.User(role)
	}
	if database != "" {
		u.Path = "/" + database
	}
	return u.String()
}

// runbook types the commands of docs/moving-in.md.
type runbook struct {
	t     *testing.T
	dir   string
	env   []string
	words *strings.Replacer // the page's names, and those of this test
}

// console types the commands of the block whose first one begins with this, and compares the answers.
func (r *runbook) console(first string) {
	r.t.Helper()
	page := regexp.MustCompile(`(?m)^ {3}`).ReplaceAllString(document(r.t, "docs/moving-in.md"), "")
	_, block, found := strings.Cut(page, "```console\n$ "+first)
	if !found {
		r.t.Fatalf("docs/moving-in.md has no block that begins with %s", first)
	}
	block, _, _ = strings.Cut(first+block, "\n```")
	for command := range strings.SplitSeq(block, "\n$ ") {
		line, want, _ := strings.Cut(strings.TrimRight(command, "\n"), "\n")
		cmd := exec.Command("sh", "-c", r.words.Replace(line))
		cmd.Dir, cmd.Env = r.dir, r.env
		out, err := cmd.CombinedOutput()
		if got := strings.TrimRight(string(out), "\n"); err != nil || !alike(want).MatchString(got) {
			r.t.Errorf("$ %s\n it says:\n%s\n true is (%v):\n%s", line, want, err, got)
		}
	}
}

// The runbook, typed from its page with the application of the fixture: the copy, the takeover, the mirror, old tokens,
// a sign-up by every way that is on, the way back, and a second attempt.
func TestMovingIn_runbook(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"psql", "curl"} {
		testdb.Program(t, program)
	}
	idp, admin := startIDP(t), testdb.Postgres(t)
	source := formertest.Fill(t, admin, "auth", formertest.Newest, time.Now())
	formertest.AddApplication(t, admin)
	formertest.Exec(t, admin, recordEvents)
	here, err := url.Parse(other(t, admin, "gatehouse", ""))
	must.Succeed(t, err)
	name, query := strings.TrimPrefix(here.Path, "/"), here.Query()
	query.Set("search_path", "gatehouse")
	here.RawQuery = query.Encode()
	settings := append(environment(here.String(),
		"AUTH_TAKEOVER_SOURCE_URL="+other(t, admin, "supabase_auth_admin", ""), "AUTH_JWT_ALGORITHM=HS256",
		"AUTH_SECURITY_DB_ENCRYPTION_DECRYPTION_KEYS="+formertest.Keys, "AUTH_EXTERNAL_PHONE_ENABLED=true",
		"AUTH_EXTERNAL_ANONYMOUS_USERS_ENABLED=true", "AUTH_SMS_TEST_OTP=4915100000001:424242,4915100000002:424242,4915100000004:424242"),
		providersAt(idp, backHere)...)
	settings = slices.Clip(settings) // it is appended to more than once
	r := &runbook{t: t, dir: t.TempDir(), env: settings}
	must.Succeed(t, os.Symlink(os.Args[0], filepath.Join(r.dir, "auth")))
	u := source.User(1)
	r.env = append(r.env, "PATH="+r.dir+":"+os.Getenv("PATH"), "OLD_ACCESS_TOKEN="+oldAccess(u), "OLD_REFRESH_TOKEN="+u.Sessions[0].Token)
	names := func(daemon string) *strings.Replacer {
		return strings.NewReplacer("psql postgres", "psql '"+other(t, admin, "", "postgres")+"'", "psql app", "psql '"+admin+"'",
			"rehearsal template app", name+"_rehearsal template "+name, "datname = 'app'", "datname = '"+name+"'",
			"auth takeover", "auth takeover -leave-out passwords,saml,web3,webauthn,oauth", "http://127.0.0.1:8081", daemon)
	}
	r.words = names("")
	r.console("psql postgres")
	for _, step := range []string{"psql app -c 'create schema", "auth takeover -dry-run", "auth takeover -ahead",
		`psql app -Atc "select count(*)`, "auth takeover\n", "psql app -c 'grant gatehouse"} {
		r.console(step)
	}
	d := start(t, settings)
	r.words = names(d.http)
	r.console("curl")
	waysToChange(t, &tuned{instance: d, database: admin}, idp, settings)
	if status, out, errs := command(t, settings, "", "mirror", "check"); status != 0 {
		t.Errorf("after the sign-ups: %s%s", out, errs)
	}
	must.Succeed(t, d.Stop(20*time.Second))
	r.console("psql app -c 'grant gatehouse to supabase_auth_admin'\nGRANT ROLE\n$ auth mirror drop")
	if n := testdb.One[int](t, admin, `select count(*) from auth.users o join gatehouse.users u using (id)
		where u.password_hash like '$2%' and o.encrypted_password <> u.password_hash`); n != 0 {
		t.Errorf("%d hashes did not go back", n)
	}
	users := testdb.One[int](t, admin, "select count(*) from gatehouse.users")
	for _, step := range []string{"psql app -c 'drop schema", "psql app -c 'create schema", "auth takeover\n", "psql app -c 'grant gatehouse"} {
		r.console(step)
	}
	if n := testdb.One[int](t, admin, "select count(*) from gatehouse.users"); n != users {
		t.Errorf("the second attempt has carried %d users, want %d", n, users)
	}
	r.console("auth mirror scrub")
	r.console("psql app -Atc \"select 'drop table")
	if n := testdb.One[int](t, admin, "select count(*) from auth.users where encrypted_password <> ''"); n != 0 {
		t.Errorf("%d hashes are left there", n)
	}
}

// oldAccess is an access token of the service there.
func oldAccess(u *formertest.User) string {
	b64 := base64.RawURLEncoding
	text := b64.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + b64.EncodeToString(fmt.Appendf(nil,
		`{"aud":"authenticated","sub":%q,"session_id":%q,"role":"authenticated","aal":"aal1","exp":%d}`, u.ID, u.Sessions[0].ID,
		time.Now().Add(time.Hour).Unix()))
	mac := hmac.New(sha256.New, []byte("0123456789abcdef0123456789abcdef"))
	mac.Write([]byte(text))
	return text + "." + b64.EncodeToString(mac.Sum(nil))
}

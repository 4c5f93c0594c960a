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
	"gatehouse/shared/fakeidp"
	"gatehouse/shared/localserver"
	"gatehouse/shared/testdb"
)

// other is the URL of another role or database of the server.
func other(t *testing.T, link, role, database string) string {
	t.Helper()
	u, err := url.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
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
		if _, err := localserver.Find(program); err != nil && os.Getenv("REQUIRE_SERVERS") != "" {
			t.Fatal(err)
		} else if err != nil {
			t.Skip(err)
		}
	}
	idp, admin := startIDP(t), testdb.Postgres(t)
	source := formertest.Fill(t, admin, "auth", formertest.Newest, time.Now())
	formertest.AddApplication(t, admin)
	formertest.Exec(t, admin, recordEvents)
	here, err := url.Parse(other(t, admin, "gatehouse", ""))
	if err != nil {
		t.Fatal(err)
	}
	name, query := strings.TrimPrefix(here.Path, "/"), here.Query()
	query.Set("search_path", "gatehouse")
	here.RawQuery = query.Encode()
	settings := append(environment(here.String(),
		"AUTH_TAKEOVER_SOURCE_URL="+other(t, admin, "supabase_auth_admin", ""), "AUTH_JWT_ALGORITHM=HS256",
		"AUTH_SECURITY_DB_ENCRYPTION_DECRYPTION_KEYS="+formertest.Keys, "AUTH_EXTERNAL_PHONE_ENABLED=true",
		"AUTH_EXTERNAL_ANONYMOUS_USERS_ENABLED=true", "AUTH_SMS_TEST_OTP=4915100000001:424242,4915100000002:424242"),
		providersAt(idp, backHere)...)
	settings = slices.Clip(settings) // it is appended to more than once
	r := &runbook{t: t, dir: t.TempDir(), env: settings}
	if err := os.Symlink(os.Args[0], filepath.Join(r.dir, "auth")); err != nil {
		t.Fatal(err)
	}
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
	waysToSignUp(t, &tuned{instance: d, database: admin}, idp, settings)
	if status, out, errs := command(t, settings, "", "mirror", "check"); status != 0 {
		t.Errorf("after the sign-ups: %s%s", out, errs)
	}
	if err := d.Stop(20 * time.Second); err != nil {
		t.Error(err)
	}
	r.console("psql app -c 'grant gatehouse to supabase_auth_admin'\nGRANT ROLE\n$ auth mirror drop")
	if n := count(t, admin, `select count(*) from auth.users o join gatehouse.users u using (id)
		where u.password_hash like '$2%' and o.encrypted_password <> u.password_hash`); n != 0 {
		t.Errorf("%d hashes did not go back", n)
	}
	users := count(t, admin, "select count(*) from gatehouse.users")
	for _, step := range []string{"psql app -c 'drop schema", "psql app -c 'create schema", "auth takeover\n", "psql app -c 'grant gatehouse"} {
		r.console(step)
	}
	if n := count(t, admin, "select count(*) from gatehouse.users"); n != users {
		t.Errorf("the second attempt has carried %d users, want %d", n, users)
	}
	r.console("auth mirror scrub")
	r.console("psql app -Atc \"select 'drop table")
	if n := count(t, admin, "select count(*) from auth.users where encrypted_password <> ''"); n != 0 {
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

// recordEvents notes what an application's triggers see: a new user, a confirmation, an identity.
const recordEvents = `
create table app.events (n bigint generated always as identity, id uuid, what text);
create function app.note_user() returns trigger language plpgsql security definer set search_path = '' as $$ begin
	insert into app.events (id, what) values (new.id, concat_ws(' ', case when tg_op = 'INSERT' then 'new' else 'confirmed' end,
		new.raw_user_meta_data ->> 'name', new.raw_app_meta_data ->> 'provider',
		case when new.confirmed_at is not null then 'is confirmed' end));
	return null; end $$;
create trigger note_new after insert on auth.users for each row execute function app.note_user();
create trigger note_confirmed after update on auth.users for each row
	when (old.confirmed_at is null and new.confirmed_at is not null) execute function app.note_user();
create function app.note_identity() returns trigger language plpgsql security definer set search_path = '' as $$ begin
	insert into app.events (id, what) values (new.user_id, 'identity ' || new.provider); return null; end $$;
create trigger note_identity after insert on auth.identities for each row execute function app.note_identity()`

// waysToSignUp signs up by each way that is on: the application sees one new user with complete metadata, and one
// confirmation, at once or when the address is proven.
func waysToSignUp(t *testing.T, d *tuned, idp *fakeidp.Server, settings []string) {
	service := d.admin(t, "service_role")
	const data = `"data":{"name":"Mia"}`
	post := func(on *instance, path, bearer, body string) func() {
		return func() { on.want(t, 200, "POST", path, bearer, body) }
	}
	prove := func(kind, to string) func() {
		return func() {
			_, code := d.mail(t, to)
			d.want(t, 200, "POST", "/verify", "", `{"type":"`+kind+`","email":"`+to+`","token":"`+code+`"}`)
		}
	}
	proveSMS := func(to string) func() {
		return func() {
			d.want(t, 200, "POST", "/verify", "", `{"type":"sms","phone":"`+to+`","token":"424242"}`)
		}
	}
	var link, linkKind string
	generate := func(kind, to, more string) func() {
		return func() {
			a := d.want(t, 200, "POST", "/admin/generate_link", service, `{"type":"`+kind+`","email":"`+to+`",`+data+more+`}`)
			link, linkKind = a.str("hashed_token"), a.str("verification_type")
		}
	}
	follow := func() { d.want(t, 200, "POST", "/verify", "", `{"type":"`+linkKind+`","token_hash":"`+link+`"}`) }
	some := func(email string) fakeidp.User {
		return fakeidp.User{ID: email, Login: "mia", Name: "Mia", GivenName: "Mia", Email: email, Verified: true}
	}
	anonymous := ""
	const pending, mailed = "new Mia email|identity email", "new Mia email|identity email|confirmed Mia email is confirmed"
	const atOnce = "new Mia email|confirmed Mia email is confirmed|identity email" // the user as a whole, then the identity
	for _, way := range []struct {
		name, who    string // the user's address or number
		begin, prove func()
		seen, then   string // the events after each
	}{
		{"password", "way1@example.org", post(d.instance, "/signup", "",
			`{"email":"way1@example.org","password":"correct horse",`+data+`}`), prove("signup", "way1@example.org"), pending, mailed},
		{"password, autoconfirm", "way2@example.org", func() {
			auto := start(t, append(settings, "AUTH_MAILER_AUTOCONFIRM=true"))
			post(auto, "/signup", "", `{"email":"way2@example.org","password":"correct horse",`+data+`}`)()
			if err := auto.Stop(20 * time.Second); err != nil { // it would send mails of d's to its own mailbox
				t.Error(err)
			}
		}, nil, atOnce, ""},
		{"code by mail", "way3@example.org", post(d.instance, "/otp", "", `{"email":"way3@example.org","create_user":true,`+data+`}`),
			prove("email", "way3@example.org"), pending, mailed},
		{"magic link", "way4@example.org", post(d.instance, "/magiclink", "", `{"email":"way4@example.org",`+data+`}`),
			prove("email", "way4@example.org"), pending, mailed},
		{"code by SMS", "4915100000001", post(d.instance, "/otp", "", `{"phone":"4915100000001","create_user":true,`+data+`}`),
			proveSMS("4915100000001"), "new Mia phone|identity phone", "new Mia phone|identity phone|confirmed Mia phone is confirmed"},
		{"phone and password", "4915100000002", post(d.instance, "/signup", "",
			`{"phone":"4915100000002","password":"correct horse",`+data+`}`), proveSMS("4915100000002"),
			"new Mia phone|identity phone", "new Mia phone|identity phone|confirmed Mia phone is confirmed"},
		{"provider", "way5@example.org", func() { d.comes(t, idp, "", "google", some("way5@example.org")) }, nil,
			"new Mia google|confirmed Mia google is confirmed|identity google", ""},
		{"ID token", "way6@example.org", func() {
			if a := d.native(t, "google", idp.IDToken("google", some("way6@example.org"), nil)); a.status != 200 {
				t.Errorf("ID token: %d %s", a.status, a.text)
			}
		}, nil, "new Mia google|confirmed Mia google is confirmed|identity google", ""},
		{"invitation", "way7@example.org", post(d.instance, "/invite", service, `{"email":"way7@example.org",`+data+`}`),
			prove("invite", "way7@example.org"), pending, mailed},
		{"administrator, confirmed", "way8@example.org", post(d.instance, "/admin/users", service,
			`{"email":"way8@example.org","email_confirm":true,"user_metadata":{"name":"Mia"}}`), nil, atOnce, ""},
		{"administrator, not confirmed", "way9@example.org", post(d.instance, "/admin/users", service,
			`{"email":"way9@example.org","user_metadata":{"name":"Mia"}}`), nil, pending, ""},
		{"administrator, phone", "4915100000003", post(d.instance, "/admin/users", service,
			`{"phone":"4915100000003","phone_confirm":true,"user_metadata":{"name":"Mia"}}`), nil,
			"new Mia phone|confirmed Mia phone is confirmed|identity phone", ""},
		{"generated sign-up", "way10@example.org", generate("signup", "way10@example.org", `,"password":"correct horse"`),
			follow, pending, mailed},
		{"generated invitation", "way11@example.org", generate("invite", "way11@example.org", ""), follow, pending, mailed},
		{"generated magic link", "way12@example.org", generate("magiclink", "way12@example.org", ""), follow, pending, mailed},
		{"anonymous", "way13@example.org", func() {
			anonymous = d.want(t, 200, "POST", "/signup", "", `{`+data+`}`).str("access_token")
			d.want(t, 200, "PUT", "/user", anonymous, `{"email":"way13@example.org"}`)
		}, prove("email_change", "way13@example.org"), "new Mia", "new Mia|identity email|confirmed Mia is confirmed"},
	} {
		events := func(when, want string) {
			t.Helper()
			got := value[string](t, d.database, `select coalesce((select string_agg(what, '|' order by n) from app.events join gatehouse.users using (id)
				where $1 in (email, phone, new_email)), '')`, way.who)
			if got != want {
				t.Errorf("%s, %s: the application has seen %q, want %q", way.name, when, got, want)
			}
		}
		way.begin()
		if events("at first", way.seen); way.prove != nil {
			way.prove()
			events("when the address is proven", way.then)
		}
		if n := count(t, d.database, `select count(*) from app.profiles p join gatehouse.users u using (id)
			where $1 in (u.email, u.phone, u.new_email) and p.name = 'Mia'`, way.who); n != 1 {
			t.Errorf("%s: %d profiles", way.name, n)
		}
	}
}

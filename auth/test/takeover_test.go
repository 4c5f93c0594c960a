package test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/secret"
	"gatehouse/shared/testdb"
)

// The command line of a takeover: bad usage, help, refusals, and what -abandon asks for.
func TestTakeover_commands(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t)
	env := environment(url)
	f := func(status int, wantOut, wantErr string, args ...string) string {
		t.Helper()
		got, out, errs := command(t, env, "abandon\n", append([]string{"takeover"}, args...)...)
		if got != status || !regexp.MustCompile(wantOut).MatchString(out) ||
			!regexp.MustCompile(wantErr).MatchString(errs) {
			t.Errorf("%q: %d\n%s\n%s\nwant %d, %s, %s", args, got, out, errs, status, wantOut, wantErr)
		}
		return out
	}
	f(0, `^usage: auth takeover \[-from SCHEMA\]`, `^$`, "-h")
	f(2, `^$`, `^auth: takeover: -ahead, -dry-run, -abandon and -suggest exclude each other\n`, "-ahead", "-dry-run")
	f(2, `^$`, `^auth: takeover: -leave-out "all": want instances, duplicates, `, "-leave-out", "saml,all")
	f(2, `^$`, `usage: auth takeover \[-from`, "now")
	f(1, `^$`, `^auth: takeover: -abandon: without a terminal it needs -yes. This deletes all users here.`, "-abandon")
	f(1, `^$`, `^takeover: schema "auth" does not hold the tables of the replaced service \(looked for users\.raw_app_meta_data, identities, sessions, refresh_tokens\)\n$`)
	formertest.CreateSchema(t, url, "auth", formertest.Newest)
	f(1, `^$`, `^takeover: the database lacks \d+ migrations: auth migrate applies them\n$`, "-dry-run")
	if status, _, errs := command(t, env, "", "migrate"); status != 0 {
		t.Fatal(errs)
	}
	f(1, `^$`, `^takeover: no takeover is open\n$`, "-abandon", "-yes")
	out := f(0, `^dry run: nothing was written\ntakeover from schema auth \(version 20260625000000\) of .*/\w+ into schema public\n`, `^$`, "-dry-run")
	if !strings.Contains(out, "\nusers                  0         0         0\n") {
		t.Error(out)
	}
	f(0, `open since .*; auth takeover carries what changes until then`, `^$`, "-ahead")
	f(0, `^abandoned the takeover from .* auth: the tables here are empty\n$`, `^$`, "-abandon", "-yes")
	f(0, `open since `, `^$`, "-ahead")
	with := env
	env = append(env,
		"AUTH_TAKEOVER_SOURCE_URL=postgres://gone@127.0.0.1:1/gone?connect_timeout=1") // which it doesn't need
	f(0, `^abandoned the takeover from .* auth: the tables here are empty\n$`, `^$`, "-abandon", "-yes")
	env = with
	f(0, `open since `, `^$`, "-ahead")
	f(0, `^\{"source":"[^"]+ auth","state":"abandoned"\}\n$`, `^$`, "-abandon", "-yes", "-json")
	f(0, `closed 2`, ``)
	f(1, `^$`, `^takeover: the takeover from .* auth was closed at 2.*Z\n$`)

	// The names of the replaced service choose the schema.
	env = append(environment(testdb.Postgres(t)), "AUTH_DB_NAMESPACE=gh_")
	if status, _, errs := command(t, env, "", "migrate"); status != 0 {
		t.Fatal(errs)
	}
	f(1, `^$`, `schema "other" does not hold`, "-from", "other")
}

// A takeover from another database, whose columns are encrypted. AUTH_TAKEOVER_SOURCE_URL and
// AUTH_SECURITY_DB_ENCRYPTION_DECRYPTION_KEYS are needed for that; the latter also by its old name.
func TestTakeover_elsewhere(t *testing.T) {
	t.Parallel()
	source := formertest.Fill(t, testdb.Postgres(t), "auth", formertest.Newest, time.Now())
	env := environment(testdb.Postgres(t), "AUTH_TAKEOVER_SOURCE_URL="+source.URL)
	if status, _, errs := command(t, env, "", "migrate"); status != 0 {
		t.Fatal(errs)
	}
	leave := []string{"takeover", "-json", "-leave-out", "passwords,saml,web3,webauthn,oauth"}
	status, out, errs := command(t, env, "", leave...)
	want := `takeover: 1 passwords, 1 authenticator keys and 1 session keys are encrypted under key "k1", which AUTH_SECURITY_DB_ENCRYPTION_DECRYPTION_KEYS does not have` + "\n"
	if status != 1 || out != "" || !strings.Contains(errs, want) {
		t.Errorf("without the key: %d %s%s", status, out, errs)
	}
	status, out, errs = command(t, append(env, "AUTH_SECURITY_DB_ENCRYPTION_DECRYPTION_KEYS=k1"), "", leave...)
	if status != 1 || !strings.Contains(errs, "AUTH_SECURITY_DB_ENCRYPTION_DECRYPTION_KEYS: key 1: want ID:KEY") {
		t.Errorf("with a malformed key: %d %s%s", status, out, errs)
	}
	env = append(env, "GOTRUE_SECURITY_DB_ENCRYPTION_DECRYPTION_KEYS="+formertest.Keys)
	status, out, errs = command(t, env, "", leave...)
	var report struct {
		Source, State string
		Version       int64
		DryRun        bool `json:"dry_run"`
		Tables        map[string]struct {
			There, Carried int
			Left           map[string]int `json:"left_out"`
		}
		Warnings, Suggestions []string
		WayBack               []string `json:"way_back"`
		Sample                struct{ Users, Sessions, Differ int }
	}
	if err := json.Unmarshal([]byte(out), &report); status != 0 || err != nil {
		t.Fatalf("%d %v %s%s", status, err, out, errs)
	}
	users := report.Tables["users"]
	if report.State != "closed" || report.DryRun || report.Version != 20260625000000 ||
		users.There != len(source.Users) ||
		users.Carried != users.There-1 || users.Left["saml"] != 1 || report.Sample.Users != users.Carried ||
		!strings.HasSuffix(report.Source, " auth") || len(report.WayBack) == 0 {
		t.Errorf("%+v", report)
	}
	for _, text := range source.Private() {
		if text != "password" && strings.Contains(out+errs, text) {
			t.Errorf("the output shows %q", text)
		}
	}
}

// A daemon refreshes the sessions of a takeover that was closed. While one is open, none starts, no administrator's
// command does, and a daemon that runs already stops.
func TestTakeover_open(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t)
	env := environment(url, "AUTH_DRAIN_DELAY=0s")
	if status, _, errs := command(t, env, "", "migrate"); status != 0 {
		t.Fatal(errs)
	}
	exec := func(sql string, args ...any) {
		t.Helper()
		formertest.Exec(t, url, sql, args...)
	}
	s := formertest.Fill(t, testdb.Postgres(t), "auth", formertest.Newest, time.Now())
	formertest.Carry(t, exec, secret.NewRoot("0123456789abcdef0123456789abcdef"), s, time.Time{})
	d := start(t, env)
	for _, kind := range []int{1, 39} {
		a := d.want(t, 200, "POST", "/token?grant_type=refresh_token", "",
			`{"refresh_token":"`+s.User(kind).Sessions[0].Token+`"}`)
		if text := a.str("refresh_token"); len(text) != 76 {
			t.Errorf("kind %d: refreshed to %q", kind, text)
		}
	}

	exec(`insert into moves (id, kind, source, state, started_at) values ($1, 'takeover', 'db.example:5432/app auth', 'open', '2031-03-04 12:00Z')`,
		uuid.New())
	const open = `auth: a takeover from schema "auth" is open since 2031-03-04T12:00:00Z: auth takeover ends it, auth takeover -abandon empties the tables` + "\n"
	f := func(args ...string) {
		t.Helper()
		if status, out, errs := command(t, env, "", args...); status != 1 || out != "" ||
			!strings.HasSuffix(errs, open) {
			t.Errorf("%q: %d\n%s\n%s\nwant %s", args, status, out, errs, open)
		}
	}
	f("serve")
	f("serve", "-skip-migrations")
	f("admin", "get", s.User(1).Email)
	f("admin", "create", "-confirm", "new@example.org", "correct horse")
	// Keys and mails are not carried: their commands work.
	for _, args := range [][]string{{"keys", "list"}, {"mail", "list"}, {"check"}} {
		if status, out, errs := command(t, env, "", args...); status != 0 {
			t.Errorf("%q: %d\n%s\n%s", args, status, out, errs)
		}
	}
	d.log.await(t, `"level":"error","msg":"a takeover from schema`, nil)
	select {
	case <-d.Ended():
	case <-time.After(time.Minute):
		t.Fatal("the daemon still runs")
	}
	if err := d.Stop(time.Second); err == nil || !strings.HasSuffix(err.Error(), ": exit status 1") {
		t.Errorf("ended with %v, want exit status 1", err)
	}
	d.log.await(t, `"msg":"stopped"`, nil)
}

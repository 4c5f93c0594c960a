package test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/secret"
	"gatehouse/shared/testdb"
)

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

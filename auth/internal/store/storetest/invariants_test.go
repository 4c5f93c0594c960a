package storetest

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"gatehouse/auth/internal/store"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// broken are statements that break each rule, with a user to begin with.
var broken = map[string]string{
	"an anonymous user has no confirmed address":                "update users set is_anonymous = true",
	"an unproven address is confirmed":                          "update users set phone_unproven = true",
	"a confirmed address is there":                              "update users set phone_confirmed_at = now()",
	"a confirmed address has an identity":                       "delete from identities",
	"an identity of the user's own has the user's address":      "update users set email = 'other@example.org'",
	"a half-proven change has a new address":                    "update users set new_email_proven = true",
	"an erased user has no way in":                              "update users set deleted_at = now(), password_hash = 'x'",
	"a session of aal2 has the method of a factor or a passkey": "update sessions set aal = 2",
	"an ended session has a reason, and an aal of 1 or 2":       "update sessions set ended_reason = 'user'",
	"a token carries what its kind may carry":                   "update one_time_tokens set password_hash = 'x'",
}

const sound = `
	insert into users (id, aud, role, email, created_at, updated_at, email_confirmed_at)
	values ('00000000-0000-4000-8000-000000000001', 'a', 'a', 'mia@example.org', now(), now(), now());
	insert into identities (id, user_id, provider, provider_id, email, identity_data, created_at, updated_at)
	select id, id, 'email', id, email, '{}', now(), now() from users;
	insert into sessions (id, user_id, created_at, secret_hash, refreshed_at, amr) select id, id, now(), '', now(), '[]' from users;
	insert into one_time_tokens (id, user_id, kind, address, created_at, expires_at) select id, id, 'recovery', email, now(), now() from users;
`

// Each rule is seen to be broken, by Violations and at the commit; a prefix of the tables' names is put in.
func TestViolations(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	url := testdb.Postgres(t)
	db, err := store.Open(ctx, store.Options{URL: url, Settings: store.Settings{MaxConns: 1}})
	must.Succeed(t, err)
	defer db.Close()
	must.Succeed(t, must.ErrOf(db.Migrate(ctx)))
	must.Succeed(t, watch(ctx, url))
	c := testdb.Connect(t, url)
	must.Succeed(t, must.ErrOf(c.Exec(ctx, sound)))
	// What constraints refuse already is to be seen by the rules as well.
	must.Succeed(t, must.ErrOf(c.Exec(ctx, `alter table sessions drop constraint sessions_ended;
		alter table one_time_tokens drop constraint one_time_tokens_waiting`)))
	if got, err := Violations(ctx, c, ""); err != nil || len(got) != 0 {
		t.Fatalf("got %q, %v in a sound database", got, err)
	}
	for _, i := range invariants {
		tx, err := c.Begin(ctx)
		must.Succeed(t, err)
		if _, err := tx.Exec(ctx, broken[i.rule]); err != nil || broken[i.rule] == "" {
			t.Fatalf("%s: %v", i.rule, err)
		}
		got, err := Violations(ctx, tx, "")
		if !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, i.rule+": 00000000-") }) {
			t.Errorf("%s: got %q, %v", i.rule, got, err)
		}
		if err := tx.Commit(ctx); err == nil || !strings.Contains(err.Error(), i.rule) {
			t.Errorf("%s: the commit: got %v, want an error", i.rule, err)
		}
	}
	if _, err := Violations(ctx, c, "auth_"); err == nil || !strings.Contains(err.Error(), `"auth_users" does not exist`) {
		t.Errorf("with a prefix: got %v, want it in the names", err)
	}
}

// The page lists the rules, and no others.
func TestInvariants_documented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/accounts.md")
	must.Succeed(t, err)
	_, section, _ := strings.Cut(string(text), "\n## Invariants\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var listed []string
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) > 2 && !strings.HasPrefix(cells[1], "-") {
			listed = append(listed, strings.ToLower(strings.TrimSpace(cells[1])))
		}
	}
	want := []string{"rule"}
	for _, i := range invariants {
		want = append(want, i.rule)
	}
	if !slices.Equal(listed, want) {
		t.Errorf("docs/accounts.md lists\n%q\nwant\n%q", listed, want)
	}
}

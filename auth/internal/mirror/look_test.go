package mirror_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/mirror"
	"gatehouse/shared/must"
)

// look is what auth check says, by the daemon's role, which has no right on the tables there.
func (m *moved) look(t testing.TB) (wrong, doubts []string) {
	t.Helper()
	o := m.options(&bytes.Buffer{})
	o.URL = m.daemon
	wrong, doubts, err := mirror.Look(t.Context(), o, m.installed(t))
	must.Succeed(t, err)
	// Roles are the cluster's, and other tests make members meanwhile.
	return wrong, slices.DeleteFunc(doubts, func(text string) bool {
		return strings.Contains(text, " is a member of ") && !strings.HasPrefix(text, "role looker_")
	})
}

func (m *moved) installed(t testing.TB) bool {
	t.Helper()
	state, err := m.db.Mirror(t.Context())
	must.Succeed(t, err)
	return state.Installed
}

// What was altered in the catalogue is found without a right on the tables there, and install makes it again as it was.
func TestLook(t *testing.T) {
	t.Parallel()
	m := takeOver(t, formertest.Newest, "")
	if wrong, doubts := m.look(t); len(wrong)+len(doubts) > 0 {
		t.Errorf("before: %q %q", wrong, doubts)
	}
	const closed = "update {H}moves set closed_at = now() - interval '%d days' where kind = 'takeover'"
	m.exec(t, fmt.Sprintf(closed, 31))
	if _, doubts := m.look(t); len(doubts) != 1 || !strings.Contains(doubts[0],
		"secrets still lie in schema auth: drop table for each table of it,") {
		t.Errorf("a month later, without a mirror: %q", doubts)
	}
	m.exec(t, fmt.Sprintf(closed, 0))
	var refused bytes.Buffer
	if err := mirror.Drop(t.Context(), m.options(&refused)); !errors.Is(err, mirror.ErrRefused) ||
		refused.String() != "mirror: no mirror is installed\n" {
		t.Errorf("drop without a mirror: %v %q", err, refused.String())
	}
	m.exec(t, `create view app.hashes as select id, encrypted_password from auth.users;
		create function app.live() returns bigint language sql as $$ select count(*) from auth.refresh_tokens $$;
		create function gatehouse.reports() returns bigint language sql as $$ select count(*) from auth.refresh_tokens $$`)
	out := m.install(t, func(o *mirror.Options) { o.Sessions, o.Days = new(true), new(true) })
	for _, want := range []string{"view app.hashes reads auth.users.encrypted_password\n",
		"function app.live reads auth.refresh_tokens\n", "function gatehouse.reports reads auth.refresh_tokens\n"} {
		if !strings.Contains(out, want) || strings.Contains(out, "gatehouse.mirror") {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	for _, test := range []struct{ change, want string }{
		{"drop trigger mirror_from on auth.identities", "trigger mirror_from on auth.identities is missing"},
		{"alter table auth.users disable trigger mirror_truncate", "trigger mirror_truncate on auth.users is disabled"},
		{"alter table gatehouse.sessions disable trigger user", "trigger mirror_sessions_insert on gatehouse.sessions is disabled"},
		{"drop function gatehouse.mirror_blank", `function "gatehouse"."mirror_blank" is missing`},
		{"alter function gatehouse.mirror_blank owner to app_owner", `is owned by app_owner, not supabase_auth_admin`},
		{"alter function gatehouse.mirror_blank security invoker", "runs with other rights or another search_path"},
		{"alter function gatehouse.mirror_user set search_path = public", "runs with other rights or another search_path"},
		{"grant execute on function gatehouse.mirror_user to public", `"mirror_user" may be run by PUBLIC, gatehouse, not gatehouse`},
		{"revoke execute on function gatehouse.mirror_blank from gatehouse",
			`"mirror_blank" may be run by supabase_auth_admin, not supabase_auth_admin, gatehouse`},
		{"revoke execute on function gatehouse.mirror_users from supabase_auth_admin",
			`"mirror_users" may be run by gatehouse, not gatehouse, supabase_auth_admin`},
		{"revoke execute on function gatehouse.mirror_user from gatehouse", `"mirror_user" may be run by nobody, not gatehouse`},
		{"revoke usage on schema gatehouse from supabase_auth_admin",
			"role supabase_auth_admin lacks USAGE on schema gatehouse"},
		{`drop trigger mirror_users on gatehouse.users; create constraint trigger mirror_users after insert on gatehouse.users
			deferrable initially deferred for each row execute function gatehouse.mirror_to_user()`,
			"trigger mirror_users on gatehouse.users has other events or another condition"},
		{`drop trigger mirror_from on auth.users; create trigger mirror_from after insert or delete or update of email
			on auth.users for each row execute function gatehouse.mirror_from_users()`,
			"trigger mirror_from on auth.users has other events or another condition"},
		{`drop trigger mirror_claims on gatehouse.one_time_tokens; create constraint trigger mirror_claims
			after insert or update on gatehouse.one_time_tokens deferrable initially deferred for each row
			when (new.kind = 'signup' and new.user_metadata is null) execute function gatehouse.mirror_to_claim()`,
			"trigger mirror_claims on gatehouse.one_time_tokens has other events or another condition"},
		{`create or replace function gatehouse.mirror_blank(user_id uuid) returns void language plpgsql security definer
			set search_path = auth, pg_temp as 'begin end'`, "has another text"},
		{"drop function gatehouse.mirror_deleted", `function "gatehouse"."mirror_deleted" is missing`},
	} {
		m.exec(t, "grant create on schema gatehouse to app_owner, supabase_auth_admin")
		m.exec(t, test.change)
		if wrong, _ := m.look(t); !slices.ContainsFunc(wrong, func(s string) bool { return strings.Contains(s, test.want) }) {
			t.Errorf("%s: %q, want %s", test.change, wrong, test.want)
		}
		if out := m.install(t); !strings.Contains(out, "as installed before: sessions mirrored, sign-ins day") {
			t.Errorf("%s:\n%s", test.change, out)
		}
		if wrong, doubts := m.look(t); len(wrong)+len(doubts) > 0 {
			t.Errorf("%s, installed again: %q %q", test.change, wrong, doubts)
		}
	}
	m.check(t, true)
	member := m.role(t, "looker", "in role supabase_auth_admin")
	editors := m.role(t, "editors", "role authenticated")
	m.exec(t, "grant insert on auth.users to anon; grant update (friendly_name) on auth.mfa_factors to anon; "+
		"grant delete on auth.identities to "+editors+"; "+fmt.Sprintf(closed, 31))
	_, doubts := m.look(t)
	for _, want := range []string{"role " + member + " is a member of supabase_auth_admin", "role anon may write auth.users",
		"role anon may write auth.mfa_factors", "role authenticated may write auth.identities",
		"hashes, tokens and secrets still lie in schema auth: auth mirror scrub"} {
		if !strings.Contains(strings.Join(doubts, "\n"), want) {
			t.Errorf("%q lacks %q", doubts, want)
		}
	}
	m.exec(t, "revoke supabase_auth_admin from "+member+"; revoke insert on auth.users from anon; "+
		"revoke update (friendly_name) on auth.mfa_factors from anon; revoke delete on auth.identities from "+editors)
	// Of another version the functions have other names and texts.
	m.exec(t, `alter function gatehouse.mirror_add_users rename to mirror_add_user;
		update {H}moves set steps = steps || '{"version": 1}' where kind = 'mirror'; `+fmt.Sprintf(closed, 0))
	if wrong, doubts := m.look(t); len(wrong) > 0 || len(doubts) != 1 ||
		doubts[0] != "the mirror is of version 1: auth mirror install brings it up to date" {
		t.Errorf("of version 1: %q %q", wrong, doubts)
	}
	m.exec(t, fmt.Sprintf(closed, 31))
	m.install(t)
	var text bytes.Buffer
	if err := mirror.Scrub(t.Context(), m.options(&text)); err != nil {
		t.Fatalf("%v\n%s", err, text.String())
	}
	none := func(when string) {
		if wrong, doubts := m.look(t); len(wrong)+len(doubts) > 0 {
			t.Errorf("%s: %q %q", when, wrong, doubts)
		}
	}
	none("after scrub")
	if err := mirror.Drop(t.Context(), m.options(&text)); err != nil {
		t.Error(err)
	}
	none("without a mirror")
	m.install(t)
	none("with another mirror")
	m.exec(t, "drop schema auth cascade")
	if wrong, _ := m.look(t); len(wrong) != 1 || wrong[0] != `a mirror needs the tables of schema "auth" in this database` {
		t.Errorf("without the tables there: %q", wrong)
	}
}

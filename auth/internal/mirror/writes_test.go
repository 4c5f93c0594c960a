package mirror_test

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/mirror"
	"gatehouse/auth/internal/store"
)

// add makes a confirmed user with an identity and a verified factor.
func (m *moved) add(t testing.TB, email string) store.User {
	t.Helper()
	u := newUser(email)
	err := m.send(t, func(b *store.Batch) {
		b.InsertUser(u)
		b.InsertIdentity(store.Identity{ID: uuid.New(), UserID: u.ID, Provider: "email", ProviderID: u.ID.String(), Email: email,
			Data: []byte(`{"email": "` + email + `"}`), CreatedAt: noon, UpdatedAt: noon})
	})
	if err != nil {
		t.Fatal(err)
	}
	m.exec(t, `insert into {H}factors (id, user_id, kind, secret, created_at, updated_at, verified_at)
		values ($1, $1, 'totp', 'secret', now(), now(), now())`, u.ID)
	return u
}

// Each statement of the application is carried over, stays there, or is refused; whatever it is, both sides agree.
func TestWrites(t *testing.T) {
	t.Parallel()
	m := takeOver(t, formertest.Newest, "")
	m.install(t)
	const here = "select coalesce((select (%)::text from {H}users u where id = $1), 'gone')"
	for i, test := range []struct {
		sql, refused, column, want string
	}{
		{"delete from auth.users where id = $1", "", "id", "gone"},
		{"delete from auth.identities where user_id = $1", "",
			"select count(*) from gatehouse.identities where user_id = u.id", "0"},
		{"delete from auth.mfa_factors where user_id = $1", "",
			"select count(*) from gatehouse.factors where user_id = u.id", "0"},
		{`update auth.users set raw_user_meta_data = raw_user_meta_data - 'name' || '{"x": 1}' where id = $1`, "",
			"user_metadata", `{"x": 1}`},
		{`update auth.users set raw_app_meta_data = raw_app_meta_data || '{"plan": "pro"}' where id = $1`, "",
			"app_metadata->>'plan'", "pro"},
		{`update auth.users set raw_user_meta_data = '[]' where id = $1`, "raw_user_meta_data is", "user_metadata->>'name'",
			"Mia"},
		{`update auth.users set raw_app_meta_data = null where id = $1`, "raw_app_meta_data is", "role", "authenticated"},
		{"update auth.users set role = 'editor' where id = $1", "", "role", "editor"},
		{"update auth.users set role = 'service_role' where id = $1", "role is", "role", "authenticated"},
		{"update auth.users set role = null where id = $1", "role is", "role", "authenticated"},
		{"update auth.users set banned_until = 'infinity' where id = $1", "", "extract(year from banned_until at time zone 'UTC')",
			"9999"},
		{"update auth.users set plan = 'pro', updated_at = now(), is_super_admin = true, recovery_token = '' where id = $1", "",
			"role", "authenticated"},
		{"update auth.users set email = 'x@example.org' where id = $1", "email is", "role", "authenticated"},
		{"update auth.users set email = null where id = $1", "email is", "role", "authenticated"},
		{"update auth.users set phone = '49170' where id = $1", "phone is", "phone", ""},
		{"update auth.users set email_confirmed_at = now() where id = $1", "email_confirmed_at is", "role", "authenticated"},
		{"update auth.users set encrypted_password = 'x' where id = $1", "encrypted_password is", "role", "authenticated"},
		{"update auth.users set recovery_token = 'x' where id = $1", "recovery_token is", "role", "authenticated"},
		{"update auth.users set deleted_at = now() where id = $1", "deleted_at is", "role", "authenticated"},
		{"update auth.users set last_sign_in_at = now() where id = $1", "last_sign_in_at is", "role", "authenticated"},
		{"update auth.users set id = gen_random_uuid() where id = $1", "id is", "role", "authenticated"},
		{"insert into auth.users (id) select gen_random_uuid() where $1::uuid is not null", "rows are", "role", "authenticated"},
		{"update auth.identities set identity_data = '{}' where user_id = $1", "identity_data is", "role", "authenticated"},
		{"insert into auth.identities (provider_id, user_id, identity_data, provider) values ('x', $1, '{}', 'x')", "rows are",
			"role", "authenticated"},
		{"update auth.mfa_factors set secret = 'x' where user_id = $1", "secret is", "role", "authenticated"},
		{"update auth.mfa_factors set status = 'unverified' where user_id = $1", "status is", "role", "authenticated"},
		{"truncate auth.users cascade", "rows are", "role", "authenticated"},
		{"truncate auth.identities", "rows are", "role", "authenticated"},
		{"truncate auth.mfa_factors cascade", "rows are", "role", "authenticated"},
	} {
		u := m.add(t, "user"+string(rune('a'+i))+"@example.org")
		args := []any{u.ID}
		if strings.Contains(test.sql, "set id =") { // else a key there refuses it first
			m.exec(t, "delete from {H}identities where user_id = $1", u.ID)
			m.exec(t, "delete from {H}factors where user_id = $1", u.ID)
			m.exec(t, "delete from app.profiles where id = $1", u.ID)
			m.exec(t, "delete from app.confirmed where id = $1", u.ID)
		}
		if strings.HasPrefix(test.sql, "truncate") {
			args = nil
		}
		err := pgx.BeginFunc(t.Context(), m.conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "set local role app_owner"); err != nil {
				return err
			}
			if strings.HasPrefix(test.sql, "truncate") { // only the owner may truncate what its tables refer to
				if _, err := tx.Exec(t.Context(), "reset role"); err != nil {
					return err
				}
			}
			_, err := tx.Exec(t.Context(), test.sql, args...)
			return err
		})
		pg, _ := errors.AsType[*pgconn.PgError](err)
		switch {
		case test.refused == "" && err != nil:
			t.Errorf("%s: %v", test.sql, err)
		case test.refused != "" && (pg == nil || pg.Code != "42501" || pg.Hint == "" || !strings.Contains(pg.Message, "is a mirror: "+
			test.refused+" written by the auth service only")):
			t.Errorf("%s: %v, want %q", test.sql, err, test.refused)
		}
		column := test.column
		if strings.HasPrefix(column, "select") {
			column = "(" + column + ")"
		}
		if got := one[string](t, m, strings.Replace(here, "%", column, 1), u.ID); got != test.want {
			t.Errorf("%s: %s is %q, want %q", test.sql, test.column, got, test.want)
		}
	}
	m.check(t, true)
	if got := one[string](t, m, `select string_agg(distinct action::text, ' ' order by action::text) from {H}audit where actor_role = 'sql'`); got != "20 32 6" {
		t.Errorf("audit: %q", got)
	}
}

// Nobody but the mirror's own roles may call its functions, or attach them to a table.
func TestFunctions_rights(t *testing.T) {
	t.Parallel()
	m := takeOver(t, formertest.Newest, "")
	m.install(t)
	u := m.add(t, "mia@example.org")
	m.exec(t, "grant usage on schema gatehouse to app_owner, anon, authenticated") // as a careless operator would
	for _, role := range []string{"app_owner", "anon", "authenticated"} {
		for _, sql := range []string{
			"select gatehouse.mirror_drop('users', $1)", "select gatehouse.mirror_blank($1)",
			"select gatehouse.mirror_user($1)", "select gatehouse.mirror_repair(array[$1::uuid])",
			"select gatehouse.mirror_note(6, $1)", "select $1::uuid, gatehouse.mirror_users()",
			"select $1::uuid from pg_temp.attach('mirror_from_users')", "select $1::uuid from pg_temp.attach('mirror_to_user')",
		} {
			err := pgx.BeginFunc(t.Context(), m.conn, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), `set local role `+role+`; create temp table own (id uuid);
					create function pg_temp.attach(name text) returns int language plpgsql as $$ begin
					execute 'create trigger x after insert on own for each row execute function gatehouse.' || name || '()';
					return 1; end $$`); err != nil {
					return err
				}
				_, err := tx.Exec(t.Context(), sql, u.ID)
				return err
			})
			if pg, _ := errors.AsType[*pgconn.PgError](err); pg == nil || pg.Code != "42501" {
				t.Errorf("%s: %s: %v", role, sql, err)
			}
		}
	}
	// Triggers of the application, deferred ones too, run without the daemon's rights in the daemon's transactions.
	for name, kind := range map[string]string{"at once": "trigger", "deferred": "constraint trigger"} {
		m.exec(t, `create or replace function app.peek() returns trigger language plpgsql as $$ begin
			perform password_hash from gatehouse.users; return null; end $$;
			create `+kind+` peek after insert on auth.users `+map[string]string{"trigger": ""}[kind]+
			map[bool]string{true: "deferrable initially deferred"}[kind != "trigger"]+` for each row execute function app.peek()`)
		err := m.send(t, func(b *store.Batch) { b.InsertUser(newUser("peek@example.org")) })
		if !errors.Is(err, store.ErrApplication) || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s: %v", name, err)
		}
		m.exec(t, "drop trigger peek on auth.users")
	}
}

// The mirror may be made by each kind of role, and when it is dropped nothing of it is left.
func TestInstall_roles(t *testing.T) {
	t.Parallel()
	m := takeOver(t, formertest.Newest, "")
	before := m.dump(t)
	member := "member_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	hosted := "hosted_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	m.exec(t, "create role "+member+" login in role gatehouse, supabase_auth_admin; create role "+hosted+
		" login bypassrls in role gatehouse; grant usage on schema auth to "+hosted)
	t.Cleanup(func() {
		formertest.Exec(t, m.admin, "drop owned by "+member+", "+hosted+"; drop role "+member+", "+hosted)
	})
	for _, role := range []string{"", member, hosted} {
		with := func(o *mirror.Options) {
			if role != "" {
				o.URL = as(t, m.admin, role, "")
			}
		}
		if role == hosted {
			var out bytes.Buffer
			o := m.options(&out)
			with(&o)
			err := mirror.Install(t.Context(), o)
			grant := "grant delete on auth.mfa_factors to " + hosted
			if !errors.Is(err, mirror.ErrRefused) || !strings.Contains(out.String(), grant) {
				t.Errorf("%v\n%s\nwant %s", err, out.String(), grant)
			}
			m.exec(t, "grant select, insert, update, delete, trigger on auth.users, auth.identities, auth.mfa_factors to "+hosted)
		}
		out := m.install(t, with)
		if role != "" && !strings.Contains(out, `revoke "gatehouse" from "`+role+`"`) {
			t.Errorf("%s: no revoke in\n%s", role, out)
		}
		u := m.add(t, "mia@example.org")
		if role == hosted {
			m.exec(t, "revoke gatehouse from "+hosted)
		}
		m.send(t, func(b *store.Batch) { b.DeleteUser(u.ID) })
		if n := one[int](t, m, "select count(*) from app.gone where id = $1", u.ID); n != 1 {
			t.Errorf("%s: %d rows of the deletion", role, n)
		}
		m.check(t, true)
		var text bytes.Buffer
		if err := mirror.Drop(t.Context(), m.options(&text)); err != nil || !strings.Contains(text.String(), "way back") {
			t.Errorf("%s: %v\n%s", role, err, text.String())
		}
		m.exec(t, "revoke all on schema gatehouse from supabase_auth_admin")
	}
	m.exec(t, "revoke all on auth.users, auth.identities, auth.mfa_factors from "+hosted+"; revoke all on schema auth from "+
		hosted+"; revoke all on schema gatehouse from "+hosted)
	if after := m.dump(t); before != after {
		t.Errorf("schema auth has changed:\n%s", after)
	}
}

// dump is the schema there as pg_dump writes it.
func (m *moved) dump(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("pg_dump", "-s", "-n", "auth", m.admin).CombinedOutput()
	if err != nil {
		t.Skipf("pg_dump: %v\n%s", err, out)
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, "restrict ") { // a random word of newer releases
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

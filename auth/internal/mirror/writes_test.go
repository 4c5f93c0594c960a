package mirror_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/must"
)

// signUp makes a confirmed user with an identity.
func (m *moved) signUp(t testing.TB, email string) store.User {
	t.Helper()
	u := newUser(email)
	err := m.send(t, func(b *store.Batch) {
		b.InsertUser(u)
		b.InsertIdentity(store.Identity{ID: uuid.New(), UserID: u.ID, Provider: "email", ProviderID: u.ID.String(), Email: email,
			Data: []byte(`{"email": "` + email + `"}`), CreatedAt: noon, UpdatedAt: noon})
	})
	must.Succeed(t, err)
	return u
}

// add makes a confirmed user with an identity and a verified factor.
func (m *moved) add(t testing.TB, email string) store.User {
	t.Helper()
	u := m.signUp(t, email)
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
		hint := "Use POST /admin/users."
		switch {
		case strings.Contains(test.refused, "meta_data"):
			hint = "It has to be an object."
		case strings.HasPrefix(test.sql, "update auth.users") && test.refused != "id is":
			hint = "Use PUT /admin/users/{id}."
		}
		switch {
		case test.refused == "" && err != nil:
			t.Errorf("%s: %v", test.sql, err)
		case test.refused != "" && (pg == nil || pg.Code != "42501" || pg.Hint != hint || !strings.Contains(pg.Message, "is a mirror: "+
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
	m.exec(t, "grant usage on schema gatehouse to app_owner, anon, authenticated") // as a careless operator would
	type made struct{ Name, Args, Returns string }
	rows, err := m.conn.Query(t.Context(), `select p.proname::text, coalesce((select string_agg('null::' || format_type(a, null), ', ')
		from unnest(p.proargtypes) a), ''), p.prorettype::regtype::text
		from pg_proc p where p.pronamespace = 'gatehouse'::regnamespace and p.proname like 'mirror%'`)
	must.Succeed(t, err)
	functions, err := pgx.CollectRows(rows, pgx.RowToStructByPos[made])
	if err != nil || len(functions) < 20 {
		t.Fatalf("%d functions, %v", len(functions), err)
	}
	for _, role := range []string{"app_owner", "anon", "authenticated"} {
		for _, f := range functions {
			sql := "select gatehouse." + f.Name + "(" + f.Args + ")"
			if f.Returns == "trigger" {
				sql = "create trigger x after insert on own for each row execute function gatehouse." + f.Name + "()"
			}
			err := pgx.BeginFunc(t.Context(), m.conn, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), "set local role "+role+"; create temp table own (id uuid); "+sql)
				return err
			})
			if pg, _ := errors.AsType[*pgconn.PgError](err); pg == nil || pg.Code != "42501" ||
				!strings.HasPrefix(pg.Message, "permission denied for function ") || !strings.HasSuffix(pg.Message, f.Name) {
				t.Errorf("%s: %s: %v", role, sql, err)
			}
		}
	}
	// Triggers of the application, deferred ones too, run without the daemon's rights in the daemon's transactions, and
	// may take no other role.
	for name, kind := range map[string]string{"at once": "trigger", "deferred": "constraint trigger"} {
		for _, body := range []string{"perform password_hash from gatehouse.users", "set local role service_role",
			"perform set_config('role', 'service_role', true)", "set session authorization gatehouse"} {
			m.exec(t, `create or replace function app.peek() returns trigger language plpgsql as $$ begin `+body+`; return null; end $$;
			create `+kind+` peek after insert on auth.users `+
				map[bool]string{true: "deferrable initially deferred"}[kind != "trigger"]+` for each row execute function app.peek()`)
			err := m.send(t, func(b *store.Batch) { b.InsertUser(newUser("peek@example.org")) })
			if !errors.Is(err, store.ErrApplication) || !strings.Contains(err.Error(), "42501") {
				t.Errorf("%s: %s: %v", name, body, err)
			}
			m.exec(t, "drop trigger peek on auth.users")
		}
	}
}

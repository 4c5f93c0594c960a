package mirror_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/mirror"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/must"
)

// What is changed here is there at the end of the same transaction, without hashes.
func TestMirror(t *testing.T) {
	t.Parallel()
	for name, release := range map[string]formertest.Release{"newest": formertest.Newest, "oldest": formertest.Oldest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := takeOver(t, release, map[formertest.Release]string{formertest.Oldest: "own_"}[release])
			m.install(t)
			m.check(t, true)
			u := newUser("mia@staff.example")
			must.Succeed(t, m.send(t, func(b *store.Batch) { b.InsertUser(u) }))
			type row struct {
				Email, Hash, Name, Profile, Confirmed string
				Staff, Here                           bool
			}
			got := one[json.RawMessage](t, m, `select jsonb_build_object('Email', o.email, 'Hash', o.encrypted_password,
				'Name', o.raw_user_meta_data->>'name', 'Staff', o.raw_app_meta_data->'staff', 'Profile', p.name,
				'Confirmed', c.name, 'Here', u.app_metadata->'staff')
				from auth.users o join app.profiles p using (id) join app.confirmed c using (id) join {H}users u using (id)
				where o.id = $1`, u.ID)
			want := row{"mia@staff.example", "", "Mia", "Mia", "Mia", true, true}
			var is row
			if err := json.Unmarshal(got, &is); err != nil || is != want {
				t.Errorf("got %s, %v", got, err)
			}
			m.check(t, false)
			// The application bans new users for ever, which comes back as a date that another trigger refuses.
			m.exec(t, `create function app.ban() returns trigger language plpgsql security definer as $$ begin
					update auth.users set banned_until = 'infinity' where id = new.id; return null; end $$;
				create constraint trigger ban after insert on auth.users deferrable initially deferred
					for each row execute function app.ban();
				create function app.bound() returns trigger language plpgsql as $$ begin
					if isfinite(new.banned_until) then raise exception 'bound'; end if; return new; end $$;
				create trigger bound before update of banned_until on auth.users for each row execute function app.bound()`)
			var out bytes.Buffer
			if err := mirror.Check(t.Context(), m.options(&out), true, false); !errors.Is(err, mirror.ErrDiffers) ||
				strings.Count(out.String(), " can't be made: ") != 5 {
				t.Errorf("%v\n%s", err, out.String())
			}
		})
	}
}

// After scrub nothing there holds a hash, token or secret of before, and the mirror goes on.
func TestScrub(t *testing.T) {
	t.Parallel()
	m := takeOver(t, formertest.Newest, "")
	m.install(t)
	m.exec(t, "create table app.seen (id uuid references auth.sessions)")
	var out bytes.Buffer
	if err := mirror.Scrub(t.Context(), m.options(&out)); !errors.Is(err, mirror.ErrRefused) ||
		!strings.Contains(out.String(), "alter table app.seen drop constraint seen_id_fkey;") {
		t.Errorf("%v\n%s", err, out.String())
	}
	m.exec(t, "drop table app.seen")
	out.Reset()
	o := m.options(&out)
	o.SQL = true
	must.Succeed(t, mirror.Scrub(t.Context(), o))
	// psql goes on after a statement that fails, and then nothing says that scrub has run.
	m.exec(t, `create function app.fail() returns trigger language plpgsql as $$ begin
		raise exception 'by %', current_user; end $$;
		create trigger fail before delete on auth.refresh_tokens execute function app.fail()`)
	var failures []string
	for sql := range strings.SplitSeq(out.String(), ";\n") {
		if _, err := m.conn.Exec(t.Context(), sql); err != nil {
			failures = append(failures, err.Error())
		}
	}
	if len(failures) == 0 || !strings.Contains(failures[0], "by supabase_auth_admin") {
		t.Errorf("the failures are %q", failures)
	}
	if one[bool](t, m, "select steps ? 'scrubbed' from {H}moves where kind = 'mirror'") {
		t.Error("after a failure scrub is recorded")
	}
	// What -sql prints is run once, whatever the size of the tables. It keeps what has been recorded since.
	m.exec(t, "drop trigger fail on auth.refresh_tokens")
	m.exec(t, `begin;
		insert into auth.refresh_tokens (token, revoked) select n::text, true from generate_series(1, 5001) n;
		update {H}moves set steps = steps || '{"triggers": 99}' where kind = 'mirror'`)
	m.exec(t, strings.TrimSuffix(out.String(), "commit;\n"))
	var left int
	if err := m.conn.QueryRow(t.Context(), `select (select count(*) from auth.refresh_tokens) + (select count(*) from auth.users
		where encrypted_password <> '') + (select count(*) from gatehouse.moves where kind = 'mirror'
		and not (steps ? 'scrubbed' and current_user = session_user and steps @> '{"triggers": 99}'))`).
		Scan(&left); err != nil || left != 0 {
		t.Errorf("after what -sql prints %d rows are left, %v", left, err)
	}
	m.exec(t, "rollback")
	if err := mirror.Scrub(t.Context(), m.options(&out)); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	dump := m.pgDump(t, "-a", "-n", "auth")
	addresses := map[string]bool{"password": true} // a text of the fixture's metadata too
	for _, u := range m.Users {
		addresses[u.Email], addresses[u.Phone] = true, true
	}
	for _, secret := range m.Private() {
		if !addresses[secret] && strings.Contains(dump, secret) {
			t.Errorf("schema auth still has %s", secret)
		}
	}
	m.add(t, "late@example.org")
	m.check(t, true)
	out.Reset()
	o = m.options(&out)
	o.URL = as(t, m.admin, m.role(t, "stranger", ""), "")
	if err := mirror.Check(t.Context(), o, true, false); !errors.Is(err, mirror.ErrRefused) ||
		!strings.Contains(out.String(), "is no member of role gatehouse: grant \"gatehouse\" to ") {
		t.Errorf("-try as a stranger: %v\n%s", err, out.String())
	}
	// Whose role it should run as is not guessed.
	m.exec(t, `drop function gatehouse.mirror_set_user, gatehouse.mirror_blank, gatehouse.mirror_drop,
		gatehouse.mirror_settle`)
	out.Reset()
	if err := mirror.Scrub(t.Context(), m.options(&out)); !errors.Is(err, mirror.ErrRefused) ||
		!strings.Contains(out.String(), "are missing: auth mirror install makes them again") {
		t.Errorf("without functions: %v\n%s", err, out.String())
	}
	out.Reset()
	if err := mirror.Drop(t.Context(), m.options(&out)); err != nil || !strings.Contains(out.String(), "-- scrub ran on ") {
		t.Errorf("drop after scrub: %v\n%s", err, out.String())
	}
}

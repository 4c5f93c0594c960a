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
			if err := m.send(t, func(b *store.Batch) { b.InsertUser(u) }); err != nil {
				t.Fatal(err)
			}
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
	if err := mirror.Scrub(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	// What -sql prints is run once, whatever the size of the tables.
	m.exec(t, "begin; insert into auth.refresh_tokens (token, revoked) select n::text, true from generate_series(1, 5001) n")
	m.exec(t, out.String())
	var left int
	if err := m.conn.QueryRow(t.Context(), `select (select count(*) from auth.refresh_tokens) + (select count(*) from auth.users
		where encrypted_password <> '') + (select count(*) from gatehouse.moves where kind = 'mirror' and not steps ? 'scrubbed')`).
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

package mirror_test

import (
	"encoding/json"
	"testing"

	"gatehouse/auth/internal/former/formertest"
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

package former_test

import (
	"slices"
	"testing"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/former/formertest"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

func TestSchema(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t)
	formertest.CreateSchema(t, url, "auth", formertest.Newest)
	formertest.CreateSchema(t, url, "older", formertest.Oldest)
	c := testdb.Connect(t, url)
	read := func(name string) *former.Schema {
		t.Helper()
		s, err := former.ReadSchema(t.Context(), c, name)
		must.Succeed(t, err)
		return s
	}
	f := func(s *former.Schema, holds bool, version int64) {
		t.Helper()
		v, err := s.ReadVersion(t.Context(), c)
		if err != nil || v != version || s.Holds() != holds {
			t.Errorf("%s: holds %v, version %d, %v", s.Name, s.Holds(), v, err)
		}
		if columns, tables := s.Unknown(); holds && len(columns)+len(tables) > 0 {
			t.Errorf("%s: unknown %q, %q", s.Name, columns, tables)
		}
	}
	newest, oldest := read("auth"), read("older")
	f(newest, true, former.Newest)
	f(oldest, true, former.Oldest)
	f(read("public"), false, 0)
	f(read("nowhere"), false, 0)

	for _, name := range former.Carried {
		for _, s := range []*former.Schema{newest, oldest} {
			there := s.Tables[name].Heap && s.Has(name, "id")
			if there == (s == oldest && name == former.Passkeys) { // which came later
				t.Errorf("%s.%s: %+v", s.Name, name, s.Tables[name])
			}
		}
	}
	if got := oldest.Table("users"); got != `"older"."users"` {
		t.Error(got)
	}

	formertest.Exec(t, url, `alter table auth.users add column shoe_size int, drop column is_super_admin;
		create table auth.new_things (id int); create view auth.seen as select id from auth.users;
		alter table older.identities rename to really; create view older.identities as select * from older.really;
		insert into older.schema_migrations values ('x'), ('99999999999999'), ('2')`)
	newest, oldest = read("auth"), read("older")
	columns, tables := newest.Unknown()
	if !slices.Equal(columns, []string{"users.shoe_size"}) || !slices.Equal(tables, []string{"new_things", "seen"}) {
		t.Errorf("unknown %q, %q", columns, tables)
	}
	if newest.Has("users", "is_super_admin") || !oldest.Holds() || oldest.Tables["identities"].Heap {
		t.Errorf("%+v", oldest.Tables["identities"])
	}
	if v, err := oldest.ReadVersion(t.Context(), c); v != 99999999999999 || err != nil {
		t.Errorf("version %d, %v", v, err)
	}
}

package mirror_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/mirror"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/testdb"
)

// restore runs a dump in a database of its own, and returns the same installation there.
func (m *moved) restore(t *testing.T, dump string) *moved {
	t.Helper()
	var lines []string
	for line := range strings.Lines(dump) {
		if !strings.HasPrefix(line, "\\") { // what only psql reads
			lines = append(lines, line)
		}
	}
	r := &moved{Source: m.Source, admin: testdb.Postgres(t), namespace: m.namespace}
	formertest.Exec(t, r.admin, strings.Join(lines, ""))
	r.daemon, r.conn = as(t, r.admin, "gatehouse", "gatehouse"), connect(t, r.admin)
	var err error
	r.db, err = store.Open(t.Context(), store.Options{URL: r.daemon, Settings: store.Settings{Namespace: m.namespace}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.db.Close)
	return r
}

// A restored dump has the mirror, although each table has another identity there; a dump of our schema alone has its
// triggers, which find no table to write, until they are dropped.
func TestDump(t *testing.T) {
	t.Parallel()
	m := takeOver(t, formertest.Newest, "gh_")
	m.install(t, func(o *mirror.Options) { o.Sessions = new(true) })
	m.add(t, "mia@example.org")

	whole := m.restore(t, m.pgDump(t, "--inserts"))
	whole.check(t, true)
	if wrong, _ := whole.look(t); len(wrong) > 0 {
		t.Errorf("look: %q", wrong)
	}
	u := whole.add(t, "ann@staff.example")
	if got := one[bool](t, whole, "select (app_metadata ->> 'staff')::boolean from {H}users where id = $1", u.ID); !got {
		t.Error("the application's claim is not here")
	}
	whole.exec(t, "update auth.users set role = 'editor' where id = $1", u.ID)
	whole.exec(t, "delete from auth.users where email = 'mia@example.org'")
	whole.install(t)
	whole.check(t, true)
	if got := one[string](t, whole, `select coalesce(max(email), '') || max(role) from {H}users
		where id = $1 or email = 'mia@example.org'`, u.ID); got != "ann@staff.exampleeditor" {
		t.Errorf("the writes there are not carried over: %q", got)
	}
	var out bytes.Buffer
	if err := mirror.Drop(t.Context(), whole.options(&out)); err != nil {
		t.Errorf("drop: %v\n%s", err, out.String())
	}
	out.Reset()
	if err := mirror.Install(t.Context(), whole.options(&out)); !errors.Is(err, mirror.ErrRefused) ||
		!strings.Contains(out.String(), "run auth mirror install there, then dump the whole database again") {
		t.Errorf("install of a mirror that was dropped: %v\n%s", err, out.String())
	}

	alone := m.restore(t, m.pgDump(t, "--inserts", "-n", "gatehouse"))
	const missing = `a mirror needs the tables of schema "auth" in this database`
	if wrong, _ := alone.look(t); len(wrong) != 1 || wrong[0] != missing {
		t.Errorf("look: %q", wrong)
	}
	if err := alone.send(t, func(b *store.Batch) { b.InsertUser(newUser("ann@example.org")) }); err == nil {
		t.Error("a user was made who can't be mirrored")
	}
	out.Reset()
	if err := mirror.Install(t.Context(), alone.options(&out)); !errors.Is(err, mirror.ErrRefused) ||
		out.String() != "mirror: "+missing+"\n" {
		t.Errorf("install: %v\n%s", err, out.String())
	}
	out.Reset()
	if err := mirror.Drop(t.Context(), alone.options(&out)); err != nil || strings.Contains(out.String(), "way back") {
		t.Fatalf("drop: %v\n%s", err, out.String())
	}
	if err := alone.send(t, func(b *store.Batch) { b.InsertUser(newUser("ann@example.org")) }); err != nil {
		t.Error(err)
	}
}

package mirror_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/mirror"
	"gatehouse/auth/internal/store"
)

// What happened between the closing and the install is put in order: new and deleted users, two swapped addresses, one
// that was passed on, what was written there, a user who was deleted there.
func TestRepair(t *testing.T) {
	t.Parallel()
	m := takeOver(t, formertest.Newest, "")
	for i := 1; i <= 6; i++ {
		m.add(t, fmt.Sprintf("user%d@example.org", i))
	}
	ids := func(emails ...string) (list []uuid.UUID) {
		for _, e := range emails {
			list = append(list, one[uuid.UUID](t, m, "select id from {H}users where email = $1", e))
		}
		return list
	}
	m.install(t)
	id := ids("user1@example.org", "user2@example.org", "user3@example.org", "user4@example.org", "user5@example.org")
	var out bytes.Buffer
	if err := mirror.Drop(t.Context(), m.options(&out)); err != nil {
		t.Fatal(err)
	}
	m.exec(t, `update {H}users set email = 'tmp@example.org' where id = '`+id[0].String()+`';
		update {H}users set email = 'user1@example.org' where id = '`+id[1].String()+`';
		update {H}users set email = 'user2@example.org' where id = '`+id[0].String()+`';
		update {H}users set email = 'new@example.org' where id = '`+id[2].String()+`';
		update {H}users set email = 'user3@example.org' where id = '`+id[3].String()+`';
		insert into {H}audit (at, action, traits) values (now(), 6, jsonb_build_object('user_id', '`+id[4].String()+`'));
		delete from {H}users where id = '`+id[4].String()+`'`)
	m.add(t, "late@example.org")
	m.install(t)
	m.check(t, false)
	if n := one[int](t, m, "select count(*) from auth.users where id = $1", id[4]); n != 0 {
		t.Error("a user who was deleted here is still there")
	}
	// A trigger that rewrites what it is given ends the repair with a list.
	out.Reset()
	m.exec(t, `create function app.stubborn() returns trigger language plpgsql as $$ begin
		new.aud = 'other'; return new; end $$`)
	if err := mirror.Drop(t.Context(), m.options(&out)); err != nil {
		t.Fatal(err)
	}
	m.exec(t, `create trigger a_stubborn before insert or update on auth.users for each row execute function app.stubborn()`)
	m.exec(t, "update {H}users set user_metadata = '{}' where id = $1", id[0])
	out.Reset()
	if err := mirror.Install(t.Context(), m.options(&out)); !errors.Is(err, mirror.ErrDiffers) ||
		!strings.Contains(out.String(), id[0].String()) {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// Writers on both sides of a few users: the application's give way and try again, ours go on, and both sides agree. The
// repair runs meanwhile and loses nothing.
func TestWriters(t *testing.T) {
	t.Parallel()
	m := takeOver(t, formertest.Newest, "")
	m.install(t)
	var users []store.User
	for i := range 3 {
		users = append(users, m.add(t, fmt.Sprintf("user%d@example.org", i)))
	}
	const each = 60
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range each {
				key := fmt.Sprintf(`{"here%d": %d}`, w, i)
				err := m.send(t, func(b *store.Batch) {
					b.UpdateUser(store.UserPatch{ID: users[i%3].ID, Now: time.Now(),
						UserMetadata: store.MetadataPatch{Set: []byte(key)}})
				})
				if err != nil {
					t.Errorf("here: %v", err)
				}
			}
		})
		c := connect(t, as(t, m.admin, "app_owner", ""))
		wg.Go(func() {
			for i := range each {
				for {
					_, err := c.Exec(context.Background(), "update auth.users set raw_user_meta_data = raw_user_meta_data || jsonb_build_object($2::text, $3::int) where id = $1",
						users[i%3].ID, fmt.Sprintf("there%d", w), i)
					pg, _ := errors.AsType[*pgconn.PgError](err)
					if pg == nil || pg.Code != "55P03" && pg.Code != "40P01" {
						if err != nil {
							t.Errorf("there: %v", err)
						}
						break
					}
				}
			}
		})
	}
	m.install(t)
	wg.Wait()
	m.check(t, false)
	for w := range 4 {
		for i := each - 3; i < each; i++ {
			got := one[string](t, m, "select concat(user_metadata->>$2, ' ', user_metadata->>$3) from {H}users where id = $1",
				users[i%3].ID, fmt.Sprintf("here%d", w), fmt.Sprintf("there%d", w))
			if want := fmt.Sprintf("%d %d", i, i); got != want {
				t.Errorf("writers %d: got %q, want %q", w, got, want)
			}
		}
	}
}

// install is refused, with the statement that helps.
func TestInstall_refusals(t *testing.T) {
	t.Parallel()
	m := takeOver(t, formertest.Newest, "")
	carried := m.Users[0].ID
	for name, test := range map[string]struct{ change, undo, want string }{
		"key": {`grant references on gatehouse.users to app_owner; grant usage on schema gatehouse to app_owner;
			create table app.moved (id uuid references gatehouse.users)`, "drop table app.moved",
			`alter table app.moved drop constraint moved_id_fkey, add constraint moved_id_fkey`},
		"trigger": {"create trigger moved after insert on gatehouse.users for each row execute function app.handle_new_user()",
			"drop trigger moved on gatehouse.users", "drop trigger moved on gatehouse.users;"},
		"column": {"alter table auth.users add must text default 'x' not null; alter table auth.users alter must drop default",
			"alter table auth.users drop must", "column must of auth.users takes no null"},
		"forced": {"alter table auth.users force row level security", "alter table auth.users no force row level security",
			"row-level security is forced on auth.users"},
		"stranger": {"insert into auth.users (id, email) select gen_random_uuid(), upper(email) from gatehouse.users where email <> '' limit 1",
			"delete from auth.users where email ~ '^[A-Z0-9@.-]+$'", "have the address of a user here"},
	} {
		m.exec(t, test.change)
		var out bytes.Buffer
		if err := mirror.Install(t.Context(), m.options(&out)); !errors.Is(err, mirror.ErrRefused) ||
			!strings.Contains(out.String(), test.want) {
			t.Errorf("%s: %v\n%s\nwant %s", name, err, out.String(), test.want)
		}
		m.exec(t, test.undo)
	}
	var out bytes.Buffer
	if err := pgx.BeginFunc(t.Context(), m.conn, func(pgx.Tx) error {
		m.exec(t, "delete from auth.users where id = $1", carried)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := mirror.Install(t.Context(), m.options(&out)); !errors.Is(err, mirror.ErrRefused) ||
		!strings.Contains(out.String(), "where id in ('"+carried.String()+"')") {
		t.Errorf("deleted there: %v\n%s", err, out.String())
	}
	m.exec(t, "delete from {H}users where id = $1", carried)
	m.install(t)
	out.Reset()
	o := m.options(&out)
	o.SQL = true
	if err := mirror.Install(t.Context(), o); err != nil || strings.Count(out.String(), "create function") < 20 {
		t.Errorf("-sql: %v\n%s", err, out.String())
	}
}

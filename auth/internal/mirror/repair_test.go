package mirror_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/mirror"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/must"
)

// What happened between the closing and the install is put in order: new and deleted users, two swapped addresses, one
// that was passed on by a change, one by a deletion and one by a soft deletion with an account at a provider, what was
// written there, a user who was deleted there. Of a user whose address or number was passed on, the other stays. A
// statement that gives way to a concurrent one is repeated.
func TestRepair(t *testing.T) {
	t.Parallel()
	m := takeOver(t, formertest.Newest, "")
	id := map[string]uuid.UUID{}
	for _, name := range strings.Fields("a b c d e gone soft") {
		u := newUser(name + "@example.org")
		if name == "gone" {
			u.ID = uuid.Max // of the last batch
		}
		id[name] = u.ID
		must.Succeed(t, m.send(t, func(b *store.Batch) { b.InsertUser(u) }))
	}
	m.exec(t, "update {H}users set phone = '333' where id = $1", id["c"])
	m.exec(t, "update {H}users set phone = '111' where id = $1", id["e"])
	const link = `insert into {H}identities (id, user_id, provider, provider_id, email, identity_data, created_at, updated_at)
		values (gen_random_uuid(), $1, $2, $3, '', '{"sub": "1"}', now(), now())`
	m.exec(t, link, id["soft"], "github", "41")
	m.exec(t, link, id["soft"], "gitlab", "42")
	m.exec(t, link, id["e"], "google", "43")
	m.install(t)
	var out bytes.Buffer
	must.Succeed(t, mirror.Drop(t.Context(), m.options(&out)))
	must.Succeed(t, m.send(t, func(b *store.Batch) {
		b.EraseUser(store.EraseUser{ID: id["soft"], Now: time.Now(), Email: "erased"})
	}))
	for _, sql := range []string{
		"update {H}users set email = 'tmp@example.org' where id = '{a}'",
		"update {H}users set email = 'a@example.org' where id = '{b}'",
		"update {H}users set phone = '222' where id = '{e}'",
		"update {H}users set email = 'b@example.org', phone = '111' where id = '{a}'",
		"update {H}users set email = 'new@example.org' where id = '{c}'",
		"update {H}users set email = 'c@example.org' where id = '{d}'",
		"insert into {H}audit (at, action, traits) values (now(), 6, jsonb_build_object('user_id', '{gone}'))",
		"delete from {H}users where id = '{gone}'",
		"delete from {H}identities where provider_id = '43'",
		// More new users than a batch has: one has the address of the deleted user, one the address and an account of the
		// soft-deleted user, and an account that another user has given up.
		`insert into {H}users (id, aud, role, email, created_at, updated_at, email_confirmed_at)
			select ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid, 'authenticated', 'authenticated',
				case n when 0 then 'gone' when 1 then 'soft' else 'late' || n end || '@example.org', now(), now(), now()
			from generate_series(0, 500) n`,
		strings.NewReplacer("$1", "'00000000-0000-4000-8000-000000000001'", "$2", "'github'", "$3", "'41'").Replace(link),
		strings.NewReplacer("$1", "'00000000-0000-4000-8000-000000000001'", "$2", "'google'", "$3", "'43'").Replace(link),
		`create sequence app.tries; create function app.collide() returns trigger language plpgsql security definer as $$ begin
			if nextval('app.tries') = 1 then
				raise exception 'meanwhile' using errcode = '55P03';
			end if;
			return new;
		end $$; create trigger collide before update of email on auth.users for each row execute function app.collide()`,
	} {
		for name, i := range id {
			sql = strings.ReplaceAll(sql, "{"+name+"}", i.String())
		}
		m.exec(t, sql)
	}
	m.install(t)
	m.check(t, false)
	for sql, want := range map[string]int{
		"select count(*) from auth.users where id = '" + id["gone"].String() + "'": 0,
		"select count(*) from auth.identities where provider_id = '42'":            0,
	} {
		if got := one[int](t, m, sql); got != want {
			t.Errorf("%s: %d, want %d", sql, got, want)
		}
	}
	// A trigger that rewrites what it is given ends the repair with a list.
	out.Reset()
	m.exec(t, `create function app.stubborn() returns trigger language plpgsql as $$ begin
		new.aud = 'other'; return new; end $$`)
	must.Succeed(t, mirror.Drop(t.Context(), m.options(&out)))
	m.exec(t, `create trigger a_stubborn before insert or update on auth.users for each row execute function app.stubborn()`)
	m.exec(t, "update {H}users set user_metadata = '{}' where id = $1", id["a"])
	out.Reset()
	if err := mirror.Install(t.Context(), m.options(&out)); !errors.Is(err, mirror.ErrDiffers) ||
		!strings.Contains(out.String(), id["a"].String()) {
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
	lasting, _ := time.ParseDuration(os.Getenv("MIRROR_WRITERS")) // such as 20s; else a fixed number of writes
	const least = 40
	began := time.Now()
	again := func(i int) bool { return i < least || time.Since(began) < lasting }
	var wg sync.WaitGroup
	var last [2][4]atomic.Int64 // of each writer here and there, the number of its last write
	for w := range 4 {
		wg.Go(func() {
			for i := 0; again(i); i++ {
				if err := m.writeHere(users[i%3].ID, w, i); err != nil {
					t.Errorf("here: %v", err)
				}
				last[0][w].Store(int64(i))
			}
		})
		c := connect(t, as(t, m.admin, "app_owner", ""))
		wg.Go(func() {
			for i := 0; again(i); i++ {
				for {
					err := writeThere(c, users[i%3].ID, w, i)
					if !givesWay(err) {
						if err != nil {
							t.Errorf("there: %v", err)
						}
						break
					}
				}
				last[1][w].Store(int64(i))
			}
		})
	}
	for n := 0; n == 0 || time.Since(began) < lasting; n++ {
		for _, u := range users { // else there is nothing to repair
			m.exec(t, "set session_replication_role = replica")
			m.exec(t, "update auth.users set aud = 'spoilt' where id = $1", u.ID)
		}
		m.install(t)
	}
	wg.Wait()
	m.check(t, false)
	for w := range 4 {
		t.Logf("writers %d: %d writes here, %d there", w, last[0][w].Load()+1, last[1][w].Load()+1)
		for side, name := range []string{"here", "there"} {
			for i := last[side][w].Load() - 2; i <= last[side][w].Load(); i++ {
				got := one[string](t, m, "select coalesce(user_metadata->>$2, '') from {H}users where id = $1", users[i%3].ID,
					fmt.Sprintf("%s%d", name, w))
				if want := fmt.Sprint(i); got != want {
					t.Errorf("writer %s%d: got %q, want %q", name, w, got, want)
				}
			}
		}
	}
}

// writeHere is what the i-th request of a writer does: each third one signs in as well.
func (m *moved) writeHere(id uuid.UUID, w, i int) error {
	b := m.db.Batch()
	b.UpdateUser(store.UserPatch{ID: id, Now: time.Now(),
		UserMetadata: store.MetadataPatch{Set: fmt.Appendf(nil, `{"here%d": %d}`, w, i)}})
	if err := b.Send(context.Background()); err != nil || i%3 > 0 {
		return err
	}
	_, err := m.db.OpenSession(context.Background(), store.OpenSession{Session: store.NewSession{ID: uuid.New(), User: id,
		At: time.Now(), IP: "192.0.2.1", AAL: 1, AMR: []byte(`[{"method": "password", "timestamp": 1930000000}]`)},
		IfPassword: "$2a$04$secret", Audit: store.Audit{At: time.Now(), Action: store.ActionLogin, Actor: id}})
	return err
}

// givesWay says that the application has to send its statement again.
func givesWay(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "55P03" || pg.Code == "40P01")
}

// writeThere is what the i-th statement of the application does: each third one changes the role as well.
func writeThere(c *pgx.Conn, id uuid.UUID, w, i int) error {
	more := ""
	if i%3 == 0 {
		more = ", role = case role when 'editor' then 'author' else 'editor' end"
	}
	_, err := c.Exec(context.Background(), "update auth.users set raw_user_meta_data = raw_user_meta_data || jsonb_build_object($2::text, $3::int)"+
		more+" where id = $1", id, fmt.Sprintf("there%d", w), i)
	return err
}

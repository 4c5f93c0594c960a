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
)

// What happened between the closing and the install is put in order: new and deleted users, two swapped addresses, one
// that was passed on by a change and one by a deletion, what was written there, a user who was deleted there. Of a user
// whose address or number was passed on, the other stays.
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
	m.exec(t, "update {H}users set phone = '333' where email = 'user3@example.org'")
	m.exec(t, "update {H}users set phone = '111' where email = 'user6@example.org'")
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
		update {H}users set phone = '222' where email = 'user6@example.org';
		update {H}users set phone = '111' where id = '`+id[0].String()+`';
		insert into {H}audit (at, action, traits) values (now(), 6, jsonb_build_object('user_id', '`+id[4].String()+`'));
		delete from {H}users where id = '`+id[4].String()+`'`)
	m.add(t, "late@example.org")
	// A new user with the address of the deleted one, whose id is the first.
	m.exec(t, `insert into {H}users (id, aud, role, email, created_at, updated_at, email_confirmed_at) values
		('00000000-0000-4000-8000-000000000001', 'authenticated', 'authenticated', 'user5@example.org', now(), now(), now())`)
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

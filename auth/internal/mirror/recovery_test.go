package mirror_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/mirror"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

// repairing is the backend that repairs, in a state of pg_stat_activity.
const repairing = "from pg_stat_activity where datname = current_database() and application_name = 'auth mirror' and query like '%mirror\\_repair%' and "

// A repair that was killed in any of its batches is done by the next one.
func TestRepair_killed(t *testing.T) {
	t.Parallel()
	m := takeOver(t, formertest.Newest, "")
	m.exec(t, `insert into {H}users (id, aud, role, email, created_at, updated_at, email_confirmed_at)
		select gen_random_uuid(), 'authenticated', 'authenticated', 'new' || n || '@example.org', now(), now(), now()
		from generate_series(1, 1100) n`)
	kills := connect(t, m.admin)
	for _, batch := range []int{1, 2, 2} {
		ctx, done := context.WithCancel(t.Context())
		var out bytes.Buffer
		var n int
		var killed atomic.Bool
		o := m.options(&out)
		ended := make(chan struct{})
		o.Batch = func() {
			if n++; n != batch {
				return
			}
			go func() {
				defer close(ended)
				for ctx.Err() == nil && !killed.Load() {
					var hit bool
					if kills.QueryRow(context.Background(), "select coalesce(bool_or(pg_terminate_backend(pid)), false) "+repairing+
						"state = 'active'").Scan(&hit) == nil {
						killed.Store(hit)
					}
				}
			}()
		}
		err := mirror.Install(t.Context(), o)
		done()
		if n < batch {
			t.Fatalf("%d batches, want %d: %v\n%s", n, batch, err, out.String())
		}
		<-ended
		if killed.Load() && (err == nil || errors.Is(err, mirror.ErrDiffers)) {
			t.Errorf("a killed install ends with %v", err)
		}
	}
	m.install(t)
	m.check(t, false)
}

// awaitWaiting returns when the command waits for a lock.
func awaitWaiting(t *testing.T, m *moved) {
	t.Helper()
	await.True(t, "the command waits", func() bool {
		return one[bool](t, m, "select exists (select from pg_stat_activity where datname = current_database() "+
			"and application_name = 'auth mirror' and wait_event_type = 'Lock')")
	})
}

// An install that waits for a table gives way to a statement that holds this table and waits for one that the install
// has, before the server ends either.
func TestInstall_givesWay(t *testing.T) {
	t.Parallel()
	m := takeOver(t, formertest.Newest, "")
	m.install(t)
	u := m.add(t, "here@example.org")
	m.exec(t, "begin")
	m.exec(t, "select from {H}identities limit 1")
	updated := make(chan error, 1)
	go func() {
		awaitWaiting(t, m)
		_, err := m.conn.Exec(context.Background(), m.names("update {H}users set updated_at = now() where id = $1"), u.ID)
		_, err2 := m.conn.Exec(context.Background(), "commit")
		updated <- errors.Join(err, err2)
	}()
	m.install(t, func(o *mirror.Options) { o.Days = new(true) })
	if err := <-updated; err != nil {
		t.Error(err)
	}
	m.check(t, false)
}

// What is written there between the reading of all users and the lock is carried over too, and so is what was written
// before, since the takeover was closed.
func TestInstall_writtenMeanwhile(t *testing.T) {
	t.Parallel()
	m := takeOver(t, formertest.Newest, "")
	const write = `update auth.users set raw_app_meta_data = raw_app_meta_data || '{"%s": true}' where id = $1`
	early, late := m.Users[0].ID, m.Users[1].ID
	m.exec(t, fmt.Sprintf(write, "early"), early)
	m.exec(t, "begin")
	m.exec(t, "lock table {H}users in row exclusive mode")
	written := make(chan error, 1)
	go func() {
		awaitWaiting(t, m)
		_, err := m.conn.Exec(context.Background(), fmt.Sprintf(write, "late"), late)
		_, err2 := m.conn.Exec(context.Background(), "commit")
		written <- errors.Join(err, err2)
	}()
	m.install(t)
	if err := <-written; err != nil {
		t.Error(err)
	}
	for id, key := range map[uuid.UUID]string{early: "early", late: "late"} {
		if !one[bool](t, m, "select app_metadata ? $2 from {H}users where id = $1", id, key) {
			t.Errorf("what was written there %s is not here", key)
		}
	}
}

// What is committed while both sides are compared is no difference: the functions that read here see what the rest of
// the statement sees.
func TestCheck_oneSnapshot(t *testing.T) {
	t.Parallel()
	m := takeOver(t, formertest.Newest, "")
	m.install(t)
	u := m.add(t, "here@example.org")
	m.exec(t, "begin")
	m.exec(t, "lock table {H}one_time_tokens") // which only the functions read
	m.exec(t, "update {H}users set user_metadata = '{}' where id = $1", u.ID)
	committed := make(chan error, 1)
	go func() {
		awaitWaiting(t, m)
		_, err := m.conn.Exec(context.Background(), "commit")
		committed <- err
	}()
	m.check(t, false)
	if err := <-committed; err != nil {
		t.Error(err)
	}
}

// What is written on either side after the comparison and before the repair has its lock is not overwritten.
func TestRepair_meanwhile(t *testing.T) {
	t.Parallel()
	m := takeOver(t, formertest.Newest, "")
	m.install(t)
	here, there := m.add(t, "here@example.org"), m.add(t, "there@example.org")
	var out bytes.Buffer
	must.Succeed(t, mirror.Drop(t.Context(), m.options(&out)))
	m.exec(t, `update {H}users set user_metadata = '{"old": 1}' where email in ('here@example.org', 'there@example.org')`)
	owner := connect(t, as(t, m.admin, "app_owner", ""))
	m.install(t, func(o *mirror.Options) {
		o.Batch = func() {
			o.Batch = nil
			m.exec(t, "begin")
			m.exec(t, `update {H}users set user_metadata = '{"late": 1}' where id = $1`, here.ID)
			for _, sql := range []string{"begin", `update auth.users set raw_user_meta_data = raw_user_meta_data || '{"late": 2}' where id = '` + there.ID.String() + `'`} {
				must.Succeed(t, must.ErrOf(owner.Exec(t.Context(), sql)))
			}
			go func() { // the repair waits for one of the two
				await.True(t, "the repair waits", func() bool {
					return one[bool](t, m, "select exists (select "+repairing+"wait_event_type = 'Lock')")
				})
				_, err := m.conn.Exec(context.Background(), "commit")
				_, err2 := owner.Exec(context.Background(), "commit")
				if err != nil || err2 != nil {
					t.Errorf("here %v, there %v", err, err2)
				}
			}()
		}
	})
	m.check(t, false)
	for id, want := range map[uuid.UUID]string{here.ID: `{"late": 1}`, there.ID: "2"} {
		if got := one[string](t, m, "select user_metadata::text || (user_metadata ->> 'late') from {H}users where id = $1", id); !strings.Contains(got, want) {
			t.Errorf("got %s, want %s in it", got, want)
		}
	}
}

// The statements that drop prints give the service there what it needs, and a second takeover carries everybody again.
func TestWayBack(t *testing.T) {
	t.Parallel()
	m := takeOver(t, formertest.Newest, "")
	before := m.dump(t, "auth")
	m.install(t, func(o *mirror.Options) { o.Sessions = new(true) })
	fresh, other, gone := m.add(t, "fresh@example.org"), m.add(t, "other@example.org"), m.add(t, "gone@example.org")
	carried := one[uuid.UUID](t, m, `select u.id from {H}users u join auth.users o using (id)
		where o.encrypted_password like '$2a$%' and exists (select from {H}sessions s join auth.sessions using (id)
			where s.user_id = u.id and s.ended_at is null) limit 1`)
	fresh.PasswordHash = one[string](t, m, "select password_hash from {H}users where id = $1", carried) // a real one
	m.exec(t, "update {H}users set password_hash = $2 where id = $1", fresh.ID, fresh.PasswordHash)
	factors := one[int](t, m, "select count(*) from auth.mfa_factors where secret <> ''")
	const changed, strange = "$argon2id$v=19$m=8,t=1,p=1$YQ$YQ", "$pbkdf2-sha256$1000$YQ$YQ"
	for id, hash := range map[uuid.UUID]string{carried: changed, other.ID: strange} {
		m.exec(t, "update {H}users set password_hash = $2 where id = $1", id, hash)
		if got := one[string](t, m, "select encrypted_password from auth.users where id = $1", id); got != "" {
			t.Errorf("after the change the hash there is %q", got)
		}
	}
	m.exec(t, "update {H}sessions set ended_at = now(), ended_reason = 'signout' where user_id = $1", carried)
	m.exec(t, "update {H}users set banned_until = '2100-01-01' where id = $1", other.ID)
	must.Succeed(t, m.send(t, func(b *store.Batch) { b.DeleteUser(gone.ID) }))
	profiles := one[string](t, m, "select string_agg(p::text, ',' order by id) from app.profiles p")
	var out bytes.Buffer
	must.Succeed(t, mirror.Drop(t.Context(), m.options(&out)))
	var again bytes.Buffer // when the first output is lost
	if err := mirror.Drop(t.Context(), m.options(&again)); err != nil || again.String() != out.String() {
		t.Errorf("dropped again: %v\n%s\nat first:\n%s", err, again.String(), out.String())
	}
	_, statements, _ := strings.Cut(out.String(), "-- way back")
	m.exec(t, "--"+statements)
	for id, want := range map[uuid.UUID]string{fresh.ID: fresh.PasswordHash, carried: changed, other.ID: ""} {
		if got := one[string](t, m, "select encrypted_password from auth.users where id = $1", id); got != want {
			t.Errorf("there the hash is %q, want %q", got, want)
		}
	}
	for sql, want := range map[string]int{
		"select count(*) from auth.mfa_factors where coalesce(secret, '') = '' and status = 'verified' and factor_type = 'totp'": 0,
		"select count(*) from auth.mfa_factors where secret <> ''":                                                               factors,
		"select count(*) from auth.sessions where user_id = '" + carried.String() + "'":                                          0,
		"select count(*) from auth.users where email = 'gone@example.org'":                                                       0,
		"select count(*) from auth.users where banned_until = '2100-01-01' and email = 'other@example.org'":                      1,
		"select count(*) from auth.users where email = 'fresh@example.org' and email_confirmed_at is not null":                   1,
	} {
		if got := one[int](t, m, sql); got != want {
			t.Errorf("%s: %d, want %d", sql, got, want)
		}
	}
	if now := one[string](t, m, "select string_agg(p::text, ',' order by id) from app.profiles p"); now != profiles {
		t.Errorf("the application's rows have changed:\n%s\n%s", profiles, now)
	}
	users := one[int](t, m, "select count(*) from {H}users")
	m.db.Close()
	m.exec(t, "drop schema gatehouse cascade")
	if after := m.dump(t, "auth"); before != after {
		t.Errorf("schema auth has changed:\n%s", diff(before, after))
	}
	m.carry(t)
	if n := one[int](t, m, "select count(*) from {H}users"); n != users {
		t.Errorf("the second takeover carries %d users, want %d", n, users)
	}
	m.install(t)
	m.check(t, true)
	if got := one[string](t, m, "select password_hash from {H}users where id = $1", fresh.ID); got != fresh.PasswordHash {
		t.Errorf("the second takeover has the hash %q", got)
	}
}

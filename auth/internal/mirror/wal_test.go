package mirror_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/mirror"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/must"
)

// BenchmarkWAL reports the bytes of WAL that a request writes without a mirror (off), and how many more with one and the
// fixture's triggers: medians of five times 40 requests. -benchtime 1x does.
func BenchmarkWAL(b *testing.B) {
	m := takeOver(b, formertest.Newest, "")
	var out bytes.Buffer
	off := m.wal(b)
	for _, kind := range []string{"all", "day", "sessions"} {
		m.install(b, func(o *mirror.Options) { o.Days, o.Sessions = new(kind == "day"), new(kind == "sessions") })
		on := m.wal(b)
		for name, bytes := range on {
			b.ReportMetric(float64(bytes-off[name]), name+"-"+kind+"-B")
			if kind == "all" {
				b.ReportMetric(float64(off[name]), name+"-off-B")
			}
		}
	}
	must.Succeed(b, mirror.Drop(b.Context(), m.options(&out)))
	m.exec(b, `insert into {H}users (id, aud, role, email, created_at, updated_at, email_confirmed_at)
		select gen_random_uuid(), 'authenticated', 'authenticated', 'new' || n || '@example.org', now(), now(), now()
		from generate_series(1, 5000) n`)
	began := time.Now()
	m.install(b)
	b.ReportMetric(5000/time.Since(began).Seconds(), "repaired/s")
}

// wal are the bytes that each kind of request writes.
func (m *moved) wal(b testing.TB) map[string]int {
	ctx := context.Background()
	users := make([]store.User, 40)
	for i := range users {
		users[i] = m.add(b, fmt.Sprintf("wal-%s@example.org", uuid.NewString()))
	}
	var spare []uuid.UUID
	batch := func(f func(*store.Batch)) {
		must.Succeed(b, m.send(b, f))
	}
	requests := map[string]func(i int){
		"sign-in": func(i int) {
			now := time.Now()
			_, err := m.db.OpenSession(ctx, store.OpenSession{Session: store.NewSession{ID: uuid.New(), User: users[i].ID,
				At: now, UserAgent: "agent", IP: "192.0.2.1", AAL: 1, AMR: []byte(`[{"method": "password", "timestamp": 1930000000}]`)},
				IfPassword: users[i].PasswordHash, Audit: store.Audit{At: now, Action: store.ActionLogin, Actor: users[i].ID}})
			must.Succeed(b, err)
		},
		"metadata": func(i int) {
			batch(func(q *store.Batch) {
				q.UpdateUser(store.UserPatch{ID: users[i].ID, Now: time.Now(),
					UserMetadata: store.MetadataPatch{Set: []byte(fmt.Sprintf(`{"n": %d}`, time.Now().UnixNano()))}})
			})
		},
		"sign-up":   func(i int) { spare = append(spare, m.signUp(b, uuid.NewString()+"@example.org").ID) },
		"anonymous": func(i int) { batch(func(q *store.Batch) { q.InsertUser(anonymous()) }) },
		"delete": func(i int) {
			batch(func(q *store.Batch) { q.DeleteUser(spare[0]) })
			spare = spare[1:]
		},
	}
	found := map[string]int{}
	for _, name := range []string{"sign-in", "metadata", "sign-up", "anonymous", "delete"} {
		var rounds []int
		for range 6 { // the first one is warm-up
			if name == "delete" {
				for range 40 {
					requests["sign-up"](0)
				}
			}
			m.exec(b, "checkpoint")
			before := one[int64](b, m, "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")
			for i := range 40 {
				requests[name](i)
			}
			after := one[int64](b, m, "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")
			rounds = append(rounds, int(after-before)/40)
		}
		rounds = rounds[1:]
		slices.Sort(rounds)
		found[name] = rounds[2]
	}
	return found
}

func anonymous() store.User {
	u := newUser("")
	u.Email, u.PasswordHash, u.EmailConfirmedAt, u.IsAnonymous = "", "", time.Time{}, true
	u.AppMetadata = []byte("{}")
	return u
}

package mirror_test

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/mirror"
)

// many is how many users BenchmarkMany has on both sides, spoilt how many of them differ before the repair.
const many, spoilt = 200_000, 5_000

// BenchmarkMany reports, with 200,000 users and identities on both sides and writers of both sides beside the command:
// how long a comparison takes and how much more heap it needs, the longest that a request has waited while an install
// replaces functions and triggers, and while it repairs 5,000 users. -benchtime 1x does.
func BenchmarkMany(b *testing.B) {
	m := takeOver(b, formertest.Newest, "")
	m.install(b)
	m.fill(b)
	var out bytes.Buffer
	began := time.Now()
	heap := m.heapOf(func() { m.check(b, false) })
	b.ReportMetric(time.Since(began).Seconds(), "comparison-s")
	b.ReportMetric(heap, "comparison-MiB")
	if err := mirror.Drop(b.Context(), m.options(&out)); err != nil {
		b.Fatal(err)
	}
	for _, kind := range []string{"first", "again"} {
		locked := m.locked(b)
		waits := m.beside(b, func(repairing func()) {
			m.exec(b, "update auth.users set aud = 'spoilt' where id in (select id from {H}users where email like 'many%' limit $1)", spoilt)
			m.install(b, func(o *mirror.Options) { o.Batch, o.Days = repairing, new(kind == "again") })
		})
		b.ReportMetric(float64(locked().Milliseconds()), kind+"-locked-ms")
		for i, phase := range []string{"replacing", "repairing"} {
			b.ReportMetric(float64(waits[i].Milliseconds()), kind+"-"+phase+"-ms")
		}
	}
	m.exec(b, "update auth.users set aud = 'spoilt'")
	heap = m.heapOf(func() { mirror.Check(b.Context(), m.options(&out), false, false) }) // all differ
	b.ReportMetric(heap, "differences-MiB")
}

// locked watches the lock that an install has on users, until the function that it returns is called, which returns how
// long the lock was held at a time.
func (m *moved) locked(b *testing.B) func() time.Duration {
	c := connect(b, m.admin)
	stop, longest := make(chan struct{}), make(chan time.Duration)
	go func() {
		var most time.Duration
		for since := (time.Time{}); ; time.Sleep(time.Millisecond) {
			var held bool
			if err := c.QueryRow(context.Background(), m.names(`select exists (select from pg_locks where granted
				and relation = '{H}users'::regclass and mode in ('ShareRowExclusiveLock', 'AccessExclusiveLock'))`)).Scan(&held); err != nil {
				b.Error(err)
			}
			switch {
			case !held:
				since = time.Time{}
			case since.IsZero():
				since = time.Now()
			default:
				most = max(most, time.Since(since))
			}
			select {
			case <-stop:
				longest <- most
				return
			default:
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		return <-longest
	}
}

// fill makes users here and there, in a session without triggers.
func (m *moved) fill(b *testing.B) {
	m.exec(b, "set session_replication_role = replica")
	m.exec(b, `insert into {H}users (id, aud, role, email, phone, created_at, updated_at, email_confirmed_at, password_hash, app_metadata,
			user_metadata)
		select gen_random_uuid(), 'authenticated', 'authenticated', 'many' || n || '@example.org', (49000000000 + n)::text,
			'2020-01-01', '2020-01-01', '2020-01-01', '$2a$04$secret', '{"provider": "email", "providers": ["email"]}', '{"name": "Mia"}'
		from generate_series(1, $1::int) n`, many)
	m.exec(b, `insert into {H}identities (id, user_id, provider, provider_id, email, identity_data, created_at, updated_at)
		select gen_random_uuid(), id, 'email', id::text, email, jsonb_build_object('sub', id, 'email', email), created_at, updated_at
		from {H}users where email like 'many%'`)
	for table, row := range map[string]string{"users": "user", "identities": "identity"} {
		names := one[string](b, m, `select string_agg(quote_ident(attname), ', ' order by attnum) from pg_attribute
			where attrelid = ('{H}mirror_'||$1)::regclass and attname <> 'claimed'`, row)
		m.exec(b, "insert into auth."+table+" ("+names+") select "+names+" from {H}mirror_"+table+"() n where not exists (select from auth."+
			table+" o where o.id = n.id)")
		m.exec(b, "analyze auth."+table)
		m.exec(b, "analyze {H}"+table)
	}
}

// heapOf returns how many MiB of heap f needs at most, besides what is in use before.
func (m *moved) heapOf(f func()) float64 {
	inUse := func() int64 {
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return int64(s.HeapInuse + s.StackInuse)
	}
	runtime.GC()
	before, ended := inUse(), make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	most := int64(0)
	for {
		select {
		case <-ended:
			return float64(most-before) / (1 << 20)
		case <-time.After(5 * time.Millisecond):
			most = max(most, inUse())
		}
	}
}

// beside runs f while requests write users here and statements of the application there, and returns the longest wait of
// a request before f calls repairing, and after it.
func (m *moved) beside(b *testing.B, f func(repairing func())) (waits [2]time.Duration) {
	ids := one[[]uuid.UUID](b, m, "select array(select id from {H}users where email like 'many%' limit $1)", spoilt)
	ctx, stop := context.WithCancel(context.Background())
	var phase atomic.Int32
	var wg sync.WaitGroup
	var mu sync.Mutex
	for w := range 2 {
		wg.Go(func() {
			for i := w; ctx.Err() == nil; i += 7 {
				at, began := phase.Load(), time.Now()
				if err := m.writeHere(ids[i%len(ids)], w, i); err != nil {
					b.Errorf("here: %v", err)
				}
				mu.Lock()
				waits[at] = max(waits[at], time.Since(began))
				mu.Unlock()
			}
		})
		c := connect(b, as(b, m.admin, "app_owner", ""))
		wg.Go(func() {
			for i := w; ctx.Err() == nil; i += 5 {
				if err := writeThere(c, ids[i%len(ids)], w, i); err != nil && !givesWay(err) {
					b.Errorf("there: %v", err)
				}
			}
		})
	}
	f(func() { phase.Store(1) })
	stop()
	wg.Wait()
	return waits
}

package daemon

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"gatehouse/auth/internal/config"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/must"
)

// settingsOf are the settings that an environment makes, with what a start requires.
func settingsOf(t *testing.T, environ string) config.Config {
	t.Helper()
	c, _, _, _, err := config.Load(strings.Fields(`AUTH_SITE_URL=https://app.test AUTH_API_EXTERNAL_URL=https://auth.test AUTH_DB_DRIVER=postgres DATABASE_URL=postgres://h/d
		AUTH_JWT_SECRET=0123456789abcdef0123456789abcdef AUTH_MAILER_AUTOCONFIRM=true `+environ), os.DevNull, nil)
	must.Succeed(t, err)
	return c
}

// What is kept for how long (docs/operations.md#sweeper).
func TestSweepTimes(t *testing.T) {
	now := time.Date(2031, 3, 5, 7, 0, 0, 0, time.UTC)
	f := func(environ string, change func(*store.Sweep)) {
		t.Helper()
		c := settingsOf(t, environ)
		want := store.Sweep{Now: now, Messages: now.Add(-7 * day), Challenges: now.Add(-day), Factors: now.Add(-day),
			Places: now.Add(-90 * day), Audit: now.Add(-400 * day), EndedBefore: now.Add(-day), Batch: sweepBatch}
		change(&want)
		if d := cmp.Diff(want, sweepAt(&c, now)); d != "" {
			t.Errorf("%s: %s", environ, d)
		}
	}
	f("", func(*store.Sweep) {})
	f("AUTH_JWT_EXP=48h", func(s *store.Sweep) { s.EndedBefore = now.Add(-2 * day) })
	f("AUTH_MFA_FACTOR_EXPIRY_DURATION=30h", func(s *store.Sweep) { s.Factors = now.Add(-30 * time.Hour) })
	f("AUTH_SESSIONS_TIMEBOX=2h", func(s *store.Sweep) { s.CreatedBefore = now.Add(-26 * time.Hour) })
	f("AUTH_SESSIONS_INACTIVITY_TIMEOUT=1h", func(s *store.Sweep) { s.ActiveBefore = now.Add(-25 * time.Hour) })
	f("AUTH_AUDIT_RETENTION=720h", func(s *store.Sweep) { s.Audit = now.Add(-30 * day) })
	f("AUTH_AUDIT_RETENTION=0", func(s *store.Sweep) { s.Audit = time.Time{} })
	const anonymous = "AUTH_EXTERNAL_ANONYMOUS_USERS_ENABLED=true"
	f(anonymous, func(s *store.Sweep) { s.Anonymous = now.Add(-30 * day) })
	f(anonymous+" AUTH_ANONYMOUS_USERS_RETENTION=48h", func(s *store.Sweep) { s.Anonymous = now.Add(-2 * day) })
	f(anonymous+" AUTH_ANONYMOUS_USERS_RETENTION=0", func(*store.Sweep) {})
}

// Anonymous users whom a takeover has carried are kept until the setting says for how long; those made later are not.
func TestSweepOnce_carriedAnonymous(t *testing.T) {
	t.Parallel()
	const anonymous = "AUTH_EXTERNAL_ANONYMOUS_USERS_ENABLED=true"
	var text bytes.Buffer
	c := settingsOf(t, anonymous)
	d := &daemon{db: storetest.Open(t), log: NewLogger(&text, c.Log)}
	now := time.Now().UTC().Truncate(time.Microsecond)
	closed := now.Add(-35 * day)
	made := func(at time.Time) uuid.UUID {
		u := store.User{ID: uuid.New(), IsAnonymous: true, CreatedAt: at, UpdatedAt: at}
		b := d.db.Batch()
		b.InsertUser(u)
		must.Succeed(t, b.Send(t.Context()))
		return u.ID
	}
	carried, later, fresh := made(now.Add(-40*day)), made(now.Add(-32*day)), made(now.Add(-day))
	there := func(want ...bool) {
		t.Helper()
		for i, id := range []uuid.UUID{carried, later, fresh} {
			if _, err := d.db.User(t.Context(), id); (err == nil) != want[i] {
				t.Errorf("user %d: %v, want there: %v", i, err, want[i])
			}
		}
	}
	storetest.Exec(t, d.db,
		`insert into moves (id, kind, source, state, started_at) values ($1, 'takeover', 'h:1/d auth', 'open', $2)`,
		uuid.New(), closed)
	d.sweepOnce(t.Context(), &c) // an open takeover owns every user
	there(true, true, true)
	storetest.Exec(t, d.db, `update moves set state = 'closed', closed_at = $1`, closed)
	d.sweepOnce(t.Context(), &c)
	there(true, false, true)
	if n, err := d.db.CarriedAnonymous(t.Context(), closed); n != 1 || err != nil {
		t.Errorf("%d anonymous users were carried, %v", n, err)
	}
	c = settingsOf(t, anonymous+" AUTH_ANONYMOUS_USERS_RETENTION=720h")
	d.sweepOnce(t.Context(), &c)
	there(false, false, true)
}

// One sweep works off a backlog of several batches, and ends when its context does.
func TestSweepOnce(t *testing.T) {
	t.Parallel()
	c := settingsOf(t, "AUTH_AUDIT_RETENTION=1h")
	var text bytes.Buffer
	d := &daemon{db: storetest.Open(t), log: NewLogger(&text, c.Log)}
	old := time.Now().UTC().Add(-48 * time.Hour).Truncate(time.Microsecond)
	b := d.db.Batch()
	b.Audit(store.Audit{At: old.Add(47*time.Hour + 59*time.Minute), Action: store.ActionLogin,
		Actor: uuid.New()}) // kept
	for range 2*sweepBatch + 1 {
		b.Audit(store.Audit{At: old, Action: store.ActionLogin, Actor: uuid.New()})
	}
	must.Succeed(t, b.Send(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d.sweepOnce(ctx, &c)
	if _, n, _ := d.db.AuditLog(t.Context(), store.AuditFilter{Limit: 1}); n != 2*sweepBatch+2 {
		t.Errorf("a sweep that may not begin left %d rows", n)
	}
	d.sweepOnce(t.Context(), &c)
	if _, n, err := d.db.AuditLog(t.Context(), store.AuditFilter{Limit: 1}); n > 2 || err != nil {
		t.Errorf("%d rows are left, %v", n, err)
	}
	if !strings.Contains(text.String(), "removed what has expired") {
		t.Error(text.String())
	}
}

// Anonymous users that the application's rows hold on to stay, with one warning a walk, and keep nothing else from
// being removed: what expired, and the anonymous users among and behind them.
func TestSweepOnce_refused(t *testing.T) {
	t.Parallel()
	for name, deferred := range map[string]string{"at once": "", "at commit": " deferrable initially deferred"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var text bytes.Buffer
			c := settingsOf(t, "AUTH_EXTERNAL_ANONYMOUS_USERS_ENABLED=true AUTH_AUDIT_RETENTION=1h")
			d := &daemon{db: storetest.Open(t), log: NewLogger(&text, c.Log)}
			storetest.Exec(t, d.db, `create schema storage;
				create table storage.objects (owner uuid not null references users`+deferred+`)`)
			old := time.Now().UTC().Add(-40 * day).Truncate(time.Microsecond)
			b := d.db.Batch()
			b.Audit(store.Audit{At: old, Action: store.ActionLogin, Actor: uuid.New()})
			const users, held = 2*sweepBatch + 20, sweepBatch + 10
			for i := range users {
				at := old.Add(time.Duration(i/2) * time.Second) // two of each time
				b.InsertUser(store.User{ID: uuid.New(), IsAnonymous: true, CreatedAt: at, UpdatedAt: at})
			}
			must.Succeed(t, b.Send(t.Context()))
			storetest.Exec(t, d.db, `insert into storage.objects select id from users order by created_at, id limit $1`,
				held)
			for _, removed := range []string{`"rows":511`, ""} {
				text.Reset()
				d.sweepOnce(t.Context(), &c)
				if n, err := d.db.CountUsers(t.Context()); n != held || err != nil {
					t.Errorf("%d users are left, want %d; %v", n, held, err)
				}
				if strings.Count(text.String(), `"level":"warn"`) != 1 ||
					!strings.Contains(text.String(), fmt.Sprintf(`"count":%d`, held)) ||
					!strings.Contains(text.String(), "schema storage, table objects") {
					t.Errorf("want one warning of %d users:\n%s", held, text.String())
				}
				if !strings.Contains(text.String(), removed) || removed == "" && strings.Contains(text.String(), "rows") {
					t.Errorf("want %s removed:\n%s", removed, text.String())
				}
			}
			if _, n, err := d.db.AuditLog(t.Context(), store.AuditFilter{Limit: 1}); n != 0 || err != nil {
				t.Errorf("%d audit rows are left, %v", n, err)
			}
		})
	}
}

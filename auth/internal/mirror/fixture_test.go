package mirror_test

import (
	"bytes"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/mirror"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/takeover"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

func TestMain(m *testing.M) { os.Exit(m.Run()) }

// moved is a database after a takeover, with the application of the fixture.
type moved struct {
	*formertest.Source
	admin, daemon string // URLs of a superuser and of the daemon's role
	namespace     string
	db            *store.DB
	conn          *pgx.Conn // the superuser's
}

// as is a URL of the same database for another role.
func as(t testing.TB, link, role, path string) string {
	t.Helper()
	u, err := url.Parse(link)
	must.Succeed(t, err)
	u.User = url.User(role)
	q := u.Query()
	if path != "" {
		q.Set("search_path", path)
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// takeOver fills a source and carries its users over.
func takeOver(t testing.TB, release formertest.Release, namespace string) *moved {
	t.Helper()
	return moveTo(t, testdb.Postgres(t), release, namespace)
}

// moveTo is takeOver in a database of its own.
func moveTo(t testing.TB, admin string, release formertest.Release, namespace string) *moved {
	t.Helper()
	m := &moved{admin: admin, namespace: namespace, Source: formertest.Fill(t, admin, "auth", release, time.Now())}
	formertest.AddApplication(t, admin)
	if release == formertest.Oldest {
		formertest.Exec(t, admin, "alter type auth.factor_type add value 'phone'")
	}
	m.daemon = as(t, admin, "gatehouse", "gatehouse")
	m.conn = connect(t, admin)
	m.carry(t)
	return m
}

// carry makes our tables and runs a takeover.
func (m *moved) carry(t testing.TB) {
	t.Helper()
	m.exec(t, "create schema gatehouse authorization gatehouse")
	var err error
	m.db, err = store.Open(t.Context(), store.Options{URL: m.daemon, Settings: store.Settings{Namespace: m.namespace, MaxConns: 10}})
	must.Succeed(t, err)
	t.Cleanup(m.db.Close)
	must.Succeed(t, must.ErrOf(m.db.Migrate(t.Context())))
	source, err := former.OpenSource(t.Context(), m.admin, "auth")
	must.Succeed(t, err)
	defer source.Close()
	keys, err := former.ParseKeys(formertest.Keys)
	must.Succeed(t, err)
	var log bytes.Buffer
	err = takeover.Run(t.Context(), takeover.Options{Source: source, DB: m.db, Out: &log, Log: &log,
		LeaveOut: []string{"passwords", "saml", "web3", "webauthn", "oauth"},
		Settings: takeover.Settings{Audience: "authenticated", Role: "authenticated", AdminRoles: []string{"service_role"},
			LinkLife: 24 * time.Hour, OTPLife: time.Hour, Namespace: m.namespace, Keys: keys,
			Root: secret.NewRoot("root secret for the test of derivation")}})
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
}

func connect(t testing.TB, link string) *pgx.Conn {
	t.Helper()
	c := testdb.Connect(t, link)
	return c
}

func (m *moved) options(out *bytes.Buffer) mirror.Options {
	return mirror.Options{URL: m.admin, DB: m.db, Namespace: m.namespace, AdminRoles: []string{"service_role"}, Out: out,
		Log: out}
}

// install must end without a difference.
func (m *moved) install(t testing.TB, change ...func(*mirror.Options)) string {
	t.Helper()
	var out bytes.Buffer
	o := m.options(&out)
	for _, f := range change {
		f(&o)
	}
	if err := mirror.Install(t.Context(), o); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	return out.String()
}

// check must find nothing.
func (m *moved) check(t testing.TB, try bool, change ...func(*mirror.Options)) {
	t.Helper()
	var out bytes.Buffer
	o := m.options(&out)
	for _, f := range change {
		f(&o)
	}
	if err := mirror.Check(t.Context(), o, try, false); err != nil {
		t.Errorf("check: %v\n%s", err, out.String())
	}
}

// exec runs statements as the superuser; {H} is our schema with the namespace.
func (m *moved) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := m.conn.Exec(t.Context(), m.names(sql), args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (m *moved) names(sql string) string {
	return strings.ReplaceAll(sql, "{H}", "gatehouse."+m.namespace)
}

// one reads one value as the superuser.
func one[T any](t testing.TB, m *moved, sql string, args ...any) T {
	t.Helper()
	return testdb.One[T](t, m.admin, m.names(sql), args...)
}

// noon has no fraction that a type there would round.
var noon = time.Now().UTC().Truncate(time.Second)

func newUser(email string) store.User {
	noon := time.Now().UTC().Truncate(time.Microsecond) // after the takeover
	u := store.User{ID: uuid.New(), Aud: "authenticated", Role: "authenticated", Email: email, CreatedAt: noon,
		UpdatedAt: noon, PasswordHash: "$2a$04$secret", AppMetadata: []byte(`{"provider": "email", "providers": ["email"]}`),
		UserMetadata: []byte(`{"name": "Mia"}`), EmailConfirmedAt: noon}
	return u
}

// send runs a batch as the daemon does.
func (m *moved) send(t testing.TB, f func(b *store.Batch)) error {
	t.Helper()
	b := m.db.Batch()
	f(b)
	return b.Send(t.Context())
}

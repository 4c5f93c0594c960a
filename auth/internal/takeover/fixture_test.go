package takeover_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/takeover"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// losses are what the fixture needs to be left out.
var losses = []string{"passwords", "saml", "web3", "webauthn", "oauth"}

// move is a filled source, and our empty tables, in two schemas of one database.
type move struct {
	*formertest.Source
	url       string // of ours
	sourceURL string
	namespace string
}

func newMove(t *testing.T, release formertest.Release) *move {
	t.Helper()
	return moveAt(t, release, time.Now())
}

// moveAt is newMove with rows of a time: two of one time have the same ones.
func moveAt(t *testing.T, release formertest.Release, now time.Time) *move {
	t.Helper()
	url := storetest.URL(t)
	return &move{Source: formertest.Fill(t, url, "auth", release, now), url: url, sourceURL: url}
}

// settings are those of every test.
func settings(testing.TB) takeover.Settings {
	keys, err := former.ParseKeys(formertest.Keys)
	if err != nil {
		panic(err)
	}
	on := map[string]bool{"email": true, "phone": true}
	for _, name := range provider.Names() {
		on[name] = true
	}
	return takeover.Settings{Audience: "authenticated", Role: "authenticated", AdminRoles: []string{"service_role"},
		LinkLife: 24 * time.Hour, OTPLife: time.Hour, Providers: on,
		Root: secret.NewRoot("root secret for the test of derivation"),
		Keys: keys}
}

// output is what a run has written.
type output struct {
	out, log string
	err      error
}

// connect opens our tables and the source; the caller closes both.
func (m *move) connect(t testing.TB) (*store.DB, *former.Source) {
	t.Helper()
	db, err := store.Open(t.Context(), store.Options{URL: m.url,
		Settings: store.Settings{Namespace: m.namespace, MaxConns: 4}, Name: former.ApplicationName})
	must.Succeed(t, err)
	source, err := former.OpenSource(t.Context(), m.sourceURL, m.Schema)
	if err != nil {
		db.Close()
		t.Fatal(err)
	}
	return db, source
}

// atOnce is the dump of other tables in the same schema into which the source is carried in one run.
func (m *move) atOnce(t *testing.T) map[string][]string {
	t.Helper()
	other := &move{Source: m.Source, url: m.url, sourceURL: m.sourceURL, namespace: "other_"}
	other.migrate(t)
	other.must(t, takeover.Last)
	rows := map[string][]string{}
	for name, list := range other.dump(t) {
		rows[strings.TrimPrefix(name, "other_")] = list
	}
	return rows
}

// run is one run of the command, in this process.
func (m *move) run(t *testing.T, mode takeover.Mode, change ...func(*takeover.Options)) output {
	t.Helper()
	db, source := m.connect(t)
	defer db.Close()
	defer source.Close()
	var out, log bytes.Buffer
	o := takeover.Options{Mode: mode, Source: source, DB: db, Settings: settings(t), LeaveOut: losses, Out: &out,
		Log: &log}
	o.Settings.Namespace = m.namespace
	for _, f := range change {
		f(&o)
	}
	err := takeover.Run(t.Context(), o)
	source.Close()
	got := output{out.String(), log.String(), err}
	m.private(t, got)
	return got
}

// must is run, and fails the test when it does.
func (m *move) must(t *testing.T, mode takeover.Mode, change ...func(*takeover.Options)) output {
	t.Helper()
	o := m.run(t, mode, change...)
	if o.err != nil {
		t.Fatalf("%v\n%s\n%s", o.err, o.log, o.out)
	}
	return o
}

// refused is run, which must say that text.
func (m *move) refused(t *testing.T, mode takeover.Mode, want string, change ...func(*takeover.Options)) output {
	t.Helper()
	o := m.run(t, mode, change...)
	text := o.log
	if o.err != nil && !errors.Is(o.err, takeover.ErrRefused) {
		text += o.err.Error() + "\n"
	}
	if o.err == nil || !slices.Contains(strings.Split(text, "\n"), want) {
		t.Errorf("%v\n%s\nwant %s", o.err, text, want)
	}
	return o
}

// private fails the test if anything that was written shows an address, token, key or hash.
func (m *move) private(t *testing.T, o output) {
	t.Helper()
	text := o.out + o.log
	if o.err != nil {
		text += o.err.Error()
	}
	for _, secret := range m.Private() {
		if secret != "password" && strings.Contains(text, secret) { // which is one of the fixture's
			t.Errorf("the output shows %q:\n%s", secret, text)
		}
	}
}

func (m *move) there(t *testing.T, sql string, args ...any) {
	t.Helper()
	formertest.Exec(t, m.sourceURL, sql, args...)
}

// dump is every row of our tables, without what is random or of the run's time.
func (m *move) dump(t testing.TB) map[string][]string {
	t.Helper()
	return dump(t, m.url, map[string]string{
		m.namespace + "users": "", m.namespace + "identities": "", m.namespace + "sessions": "",
		m.namespace + "former_tokens": "",
		m.namespace + "factors":       "secret", m.namespace + "one_time_tokens": "id expires_at",
		m.namespace + "flows": "", m.namespace + "webauthn_credentials": "",
		m.namespace + "challenges": "", m.namespace + "outbox": "", m.namespace + "limits": "",
	})
}

// dump reads tables, but for some columns.
func dump(t testing.TB, url string, tables map[string]string) map[string][]string {
	t.Helper()
	ctx := context.Background()
	c, err := pgx.Connect(ctx, url)
	must.Succeed(t, err)
	defer c.Close(ctx)
	all := map[string][]string{}
	for name, without := range tables {
		rows, err := c.Query(ctx, fmt.Sprintf("select (to_jsonb(t) - $1::text[])::text from %s t", name),
			strings.Fields(without))
		must.Succeed(t, err)
		list, err := pgx.CollectRows(rows, pgx.RowTo[string])
		must.Succeed(t, err)
		slices.Sort(list)
		all[name] = list
	}
	return all
}

// same compares dumps, and shows a few differences of each table.
func same(t *testing.T, got, want map[string][]string) {
	t.Helper()
	for name := range want {
		a, b := masked(got[name]), masked(want[name])
		shown := 0
		show := func(what string, rows, others []string) {
			for _, row := range rows {
				if !slices.Contains(others, row) && shown < 3 {
					shown++
					t.Errorf("%s: %s: %.1500s", name, what, row)
				}
			}
		}
		show("not expected", a, b)
		show("missing", b, a)
		if len(a) != len(b) {
			t.Errorf("%s: %d rows, want %d", name, len(a), len(b))
		}
	}
}

var salted = regexp.MustCompile(`\$2a\$04\$[./A-Za-z0-9]{53}`)

// masked are rows without what differs between two runs, or two fixtures: the start of the takeover, which stands in
// for times that are null there, and salts.
func masked(rows []string) (out []string) {
	now := time.Now().UTC()
	hours := now.Format("2006-01-02T15") + "|" + now.Add(-time.Hour).Format("2006-01-02T15")
	begun := regexp.MustCompile(`"(created_at|updated_at|refreshed_at)": "(` + hours + `):[0-9:]+\.[0-9]+\+00:00"`)
	for _, r := range rows {
		out = append(out, begun.ReplaceAllString(salted.ReplaceAllString(r, "bcrypt"), `"$1": "begun"`))
	}
	return out
}

// migrate makes our tables, where the template hasn't.
func (m *move) migrate(t *testing.T) {
	t.Helper()
	db, err := store.Open(t.Context(),
		store.Options{URL: m.url, Settings: store.Settings{Namespace: m.namespace, MaxConns: 1}})
	must.Succeed(t, err)
	defer db.Close()
	must.Succeed(t, must.ErrOf(db.Migrate(t.Context())))
}

// awaitDisconnected waits until no program is connected to the database.
func (m *move) awaitDisconnected(t testing.TB) {
	t.Helper()
	await.True(t, "the end of all connections", func() bool {
		return testdb.One[int](t, m.url, `select count(*) from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'`) == 0
	})
}

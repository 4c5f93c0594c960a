package takeover_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/takeover"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// change is one in the tables there after a first run, and what has to be here after the last.
type change struct {
	name, sql string
	// here has one row with true when the change has come.
	here string
}

// Every kind of change there comes with the last run, and the end is that of a takeover that began after them.
func TestAhead_changes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		kept int
	}{{"kept", 0}, {"read again", 3}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m := newMove(t, formertest.Newest)
			small := func(o *takeover.Options) { o.Hooks.Kept = test.kept; o.Hooks.Rows = 20 }
			leaveAll := func(o *takeover.Options) { o.LeaveOut = append(slices.Clone(losses), "duplicates") }
			winner, loser := m.User(9), m.User(8) // two numbers that are one but for the plus
			m.there(t, `update auth.users set phone = '+' || (select phone from auth.users where id = $1), last_sign_in_at = '2020-01-01' where id = $2`,
				winner.ID, loser.ID)
			o := m.must(t, takeover.Ahead, small, leaveAll)
			if !strings.Contains(o.out, "duplicates 1") || !strings.Contains(o.out, "open since ") {
				t.Error(o.out)
			}

			// A transaction that began before the first run and writes after it.
			ctx := context.Background()
			late, err := pgx.Connect(ctx, m.sourceURL)
			must.Succeed(t, err)
			defer late.Close(ctx)
			m.must(t, takeover.Ahead, small, leaveAll, func(o *takeover.Options) {
				begun := false
				o.Hooks.Batch = func(step string) {
					if !begun {
						begun = true
						execOn(t, late, `begin; create temporary table xid_taken (n int)`)
					}
				}
			})
			newest := m.User(3).Sessions[0]
			execOn(t, late, fmt.Sprintf(`update auth.refresh_tokens set revoked = true where session_id = '%[1]s';
				insert into auth.refresh_tokens (token, user_id, revoked, created_at, updated_at, session_id, parent)
				values ('latetransact', '%[2]s', false, now(), now(), '%[1]s', '%[3]s'); commit`, newest.ID, m.User(3).ID, newest.Token))

			id := func(kind int) uuid.UUID { return m.User(kind).ID }
			root := settings(t).Root
			secretOf := func(text string) string {
				token, ok := former.ParseToken(text)
				if !ok {
					t.Fatal(text)
				}
				sum := token.SecretHash(root)
				return fmt.Sprintf(`'\x%x'`, sum)
			}
			changes := []change{
				{"insert", `insert into auth.users (id, aud, role, email, email_confirmed_at, created_at, updated_at, raw_app_meta_data, raw_user_meta_data)
					values ('00000000-0000-4000-8000-0000000000aa', 'authenticated', 'authenticated', 'New.One@example.org', now(), now(), now(), '{}', '{}');
					insert into auth.identities (provider_id, user_id, identity_data, provider) values ('4712', '00000000-0000-4000-8000-0000000000aa', '{"email": "x@example.org"}', 'github')`,
					`select count(*) = 1 from users u join identities i on i.user_id = u.id where u.email = 'new.one@example.org' and i.email = ''`},
				{"update without updated_at",
					`update auth.users set raw_user_meta_data = '{"by": "sql"}' where id = '` + id(1).String() + `'`,
					`select user_metadata = '{"by": "sql"}' from users where id = '` + id(1).String() + `'`},
				{"addresses swapped", fmt.Sprintf(`update auth.users set email = 'away' where id = '%[1]s'; update auth.users set email = '%[4]s' where id = '%[2]s';
					update auth.users set email = '%[3]s' where id = '%[1]s'`, id(2), id(4), m.User(4).Email, m.User(2).Email),
					fmt.Sprintf(`select (select email from users where id = '%s') = '%s' and (select email from users where id = '%s') = '%s'`, id(2),
						m.User(4).Email, id(4), m.User(2).Email)},
				{"hard delete", `delete from auth.users where id = '` + id(27).String() + `'`,
					`select not exists (select from users where id = '` + id(27).String() +
						`') and not exists (select from sessions where user_id = '` + id(27).String() + `')`},
				{"winner deleted", `delete from auth.users where id = '` + winner.ID.String() + `'`,
					fmt.Sprintf(`select count(*) = 1 from users u join sessions s on s.user_id = u.id join identities i on i.user_id = u.id
						where u.id = '%s' and u.phone = '%s'`, loser.ID, winner.Phone)},
				{"identity moved",
					fmt.Sprintf(
						`update auth.identities set user_id = '%s' where provider = 'github' and user_id = '%s'`,
						id(15), id(28)),
					fmt.Sprintf(`select count(*) = 1 from identities where provider = 'github' and user_id = '%s'`,
						id(15))},
				{"refreshed", fmt.Sprintf(`update auth.refresh_tokens set revoked = true where session_id = '%[1]s'; insert into auth.refresh_tokens (token, user_id, revoked, created_at, updated_at, session_id)
					values ('refreshedone', '%[2]s', false, now(), now(), '%[1]s')`, m.User(1).Sessions[0].ID, id(1)),
					fmt.Sprintf(`select secret_hash = %s from sessions where id = '%s'`, secretOf("refreshedone"),
						m.User(1).Sessions[0].ID)},
				{"refreshed, version 2",
					fmt.Sprintf(`update auth.sessions set refresh_token_counter = 301 where id = '%s'`,
						m.User(39).Sessions[0].ID),
					fmt.Sprintf(`select secret_hash = %s from sessions where id = '%s'`,
						secretOf(m.User(39).Sessions[0].Dead[1]), m.User(39).Sessions[0].ID)},
				{"token revoked", fmt.Sprintf(`update auth.refresh_tokens set revoked = true where session_id = '%s'`,
					m.User(2).Sessions[0].ID),
					fmt.Sprintf(`select not exists (select from sessions where id = '%s')`, m.User(2).Sessions[0].ID)},
				{"signed out", fmt.Sprintf(`delete from auth.sessions where id = '%s'`, m.User(2).Sessions[1].ID),
					fmt.Sprintf(`select not exists (select from sessions where id = '%s')`, m.User(2).Sessions[1].ID)},
				{"token of a late transaction", `select 1`,
					fmt.Sprintf(`select secret_hash = %s from sessions where id = '%s'`, secretOf("latetransact"),
						newest.ID)},
				{"method added", fmt.Sprintf(
					`insert into auth.mfa_amr_claims values (gen_random_uuid(), '%s', now(), '2030-01-01', 'otp')`,
					m.User(22).Sessions[0].ID),
					fmt.Sprintf(
						`select amr->0 = '{"method": "otp", "timestamp": 1893456000}' from sessions where id = '%s'`,
						m.User(22).Sessions[0].ID)},
				{"factor verified", fmt.Sprintf(`update auth.mfa_factors set status = 'verified' where id = '%s'`,
					m.User(12).Factors[1].ID),
					fmt.Sprintf(`select count(*) = 2 from factors where user_id = '%s'`, id(12))},
				{"factor renamed", fmt.Sprintf(`update auth.mfa_factors set friendly_name = 'x' where id = '%s'`,
					m.User(14).Factors[0].ID),
					fmt.Sprintf(`select array_agg(friendly_name order by friendly_name) = '{"",x}' from factors where user_id = '%s'`, id(14))},
				{"signed up and gone", `delete from auth.users where id = '` + id(6).String() + `'`,
					`select not exists (select from users where id = '` + id(6).String() + `')`},
				{"confirmed", `update auth.users set email_confirmed_at = now() where id = '` + id(5).String() + `'`,
					`select password_hash <> '' and not exists (select from one_time_tokens where user_id = u.id) from users u where id = '` + id(5).String() + `'`},
			}
			for _, c := range changes {
				m.there(t, c.sql)
			}
			o = m.must(t, takeover.DryRun, small)
			if !strings.Contains(o.out, "changed since ") ||
				!strings.Contains(o.out, "; the last run will take about ") {
				t.Errorf("the dry run tells no outlook:\n%s", o.out)
			}
			o = m.must(t, takeover.Last, small)
			for _, c := range changes {
				if !testdb.One[bool](t, m.url, c.here) {
					t.Errorf("%s did not come\n%s", c.name, o.out)
				}
			}
			same(t, m.dump(t), m.atOnce(t))
		})
	}
}

// An address that changes hands while the first run is under way is left for the next, and is there after it.
func TestAhead_addressChangesHands(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	var ids []uuid.UUID // in the order in which they are read
	for _, u := range m.Users {
		if u.Email != "" && u.Kind != 31 && u.Kind != 33 {
			ids = append(ids, u.ID)
		}
	}
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return strings.Compare(a.String(), b.String()) })
	first, last := ids[0], ids[len(ids)-1]
	email := testdb.One[string](t, m.sourceURL, "select email from auth.users where id = $1", first)
	moved := false
	o := m.must(t, takeover.Ahead, func(o *takeover.Options) {
		o.Hooks.Rows = 10
		o.Hooks.Batch = func(step string) {
			if step == "users" && !moved { // the first is here already
				moved = true
				m.there(t, "update auth.users set email = 'moved@example.org' where id = $1", first)
				m.there(t, "update auth.users set email = $1 where id = $2", email, last)
			}
		}
	})
	if !strings.Contains(o.out, "left for the next run 1") ||
		testdb.One[int](t, m.url, "select count(*) from users where id = $1", last) != 0 {
		t.Errorf("the second holder of the address was not left:\n%s", o.out)
	}
	m.must(t, takeover.Last)
	if got := testdb.One[string](t, m.url, "select email from users where id = $1", last); got != email {
		t.Errorf("the address is %s, want %s", got, email)
	}
}

func execOn(t *testing.T, c *pgx.Conn, sql string) {
	t.Helper()
	must.Succeed(t, must.ErrOf(c.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol)))
}

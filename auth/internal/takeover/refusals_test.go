package takeover_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/takeover"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

func nothingLeftOut(o *takeover.Options) { o.LeaveOut = nil }

// What is in the tables there that is not carried is refused by kind, all of it at once, and each kind can be accepted.
func TestRefusals_contents(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	ann, odd := m.User(1), m.User(46)
	m.there(t, `insert into auth.users (id, instance_id, email) values (gen_random_uuid(), gen_random_uuid(), 'instance@example.org')`)
	m.there(t, `insert into auth.users (id, email, last_sign_in_at) values ('00000000-0000-4000-8000-000000000001', 'ANN1@example.org', '2020-01-01')`)
	m.there(t, `update auth.mfa_factors set web_authn_credential = '{"id": "AAAA"}' where factor_type = 'webauthn'`)
	m.there(t, `insert into auth.webauthn_credentials (id, user_id, credential_id, public_key)
		values ('00000000-0000-4000-8000-000000000002', $1, 'id', 'no key')`, ann.ID)
	securityKey := testdb.One[uuid.UUID](t, m.url, "select id from auth.mfa_factors where factor_type = 'webauthn'")
	want := []string{
		"2 users have is_super_admin",
		"1 security keys are of a form that is not read here (first factor " + securityKey.String() +
			"): their owners would fall back to one factor",
		"1 passkeys are of a form that is not read here (first 00000000-0000-4000-8000-000000000002)",
		"1 passwords are in a form or of a cost that is not read here (first user " + odd.ID.String() + ")",
		"1 users belong to other instances",
		"1 addresses stand twice when written in lower case: " + ann.ID.String() +
			" 00000000-0000-4000-8000-000000000001",
		"1 users sign in by SAML only",
		"1 users sign in by a wallet only",
		"1 sessions of 1 OAuth clients",
	}
	kinds := []string{"", "webauthn", "passkeys", "passwords", "instances", "duplicates", "saml", "web3", "oauth"}
	for i, kind := range kinds[1:] {
		want[i+1] += "; -leave-out " + kind + " accepts that"
	}
	m.there(t, `update auth.users set is_super_admin = true, role = 'service_role' where id = $1`, ann.ID)
	for _, mode := range []takeover.Mode{takeover.DryRun, takeover.Ahead, takeover.Last} {
		o := m.run(t, mode, nothingLeftOut)
		lines := strings.Split(strings.TrimSpace(o.log), "\n")
		if !errors.Is(o.err, takeover.ErrRefused) || o.out != "" {
			t.Errorf("%v %s", o.err, o.out)
		}
		var refusals []string
		for _, line := range lines {
			if strings.HasPrefix(line, "takeover: warning: ") {
				continue
			}
			refusals = append(refusals, strings.TrimPrefix(line, "takeover: "))
		}
		if !slices.Equal(refusals, want[1:]) {
			t.Errorf("mode %d:\n%s\nwant\n%s", mode, o.log, strings.Join(want[1:], "\n"))
		}
		if text := "takeover: warning: 2 users have is_super_admin, which means nothing here; 1 users have a role of " +
			"AUTH_JWT_ADMIN_ROLES"; !slices.Contains(lines, text) {
			t.Errorf("mode %d: no warning of administrators:\n%s", mode, o.log)
		}
	}
	for i, kind := range kinds {
		if i == 0 {
			continue
		}
		o := m.run(t, takeover.DryRun, func(o *takeover.Options) { o.LeaveOut = []string{kind} })
		if strings.Contains(o.log, "takeover: "+want[i]) || strings.Count(o.log, "\ntakeover: ") < len(want)-3 {
			t.Errorf("-leave-out %s:\n%s", kind, o.log)
		}
	}
	o := m.must(t, takeover.Last, func(o *takeover.Options) { o.LeaveOut = takeover.Kinds })
	for _, text := range []string{"saml 1", "instances 1", "duplicates 1", "passwords 1", "web3 1", "webauthn 1",
		"passkeys 1", "oauth 1"} {
		if !strings.Contains(o.out, text) {
			t.Errorf("the report lacks %s:\n%s", text, o.out)
		}
	}
	if n := testdb.One[int](t, m.url, "select count(*) from users where email = 'ann1@example.org' and id = $1",
		ann.ID); n != 1 {
		t.Error("the one who signed in last did not come")
	}
	m.refused(t, takeover.Last, "takeover: the takeover from "+testdb.One[string](t, m.url, "select source from moves")+
		" was closed at "+
		testdb.One[time.Time](t, m.url, "select closed_at from moves").UTC().Format(time.RFC3339))
	row := testdb.One[string](t, m.url, "select traits::text || ' ' || actor_role from audit where actor_id is null")
	if want := fmt.Sprintf(
		`{"users": %d, "sessions": %d} auth takeover`, testdb.One[int](t, m.url, "select count(*) from users"),
		testdb.One[int](t, m.url, "select count(*) from sessions")); row != want {
		t.Errorf("audited as %s, want %s", row, want)
	}
}

// Providers that are off, and the names of custom ones, are warned of.
func TestWarnings_providers(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	identity := func(provider string) {
		m.there(t,
			`insert into auth.identities (provider_id, user_id, identity_data, provider) values ($1, $2, '{}', $3)`,
			provider, m.User(1).ID, provider)
	}
	for _, name := range []string{"custom:Acme-Corp", "custom:on", "custom:github", "custom:a-b", "custom:a:b",
		"kakao"} {
		identity(name)
	}
	o := m.must(t, takeover.Last, func(o *takeover.Options) {
		o.Settings.Providers["github"] = false
		o.Settings.Free = map[string]bool{"on": true}
	})
	for _, want := range []string{
		"1 identities of provider custom:Acme-Corp, which is off here: nobody signs in with them until " +
			"AUTH_EXTERNAL_OIDC_ACME_CORP_ISSUER is on",
		"1 identities of provider custom:github, which is off here: nobody signs in with them until it is on",
		"1 identities of provider custom:a-b, which is off here: nobody signs in with them until it is on",
		"1 identities of provider kakao, which is off here: nobody signs in with them until it is on",
		"1 identities of provider github, which is off here: nobody signs in with them until it is on",
	} {
		if !strings.Contains(o.log, "takeover: warning: "+want+"\n") ||
			!strings.Contains(o.out, "\nwarning: "+want+"\n") {
			t.Errorf("no warning %s:\n%s", want, o.log)
		}
	}
	if strings.Contains(o.log, "custom:on") || strings.Contains(o.log, "linkedin") {
		t.Errorf("providers that are on are warned of:\n%s", o.log)
	}
	for there, here := range map[string]string{"custom:Acme-Corp": "acme_corp", "custom:on": "on",
		"custom:github": "custom:github", "custom:a-b": "custom:a-b"} {
		if got := testdb.One[string](t, m.url, "select provider from identities where provider_id = $1", there); got != here {
			t.Errorf("%s is %s here, want %s", there, got, here)
		}
	}
}

// Columns that are encrypted need their key, and the right one.
func TestRefusals_encrypted(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	m.refused(t, takeover.DryRun, `takeover: 1 passwords, 1 authenticator keys and 1 session keys are encrypted under key "k1", which AUTH_SECURITY_DB_ENCRYPTION_DECRYPTION_KEYS does not have`,
		func(o *takeover.Options) { o.Settings.Keys = former.Keys{} })
	o := m.refused(t, takeover.DryRun, `takeover: key "k1" does not open user `+m.User(36).ID.String()+
		`'s password (and 2 more)`,
		func(o *takeover.Options) { o.Settings.Keys = former.Keys{"k1": make([]byte, 32)} })
	if strings.Contains(o.log, "does not have") {
		t.Error(o.log)
	}
	// A key that is none, and a factor's that can't be read, are left out.
	m.there(t, `update auth.sessions set refresh_token_hmac_key = $1 where id = $2`,
		formertest.Encrypt("no key", m.User(37).Sessions[0].ID), m.User(37).Sessions[0].ID)
	m.there(t, `update auth.mfa_factors set secret = '' where id = $1`, m.User(12).Factors[0].ID)
	o = m.must(t, takeover.Last)
	if !strings.Contains(o.out, "without a live token 1") || !strings.Contains(o.out, "unreadable 1") ||
		!strings.Contains(o.log, "takeover: warning: 1 authenticators have no key that can be read, and are left out: "+
			m.User(12).Factors[0].ID.String()+"\n") {
		t.Errorf("%s\n%s", o.log, o.out)
	}
}

// What is wrong with the schema there, or with ours.
func TestRefusals_schemas(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	empty := &move{Source: &formertest.Source{URL: url, Schema: "nowhere"}, url: url, sourceURL: url}
	empty.refused(t, takeover.Last, `takeover: schema "nowhere" does not hold the tables of the replaced service (looked for users.raw_app_meta_data, identities, sessions, refresh_tokens)`)

	m := newMove(t, formertest.Newest)
	m.there(t, `delete from auth.schema_migrations where version > '2024'`)
	m.refused(t, takeover.Last, `takeover: schema "auth" is at version 20210101000000, and 20240427152123 or newer is needed: start a newer release of the replaced service on it once`)

	m = newMove(t, formertest.Newest)
	o := m.must(t, takeover.DryRun)
	if strings.Contains(o.log, "none of the replaced service's") {
		t.Errorf("nothing is left alone that is not known:\n%s", o.log)
	}
	m.there(t, `alter table auth.users add column shoe_size int; alter table auth.sessions add column mood text;
		create table auth.pets as select 1 as n union select 2;
		alter table auth.pets add owner uuid constraint pets_owner references auth.users; create table auth.toys (n int);
		create table auth.saml_providers as select 1 as n;
		create table auth.webauthn_challenges as select 1 as n`)
	o = m.must(t, takeover.DryRun)
	for _, want := range []string{`schema "auth" has what is none of the replaced service's: left alone are ` +
		`the columns sessions.mood, users.shoe_size, the tables pets (2 rows, key pets_owner on users)`,
		`left alone are 1 OAuth clients and their 1 sessions`} {
		if !strings.Contains(o.log, "takeover: warning: "+want+"\n") {
			t.Errorf("%s\nwant %s", o.log, want)
		}
	}
	m.there(t, `insert into auth.schema_migrations values ('20270101000000')`)
	o = m.must(t, takeover.DryRun)
	if want := `takeover: warning: schema "auth" is newer (20270101000000) than this program knows: left alone are the columns sessions.mood, users.shoe_size, the tables pets (2 rows, key pets_owner on users)` + "\n"; !strings.Contains(o.log, want) {
		t.Errorf("%s\nwant %s", o.log, want)
	}

	// Users of ours.
	m = newMove(t, formertest.Newest)
	formertest.Exec(t, m.url, `insert into users (id, aud, role, email, created_at, updated_at) values (gen_random_uuid(), 'a', 'a', 'mine@example.org', now(), now())`)
	m.refused(t, takeover.Last, "takeover: this service has 1 users already: a takeover needs empty tables")
	formertest.Exec(t, m.url, `delete from users`)

	// A takeover from elsewhere.
	formertest.Exec(t, m.url, `insert into moves (id, kind, source, source_mark, state, started_at) values (gen_random_uuid(), 'takeover', 'elsewhere:5432/app auth', 'x', 'open', '2031-03-04 12:00Z')`)
	m.refused(t, takeover.Last,
		"takeover: a takeover from elsewhere:5432/app auth is open since 2031-03-04T12:00:00Z: auth takeover "+
			"-abandon empties the tables")
	m.must(t, takeover.Abandon)

	// Migrations that are pending.
	m.namespace = "fresh_"
	files, err := filepath.Glob("../../../migrations/*.sql")
	must.Succeed(t, err)
	m.refused(t, takeover.Last,
		fmt.Sprintf("takeover: the database lacks %d migrations: auth migrate applies them", len(files)))
}

// Ours would be the tables there.
func TestRefusals_sameSchema(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t)
	m := &move{Source: formertest.Fill(t, url, "auth", formertest.Newest, time.Now()), url: url + "&search_path=auth",
		sourceURL: url}
	m.refused(t, takeover.Last, `takeover: schema "auth" holds the tables of the service that this one replaces; they are neither read nor changed. Give this program a schema of its own (create schema gatehouse authorization postgres; search_path=gatehouse in DATABASE_URL) and carry the users over: auth takeover -from auth`)
	m.namespace = "gh_" // both may share a schema then
	m.migrate(t)
	m.must(t, takeover.Last)
	if got, there := testdb.One[int](t, url, "select count(*) from auth.gh_users"),
		testdb.One[int](t, url, "select count(*) from auth.users where not is_sso_user"); got != there {
		t.Errorf("%d users, want %d", got, there)
	}
}

// Rights on our own tables that are missing are told in words, with the statement that gives them.
func TestRefusals_rightsHere(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	role := "writer_" + testdb.One[string](t, m.url, "select current_database()")
	admin := m.url
	m.there(t, fmt.Sprintf(`create role %[1]s login; create schema gatehouse`, role))
	m.url = inSchema(admin, "gatehouse")
	m.migrate(t)
	m.url = strings.Replace(m.url, "postgres@", role+"@", 1)
	refused := func(want string) {
		t.Helper()
		for _, mode := range []takeover.Mode{takeover.Ahead, takeover.DryRun} {
			m.refused(t, mode, "takeover: "+strings.ReplaceAll(want, "ROLE", role))
		}
	}
	refused(`role ROLE lacks USAGE on schema gatehouse: grant usage on schema gatehouse to ROLE;`)
	formertest.Exec(t, admin, `grant usage on schema gatehouse to `+role)
	refused(`role ROLE lacks SELECT on table users: grant select on gatehouse.users to ROLE;`)
	formertest.Exec(t, admin, `grant select, insert, update, delete on all tables in schema gatehouse to `+role)
	m.must(t, takeover.DryRun)
}

func inSchema(url, schema string) string {
	sep := "?"
	if strings.Contains(url, "?") {
		sep = "&"
	}
	return url + sep + "search_path=" + schema
}

// Rights and row-level security.
func TestRefusals_rights(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	role := "reader_" + testdb.One[string](t, m.url, "select current_database()")
	m.there(t, fmt.Sprintf(`create role %[1]s login; grant usage on schema auth to %[1]s; grant select on all tables in schema auth to %[1]s;
		revoke select on auth.mfa_factors from %[1]s`, role))
	m.sourceURL = strings.Replace(m.url, "postgres@", role+"@", 1)
	m.refused(t, takeover.Ahead,
		fmt.Sprintf("takeover: role %[1]s may not read auth.mfa_factors: grant usage on schema auth to %[1]s; grant "+
			"select on all tables in schema auth to %[1]s;", role))
	m.refused(t, takeover.Ahead,
		fmt.Sprintf("takeover: row-level security hides rows of auth.users from role %s: connect as the tables' "+
			"owner, or as a role with BYPASSRLS", role))
	formertest.Exec(t, m.url, fmt.Sprintf("revoke usage on schema auth from %s", role))
	m.refused(t, takeover.Ahead,
		fmt.Sprintf("takeover: role %[1]s may not read auth.users: grant usage on schema auth to %[1]s; grant select "+
			"on all tables in schema auth to %[1]s;", role))
	formertest.Exec(t, m.url,
		fmt.Sprintf("grant usage on schema auth to %[1]s; grant select on all tables in schema auth to %[1]s; alter "+
			"role %[1]s bypassrls", role))
	m.must(t, takeover.Ahead)
}

// A key of the application on users here stops every run, and -abandon too: its rows would go.
func TestRefusals_foreignKeys(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	m.must(t, takeover.Ahead)
	m.there(t, `create schema app; create table app.profiles (id int primary key, user_id uuid,
		constraint owner foreign key (user_id) references public.users (id) on update cascade on delete cascade);
		insert into app.profiles select 1, id from public.users limit 1`)
	want := `takeover: app.profiles refers to users here already, and its rows would go with users that are deleted here: move the key back first: alter table app.profiles drop constraint owner, add constraint owner foreign key (user_id) references auth.users (id) ON UPDATE CASCADE ON DELETE CASCADE;`
	for _, mode := range []takeover.Mode{takeover.Ahead, takeover.DryRun, takeover.Last, takeover.Abandon} {
		m.refused(t, mode, want)
	}
	if n := testdb.One[int](t, m.url, "select count(*) from app.profiles join users u on u.id = user_id"); n != 1 {
		t.Error("a row of the application is gone")
	}
	_, sql, _ := strings.Cut(want, "first: ")
	m.there(t, sql)
	m.must(t, takeover.Abandon)
	if n := testdb.One[int](t, m.url,
		"select (select count(*) from users) + (select count(*) from moves) + (select count(*) from sessions)"); n !=
		0 {
		t.Errorf("%d rows are left", n)
	}
	if n := testdb.One[int](t, m.url, "select count(*) from app.profiles join auth.users u on u.id = user_id"); n != 1 {
		t.Error("a row of the application is gone")
	}
	m.must(t, takeover.Last)
}

// A floor means nothing in other tables, in those of another time, or after very many transactions.
func TestRefusals_mark(t *testing.T) {
	t.Parallel()
	const want = "takeover: the tables there are not those of the first run: auth takeover -abandon, then begin anew"
	m := newMove(t, formertest.Newest)
	m.must(t, takeover.Ahead)
	for _, sql := range []string{"source_mark = source_mark || '0'", "floor = floor + 2000000000",
		"floor = floor - 1000000001"} {
		before := testdb.One[string](t, m.url, "select source_mark || ' ' || floor from moves")
		formertest.Exec(t, m.url, "update moves set "+sql)
		m.refused(t, takeover.Last, want)
		m.refused(t, takeover.Ahead, want)
		var mark string
		var floor int64
		must.Succeed(t, must.ErrOf(fmt.Sscan(before, &mark, &floor)))
		formertest.Exec(t, m.url, "update moves set source_mark = $1, floor = $2", mark, floor)
	}
	m.must(t, takeover.Last)
}

// Users who signed up here while a takeover is open would be lost, or conflict with carried ones.
func TestRefusals_signups(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	m.must(t, takeover.Ahead)
	m.there(t, "delete from auth.users where id = $1", m.User(6).ID)
	m.must(t, takeover.Ahead)
	formertest.Exec(t, m.url, `insert into users (id, aud, role, email, created_at, updated_at)
		select gen_random_uuid(), 'a', 'a', 'mine' || n || '@example.org', now(), now() from generate_series(1, 2) n`)
	m.refused(t, takeover.Last,
		"takeover: 2 users signed up here while the takeover was open: auth takeover -abandon empties the tables")
	m.must(t, takeover.Abandon)
	m.must(t, takeover.Last)
}

// What is no ordinary table has no transactions to go by: only one run carries it.
func TestRefusals_view(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	m.there(t,
		"alter table auth.mfa_amr_claims rename to claims; create view auth.mfa_amr_claims as select * from "+
			"auth.claims")
	m.refused(t, takeover.Ahead,
		"takeover: auth.mfa_amr_claims is no ordinary table, and does not tell which of its rows have changed: run "+
			"this without -ahead")
	m.must(t, takeover.Last)
}

// A transaction there that is still open, and a service that still writes, keep the takeover open.
func TestRefusals_writers(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	c := testdb.Connect(t, m.sourceURL)
	short := func(o *takeover.Options) { o.Hooks.LockWait = 300 * time.Millisecond }
	execOn(t, c, "begin; update auth.users set updated_at = updated_at where false")
	pid := testdb.One[int](t, m.sourceURL,
		"select pid from pg_stat_activity where state = 'idle in transaction' and datname = current_database()")
	m.refused(t, takeover.Last, fmt.Sprintf("a transaction there is still open (pid %d)", pid), short)
	execOn(t, c, "rollback")
	n := 0
	m.refused(t, takeover.Last, "the service there still writes (2 rows): stop it and run this again",
		func(o *takeover.Options) {
			o.Hooks.Batch = func(step string) {
				if n < 2 {
					n++
					m.there(t, "update auth.users set updated_at = now() where id = $1", m.User(n).ID)
				}
			}
			o.Hooks.Rows = 10
		})
	if state := testdb.One[string](t, m.url, "select state from moves"); state != "open" {
		t.Errorf("the takeover is %s", state)
	}
	o := m.must(t, takeover.Last)
	if want := "takeover: warning: role postgres has 1 connections from this machine to the schema there: is the " +
		"service stopped?\n"; !strings.Contains(o.log, want) {
		t.Errorf("%s\nwant %s", o.log, want)
	}
}

// A run that finds a difference doesn't close: each row is spoilt again after it was written once more.
func TestVerification(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	ann := m.User(1)
	f := func(sql, back, want string) {
		t.Helper()
		done := false
		o := m.run(t, takeover.Last, func(o *takeover.Options) {
			o.Hooks.Batch = func(step string) {
				if done = done || step == "links"; done {
					formertest.Exec(t, m.url, sql)
				}
			}
		})
		if o.err == nil || o.err.Error() != want || testdb.One[string](t, m.url, "select state from moves") != "open" {
			t.Errorf("%s: %v, want %s", sql, o.err, want)
		}
		if back != "" {
			formertest.Exec(t, m.url, back)
		}
	}
	of := func(sql string) string { return strings.ReplaceAll(sql, "ANN", "'"+ann.ID.String()+"'") }
	f(of("update users set role = 'x' where id = ANN"), of("update users set role = 'authenticated' where id = ANN"),
		"user "+ann.ID.String()+": column role differs")
	f(of("update users set user_metadata = '{}' where id = ANN"), "",
		"user "+ann.ID.String()+": column user_metadata differs")
	m.must(t, takeover.Abandon)
	f(of("update sessions set aal = 2 where user_id = ANN"), of("update sessions set aal = 1 where user_id = ANN"),
		"session "+ann.Sessions[0].ID.String()+": column aal differs")
	f(of("update sessions set secret_hash = '\\x00' where user_id = ANN"), "",
		"session "+ann.Sessions[0].ID.String()+": column secret_hash differs")
	m.must(t, takeover.Abandon)
	f(of("delete from former_tokens where session_id = (select id from sessions where user_id = ANN)"), "",
		"session "+ann.Sessions[0].ID.String()+": column token_mac differs")
	m.must(t, takeover.Abandon)
	totp := m.User(12)
	f("update factors set secret = (select secret from factors where user_id <> '"+totp.ID.String()+
		"' and kind = 'totp' limit 1) where user_id = '"+totp.ID.String()+"'", "",
		"user "+totp.ID.String()+": column secret of factor "+totp.Factors[0].ID.String()+" differs")
	m.must(t, takeover.Abandon)
	f(of("delete from users where id = ANN"), "", "user "+ann.ID.String()+": it is missing here")
	m.must(t, takeover.Last) // the next merge of ids brings it
}

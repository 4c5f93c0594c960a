package store_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// On large tables no statement of a request reads one from end to end. The exceptions are lists with
// filters, and what the sweeper does.
func TestStatements_plans(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := storetest.Open(t)
	fill := []string{
		`insert into users (id, aud, role, email, created_at, updated_at)
			select gen_random_uuid(), 'authenticated', 'authenticated', 'u' || n || '@example.org', now() + n * interval '1 s', now() from generate_series(1, 20000) n`,
		`insert into identities (id, user_id, provider, provider_id, email, identity_data, created_at, updated_at)
			select gen_random_uuid(), id, 'email', id::text, email, '{}', now(), now() from users`,
		`insert into sessions (id, user_id, created_at, secret_hash, refreshed_at, amr)
			select gen_random_uuid(), id, now(), '', now(), '[]' from users`,
		`insert into one_time_tokens (id, user_id, kind, address, link_hash, created_at, expires_at)
			select gen_random_uuid(), id, 'signup', email, sha256(id::text::bytea), now(), now() from users`,
		`insert into flows (id, user_id, method, challenge, challenge_method, code_hash, created_at, expires_at)
			select gen_random_uuid(), id, 'recovery', '', 'plain', sha256(id::text::bytea), now(), now() from users`,
		`insert into outbox (id, channel, kind, user_id, due_at, expires_at, created_at, state)
			select gen_random_uuid(), 'email', 'recovery', id, now(), now(), now(), case when random() < 0.01 then 'pending' else 'sent' end from users`,
		`insert into audit (at, action) select now(), 1 from users`,
		`insert into limits (key, tokens, at, full_at) select sha256(id::text::bytea), 0, now(), now() from users`,
		`insert into external_states (state_hash, provider, aud, redirect_to, created_at, expires_at)
			select sha256(id::text::bytea), 'github', 'authenticated', '', now(), now() from users`,
		`insert into spent_id_tokens (key, expires_at) select sha256(id::text::bytea), now() from users`,
		`insert into factors (id, user_id, kind, created_at, updated_at) select gen_random_uuid(), id, 'totp', now(), now() from users`,
		`insert into known_places (user_id, place, seen_at) select id, sha256(id::text::bytea), now() from users`,
		`insert into challenges (id, factor_id, created_at, expires_at) select gen_random_uuid(), id, now(), now() from factors`,
		`insert into webauthn_credentials (id, user_id, credential_id, public_key, backup_eligible, backed_up, created_at)
			select gen_random_uuid(), id, sha256(id::text::bytea), '', false, false, now() from users`,
		`insert into spent_challenges select id from users`,
		`insert into recovery_codes (factor_id, mac) select id, '' from factors`,
		`insert into former_tokens (token_mac, session_id) select sha256(id::text::bytea), id from sessions`,
		`analyze`,
		`set plan_cache_mode = force_generic_plan`,
	}
	mayScan := regexp.MustCompile(`count\(\*\)|ilike|full_at <|skip locked|order by o.created_at desc, o.id|has_table_privilege|from signing_keys|join signing_keys|update signing_keys|delete from signing_keys`)
	// A takeover runs once, reads what it has carried whole, and keeps its progress in a table of one row.
	ofTakeover := regexp.MustCompile(`\bmoves\b|order by random\(\)|\bcarried_|\) r \(id, owner\)|^update sessions s set factor_id = null|^delete from flows$|^delete from one_time_tokens where link_hash is not null$`)
	err := db.With(ctx, func(c *pgx.Conn) error {
		for _, sql := range fill {
			if _, err := c.Exec(ctx, sql); err != nil {
				return fmt.Errorf("%s: %w", sql, err)
			}
		}
		for i, sql := range db.Texts() {
			if strings.HasPrefix(sql, "lock ") || mayScan.MatchString(sql) || ofTakeover.MatchString(sql) {
				continue
			}
			name := fmt.Sprintf("plan%d", i)
			d, err := c.Prepare(ctx, name, sql)
			if err != nil {
				return err
			}
			nulls := ""
			if n := len(d.ParamOIDs); n > 0 {
				nulls = "(" + strings.TrimSuffix(strings.Repeat("null,", n), ",") + ")"
			}
			rows, err := c.Query(ctx, "explain execute "+name+nulls, pgx.QueryExecModeSimpleProtocol)
			if err != nil {
				return err
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				return err
			}
			plan := strings.Join(lines, "\n")
			for _, scan := range regexp.MustCompile(`Seq Scan on (\w+)`).FindAllStringSubmatch(plan, -1) {
				if !strings.HasPrefix(scan[1], "pg_") { // the catalogue's are small
					t.Errorf("%s is read whole by\n%s\n%s", scan[1], sql, plan)
				}
			}
		}
		return nil
	})
	must.Succeed(t, err)
}

func TestMissingRights(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := testdb.PrivatePostgres(t, localserver.PostgresOptions{})
	super := open(t, server.PostgresURL("postgres"), "x_")
	must.Succeed(t, must.ErrOf(super.Migrate(ctx)))
	exec := func(sql string) {
		t.Helper()
		must.Succeed(t, super.With(ctx, func(c *pgx.Conn) error { _, err := c.Exec(ctx, sql); return err }))
	}
	exec("create role plain login; revoke create on schema public from public") // as PostgreSQL 14 grants it
	plain := func(ns string) *store.DB {
		t.Helper()
		return open(t, "user=plain dbname=postgres host="+server.Dir(), ns)
	}
	as := func(ns string, want ...string) {
		t.Helper()
		db := plain(ns)
		serving, migrating, err := db.MissingRights(ctx)
		must.Succeed(t, err)
		got := slices.Concat([]string{"missing:"}, serving, []string{"for migrations:"}, migrating)
		text := strings.Join(got, "\n")
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%q is not among\n%s", w, text)
			}
		}
		if len(want) == 0 && len(got) > 2 {
			t.Errorf("missing: %s", text)
		}
	}
	as("x_", "SELECT on table x_users\n", "DELETE on table x_audit\n", "for migrations:\nCREATE on schema public\n",
		"ownership of table x_sessions")
	as("y_", "CREATE on schema public")
	// A database user that may only read and write rows serves a schema that another one has migrated.
	exec("grant select, insert, update, delete on all tables in schema public to plain")
	as("x_", "missing:\nfor migrations:\nCREATE on schema public\nownership of table")
	if n, err := plain("x_").Migrate(ctx); n != 0 || err != nil {
		t.Errorf("%d migrations, %v", n, err)
	}
	if _, err := plain("y_").Migrate(ctx); err == nil || !strings.Contains(err.Error(), "auth check names what") {
		t.Errorf("tables were made without the right to: %v", err)
	}
	exec("grant all on schema public to plain")
	as("y_")
	exec("create database latin encoding LATIN1 lc_collate 'C' lc_ctype 'C' template template0")
	latin := open(t, "user=plain dbname=latin host="+server.Dir()+" search_path=nowhere", "x_")
	want := []string{"the encoding UTF8 in database latin", "a schema on the search_path"}
	if serving, _, err := latin.MissingRights(ctx); err != nil || !slices.Equal(serving, want) {
		t.Errorf("missing: %q, %v", serving, err)
	}
	if _, err := latin.Migrate(ctx); err == nil || strings.Count(err.Error(), "auth check names what") != 1 {
		t.Errorf("migrated without a schema: %v", err)
	}
	exec("alter role plain set default_transaction_read_only = on")
	as("y_", "a server that takes writes")
	if serving, migrating, err := super.MissingRights(ctx); len(serving)+len(migrating) > 0 || err != nil {
		t.Errorf("the superuser misses %v, %v, %v", serving, migrating, err)
	}
}

package storetest

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

// invariant is a rule of docs/accounts.md#invariants. query returns the ids of the users for whom the rule does not
// hold.
type invariant struct{ rule, query string }

var invariants = []invariant{
	{"an anonymous user has no confirmed address", `
		select id from {users}
		where is_anonymous and (email <> '' and email_confirmed_at is not null or phone <> '' and phone_confirmed_at is not null)`},
	{"an unproven address is confirmed", `
		select id from {users}
		where email_unproven and (email = '' or email_confirmed_at is null)
			or phone_unproven and (phone = '' or phone_confirmed_at is null)`},
	{"a confirmed address is there", `
		select id from {users} where deleted_at is null
			and (email = '' and email_confirmed_at is not null or phone = '' and phone_confirmed_at is not null)`},
	{"a confirmed address has an identity", `
		select u.id from {users} u where u.deleted_at is null
			and (u.email <> '' and u.email_confirmed_at is not null and not exists (
				select from {identities} i where i.user_id = u.id and i.provider <> 'phone')
			or u.phone <> '' and u.phone_confirmed_at is not null and not exists (
				select from {identities} i where i.user_id = u.id and i.provider = 'phone'))`},
	{"an identity of the user's own has the user's address", `
		select u.id from {users} u join {identities} i on i.user_id = u.id
		where u.deleted_at is null and (i.provider in ('email', 'phone') and i.provider_id <> u.id::text
			or i.provider = 'email' and i.email <> u.email
			or i.provider = 'phone' and i.identity_data ->> 'phone' is distinct from u.phone)`},
	{"a half-proven change has a new address", `
		select id from {users} where new_email = '' and (current_email_proven or new_email_proven)`},
	{"an erased user has no way in", `
		select u.id from {users} u where u.deleted_at is not null
			and (u.password_hash <> '' or u.new_email <> '' or u.new_phone <> ''
			or exists (select from {sessions} s where s.user_id = u.id and s.ended_at is null)
			or exists (select from {one_time_tokens} t where t.user_id = u.id)
			or exists (select from {flows} f where f.user_id = u.id)
			or exists (select from {factors} f where f.user_id = u.id))`},
	{"a session of aal2 has the method of a factor or a passkey", `
		select user_id from {sessions} s where aal > 1 and ended_at is null and not exists (
			select from jsonb_array_elements(s.amr) m where m ->> 'method' in ('totp', 'passkey') or m ->> 'method' like 'mfa/%')`},
	{"an ended session has a reason, and an aal of 1 or 2", `
		select user_id from {sessions} where (ended_at is null) <> (ended_reason = '') or aal not in (1, 2)`},
	{"a token carries what its kind may carry", `
		select user_id from {one_time_tokens}
		where password_hash <> '' and kind not in ('signup', 'email_change_new', 'phone_change')
			or (user_metadata is not null or contested) and kind <> 'signup'`},
}

// Querier is a connection, or a pool of connections.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Violations returns the rules of docs/accounts.md#invariants that the rows of a database break, each with the id of a
// user for whom it does not hold. namespace is the prefix of the tables' names.
func Violations(ctx context.Context, q Querier, namespace string) ([]string, error) {
	rows, err := q.Query(ctx, violations(namespace)+" order by 1, 2")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (text string, err error) {
		var rule, id string
		err = r.Scan(&rule, &id)
		return fmt.Sprintf("%s: %s", rule, id), err
	})
}

var tableName = regexp.MustCompile(`\{([a-z_]+)\}`)

// violations returns the query that lists each broken rule with the users for whom it does not hold.
func violations(namespace string) string {
	var parts []string
	for _, i := range invariants {
		parts = append(parts, fmt.Sprintf("select '%s' as rule, v.id::text from (%s) v (id)",
			strings.ReplaceAll(i.rule, "'", "''"), i.query))
	}
	return tableName.ReplaceAllString(strings.Join(parts, "\nunion all "), namespace+"$1")
}

// Watched makes every database that this package creates from now on refuse to commit a transaction that has written a
// user and broken a rule for that user. It is called by TestMain. A test that breaks a rule on purpose must set
// session_replication_role to replica before.
func Watched() { watched = true }

var watched bool

// watch creates the triggers that check the rules. They call a function for the query, so that a connection plans the
// query once and not once for each table: planning takes most of the time that the triggers need.
func watch(ctx context.Context, url string) error {
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	sql := "create view violations as " + violations("") + `;
		create function broken(_user text) returns text language plpgsql set plan_cache_mode = force_generic_plan as $$
		begin
			return (select string_agg(rule, '; ') from violations where id = _user);
		end $$;
		create function watch() returns trigger language plpgsql as $$
		declare
			rules text := broken(coalesce(to_jsonb(new), to_jsonb(old)) ->> tg_argv[0]);
		begin
			if rules is not null then
				raise 'invariants: %', rules;
			end if;
			return null;
		end $$;`
	for table, user := range map[string]string{"users": "id", "identities": "user_id", "sessions": "user_id",
		"one_time_tokens": "user_id", "factors": "user_id", "flows": "user_id"} {
		sql += fmt.Sprintf(`
			create constraint trigger watch after insert or update or delete on %s deferrable initially deferred
			for each row execute function watch('%s');`, table, user)
	}
	_, err = c.Exec(ctx, sql)
	return err
}

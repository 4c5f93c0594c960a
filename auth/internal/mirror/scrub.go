package mirror

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"gatehouse/auth/internal/store"
)

// emptied returns the names of the former service's tables from which scrub deletes all rows: tables that hold tokens,
// and the table sessions unless sessions are mirrored.
func (r *run) emptied() []string {
	list := []string{"refresh_tokens", "one_time_tokens", "flow_state", "mfa_challenges", "mfa_amr_claims", "saml_relay_states"}
	if r.sessions {
		return list
	}
	return append(list, "sessions")
}

// blanked lists the former service's columns that hold hashes, secrets and keys, by table. value is the SQL value with
// which Scrub replaces the columns' values. unless is the end of the SQL condition that a column does not have this
// value yet.
var blanked = []struct {
	table, value, unless string
	columns              []string
}{
	{"mfa_factors", "null", "is not null", []string{"secret", "web_authn_credential", "last_webauthn_challenge_data"}},
	{"sessions", "null", "is not null", []string{"refresh_token_hmac_key"}},
	{"users", "''", "<> ''", append([]string{"encrypted_password"}, tokens...)},
	{"webauthn_credentials", "''", "<> ''", []string{"public_key"}},
}

// cleaning is a statement of Scrub. verb is the DELETE or UPDATE without its condition. where is the condition; "" for
// all rows.
type cleaning struct{ verb, table, where string }

// some returns the statement for at most 5000 of the rows. It must be repeated until it changes none.
func (c cleaning) some() string {
	return fmt.Sprintf("%s where ctid = any(array(select ctid from %s%s limit 5000))", c.verb, c.table, c.where)
}

func (r *run) cleanings() (list []cleaning) {
	for _, name := range r.emptied() {
		if len(r.there.Tables[name].Columns) > 0 {
			list = append(list, cleaning{"delete from " + r.theirs(name), r.theirs(name), ""})
		}
	}
	for _, b := range blanked {
		var set, where []string
		for _, column := range slices.Sorted(slices.Values(b.columns)) {
			if r.there.Has(b.table, column) {
				set, where = append(set, column+" = "+b.value), append(where, column+" "+b.unless)
			}
		}
		if len(set) > 0 {
			list = append(list, cleaning{"update " + r.theirs(b.table) + " set " + strings.Join(set, ", "),
				r.theirs(b.table), " where " + strings.Join(where, " or ")})
		}
	}
	return list
}

const selectReferring = `
select distinct format('%s of %s refers to %s, which scrub empties: alter table %s drop constraint %I;', c.conname,
    c.conrelid::regclass, c.confrelid::regclass, c.conrelid::regclass, c.conname)
from pg_constraint c join pg_class t on t.oid = c.conrelid join pg_namespace n on n.oid = t.relnamespace
join pg_class u on u.oid = c.confrelid join pg_namespace s on s.oid = u.relnamespace
where c.contype = 'f' and s.nspname = $1 and u.relname = any($2) and n.nspname <> $1 order by 1`

// Scrub removes hashes, tokens and secrets from the former service's tables. Afterwards the former service can no
// longer be used. It also lists the users of the former service whom our tables lack.
func Scrub(ctx context.Context, o Options) error {
	r, err := openInstalled(ctx, o)
	if err != nil {
		return err
	}
	defer r.close()
	if found, err := r.findWriter(ctx); err != nil {
		return err
	} else if !found {
		r.refuse("the functions of the mirror, whose owner scrub runs as, are missing: auth mirror install makes them again")
		return r.told()
	}
	if r.refusals, err = r.lines(ctx, selectReferring, r.there.Name, r.emptied()); err != nil {
		return err
	}
	if err := r.told(); err != nil {
		return err
	}
	if o.SQL {
		fmt.Fprintln(o.Out, "-- Rows stay locked until the commit: answer 503 meanwhile, or run auth mirror scrub.")
		list := []string{"set local role " + ident(r.writer)}
		for _, c := range r.cleanings() {
			list = append(list, c.verb+c.where)
		}
		r.print(append(list, "set constraints all immediate", "reset role",
			"update "+r.ours("moves")+store.MarkScrubbed)...)
		return nil
	}
	for _, c := range r.cleanings() {
		var all int64
		for n := int64(1); n > 0; all += n {
			if n, err = r.asWriter(ctx, c.some()); err != nil {
				return err
			}
		}
		fmt.Fprintf(o.Out, "%d rows: %s\n", all, c.verb)
	}
	left, err := r.lines(ctx, fmt.Sprintf("select o.id::text from %s o where not exists (select from %s() u where u.id = o.id) order by 1",
		r.theirs("users"), ident(r.here, r.ns+"mirror_users")))
	if err != nil {
		return err
	}
	for _, id := range left {
		fmt.Fprintf(o.Out, "user %s is not here\n", id)
	}
	return r.DB.MarkScrubbed(ctx)
}

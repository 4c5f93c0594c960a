package former

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Entry is a row of the source, reduced to what is needed to compare it with our tables.
type Entry struct {
	ID, User uuid.UUID
	// Reason is why the row is not copied; "" if it is.
	Reason string
	// Changed is true if the row was written since the floor: by the transaction Floor of Since or a later one.
	Changed bool
	// Version is the version, 1 or 2, of the valid refresh token, if the row is a session; 0 if there is none.
	Version int
}

// The names of the tables that have entries.
const (
	Users      = "users"
	Identities = "identities"
	Factors    = "mfa_factors"
	Sessions   = "sessions"
	Passkeys   = "webauthn_credentials"
)

// userEntries also counts an unconfirmed user as changed if an identity was written, since a user with an identity at
// an external provider is not a pending sign-up.
var userEntries = `
select u.id, u.id, ` + userReason + `, ({changed u}
    or ` + unset(`u.email_confirmed_at`) + ` and ` + unset(`u.phone_confirmed_at`) + ` and coalesce(u.encrypted_password, '') <> '' and exists (
        select from {S}.identities i where i.user_id = u.id and {changed i})), 0
from {S}.users u`

const identityEntries = `
select i.id, i.user_id, ` + identityReason + `, {changed i}, 0
from {S}.identities i join {S}.users u on u.id = i.user_id`

const factorEntries = `
select f.id, f.user_id, ` + factorReason + `, {changed f}, 0
from {S}.mfa_factors f join {S}.users u on u.id = f.user_id`

// sessionEntries scans the refresh tokens once. Most are revoked and old, so few rows remain to be grouped. The token's
// number, padded with zeros, precedes its text, so that the greatest text is the newest token. "offset 0" keeps
// PostgreSQL from computing the columns live and reason again for each use.
const sessionEntries = `
with tokens as (
    select t.session_id, bool_or({changed t}) as written,
        max(lpad(t.id::text, 19, '0') || t.token collate "C") filter (where t.revoked is not true) as newest
    from {S}.refresh_tokens t where t.session_id is not null and (t.revoked is not true or {changed t}) group by t.session_id
), claims as (
    select distinct a.session_id from {S}.mfa_amr_claims a where {changed a}
)
select v.id, v.user_id, case when reason <> '' then reason when live = 0 then '` + NoToken + `' else '' end, changed, live
from (select s.id, s.user_id, ({changed s} or coalesce(t.written, false) or a.session_id is not null) as changed,
    ` + versionOf + ` as live, ` + sessionReason + ` as reason
from {S}.sessions s
join {S}.users u on u.id = s.user_id
left join tokens t on t.session_id = s.id
left join claims a on a.session_id = s.id
cross join lateral (select substr(t.newest, 20)) n (tok)
offset 0) v`

var entries = map[string]string{Users: userEntries, Identities: identityEntries, Factors: factorEntries,
	Sessions: sessionEntries, Passkeys: passkeyEntries}

// aliases maps the aliases that the queries of this package use for tables to the names of the tables.
var aliases = map[string]string{"u": Users, "i": Identities, "f": Factors, "s": Sessions, "t": "refresh_tokens",
	"a": "mfa_amr_claims", "o": "one_time_tokens", "p": Passkeys}

// bounded maps the alias of a table to the times of its rows that are replaced by the source's clock if they are in the
// future when the row is copied. An identity may get the times of its user.
var bounded = map[string]string{"u": "u.created_at, u.updated_at", "i": "u.created_at, u.updated_at",
	"s": "s.created_at, s.refreshed_at at time zone 'UTC'", "t": "t.updated_at"}

const clockFormat = "2006-01-02 15:04:05.999999+00"

// since replaces {changed ALIAS} in a query by the condition that a row was written by the transaction since.Floor or a
// later one. For tables that are not ordinary ones, the condition is false, since their rows do not show when they were
// written. The second comparison excludes rows that were frozen more than 2^31 transactions ago, whose age is negative.
// Most rows are older than the floor, so the first comparison decides for most. The floor's age is computed only once
// for each query.
func (s *Source) since(sql string, since *Since) string {
	var pairs []string
	for alias, name := range aliases {
		condition := "false"
		if since != nil && s.Catalog.Tables[name].Heap {
			condition = fmt.Sprintf("(age(%[1]s.xmin) <= (select age('%[2]d'::xid)) and age(%[1]s.xmin) >= 0)", alias,
				uint32(since.Floor))
			if ahead := bounded[alias]; ahead != "" && !since.Clock.IsZero() {
				condition = "(" + condition + " or coalesce(greatest(" + ahead + ") > '" +
					since.Clock.UTC().Format(clockFormat) + "'::timestamptz, false))"
			}
		}
		pairs = append(pairs, "{changed "+alias+"}", condition)
	}
	return strings.NewReplacer(pairs...).Replace(sql)
}

// Entries reads all rows of a table, ordered by id. If since is nil, no row counts as changed.
func (s *Source) Entries(ctx context.Context, name string, since *Since, each func(Entry) error) error {
	return s.rows(ctx, s.since(entries[name], since)+" order by 1", into(func(e *Entry) error { return each(*e) },
		func(e *Entry) []any { return []any{uid(&e.ID), uid(&e.User), &e.Reason, &e.Changed, &e.Version} }))
}

// Group describes the rows of a table that have the same Reason.
type Group struct {
	Rows int64
	// Sum is a digest of the rows' ids. Two groups with the same ids have the same Sum.
	Sum string
	// Versions maps the version of sessions' valid tokens to the number of these sessions.
	Versions map[int]int64
}

// Groups counts the rows that Entries would read, by the reason why they are not copied; "" for rows that are copied.
// It neither sorts nor sends them. sum is an SQL aggregate over the column id, whose result is [Group.Sum].
func (s *Source) Groups(ctx context.Context, name, sum string) (map[string]Group, error) {
	groups := map[string]Group{"": {Versions: map[int]int64{}}}
	sql := "with e (id, owner, reason, changed, version) as (" + s.since(entries[name], nil) +
		") select reason, coalesce(version, -1), count(*), " + sum +
		" from e group by grouping sets ((reason), (reason, version))"
	err := s.rows(ctx, sql, func(r pgx.Rows) error {
		var reason, ids string
		var version int
		var rows int64
		if err := r.Scan(&reason, &version, &rows, &ids); err != nil {
			return err
		}
		g := groups[reason]
		if version < 0 {
			g.Rows, g.Sum = rows, ids
		} else if reason == "" {
			g.Versions[version] = rows
		}
		groups[reason] = g
		return nil
	})
	return groups, err
}

// SampleChanged returns the ids of some rows of a table, chosen at random among the rows that are copied and that have
// changed. since says which rows have changed.
func (s *Source) SampleChanged(ctx context.Context, name string, since Since, rows int) ([]uuid.UUID, error) {
	return s.readIDs(ctx, "with e (id, owner, reason, changed, version) as ("+s.since(entries[name], &since)+
		") select id from e where changed and reason = '' order by random() limit $1", rows)
}

// Changes describes the rows, of all tables to be copied, that were written by a certain transaction (the floor) or
// later ones. Sum is a digest of them that changes if one of them is written again.
type Changes struct {
	Rows int64
	Sum  string
}

// Changed returns the rows that were written by the transaction floor or later ones.
func (s *Source) Changed(ctx context.Context, floor Floor) (c Changes, err error) {
	for _, alias := range []string{"u", "i", "f", "s", "t", "a", "o", "p"} {
		name := aliases[alias]
		if !s.Catalog.Tables[name].Heap {
			continue
		}
		var rows int64
		var sum string
		sql := s.since("select count(*), coalesce(sum(hashtext("+alias+".id::text || ' ' || "+alias+
			".xmin::text)::bigint), 0)::text from {S}."+
			name+" "+alias+" where {changed "+alias+"}", &Since{Floor: floor})
		if err := s.row(ctx, sql, []any{&rows, &sum}); err != nil {
			return c, err
		}
		c.Rows, c.Sum = c.Rows+rows, c.Sum+" "+sum
	}
	return c, nil
}

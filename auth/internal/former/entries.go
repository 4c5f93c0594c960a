package former

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Entry is a row there as the merge with ours sees it.
type Entry struct {
	ID, User uuid.UUID
	// Reason is why the row is not carried; "": it is.
	Reason string
	// Changed: it was written since the floor.
	Changed bool
	// Version of a session's live token.
	Version int
}

// tables that have entries.
const (
	Users      = "users"
	Identities = "identities"
	Factors    = "mfa_factors"
	Sessions   = "sessions"
)

// A user who might be a pending sign-up is one no more with another identity.
const userEntries = `
select u.id, u.id, ` + userReason + `, ({changed u}
    or u.email_confirmed_at is null and u.phone_confirmed_at is null and u.encrypted_password <> '' and exists (
        select from {S}.identities i where i.user_id = u.id and {changed i})), 0
from {S}.users u order by u.id`

const identityEntries = `
select i.id, i.user_id, ` + identityReason + `, {changed i}, 0
from {S}.identities i join {S}.users u on u.id = i.user_id order by i.id`

const factorEntries = `
select f.id, f.user_id, ` + factorReason + `, {changed f}, 0
from {S}.mfa_factors f join {S}.users u on u.id = f.user_id order by f.id`

// Most refresh tokens are revoked: both scans of them keep few rows to group. A number before the text makes the largest
// the newest.
const sessionEntries = `
with tokens as (
    select t.session_id, max(lpad(t.id::text, 19, '0') || t.token collate "C") as newest
    from {S}.refresh_tokens t where t.session_id is not null and t.revoked is not true group by t.session_id
), written as (
    select distinct t.session_id from {S}.refresh_tokens t where {changed t}
), claims as (
    select distinct a.session_id from {S}.mfa_amr_claims a where {changed a}
)
select s.id, s.user_id, case when reason <> '' then reason when live = 0 then '` + NoToken + `' else '' end,
    ({changed s} or w.session_id is not null or a.session_id is not null), live
from {S}.sessions s
join {S}.users u on u.id = s.user_id
left join tokens t on t.session_id = s.id
left join written w on w.session_id = s.id
left join claims a on a.session_id = s.id
cross join lateral (select substr(t.newest, 20)) n (tok)
cross join lateral (select ` + versionOf + `, ` + sessionReason + `) v (live, reason)
order by s.id`

var entries = map[string]string{Users: userEntries, Identities: identityEntries, Factors: factorEntries, Sessions: sessionEntries}

// aliases are the tables' names in these queries.
var aliases = map[string]string{"u": Users, "i": Identities, "f": Factors, "s": Sessions, "t": "refresh_tokens",
	"a": "mfa_amr_claims", "o": "one_time_tokens"}

// since fills in the conditions {changed ALIAS}: that a row was written since the floor. Rows of what is no ordinary table
// don't say so, and count as unchanged. A row that was frozen more than 2^31 transactions ago has a negative age.
func (s *Source) since(sql string, floor *Floor) string {
	var pairs []string
	for alias, name := range aliases {
		condition := "false"
		if floor != nil && s.Catalog.Tables[name].Heap {
			condition = fmt.Sprintf("age(%s.xmin) between 0 and age('%d'::xid)", alias, uint32(*floor))
		}
		pairs = append(pairs, "{changed "+alias+"}", condition)
	}
	return strings.NewReplacer(pairs...).Replace(sql)
}

// Entries reads all rows of a table in the order of their ids. Without a floor none is changed.
func (s *Source) Entries(ctx context.Context, name string, floor *Floor, each func(Entry) error) error {
	return s.rows(ctx, s.since(entries[name], floor), func(r pgx.Rows) error {
		var e Entry
		if err := r.Scan(uid(&e.ID), uid(&e.User), &e.Reason, &e.Changed, &e.Version); err != nil {
			return err
		}
		return each(e)
	})
}

// Changes are the rows of the carried tables that were written since a floor: how many, and a sum over them that is
// another one when one of them is written once more.
type Changes struct {
	Rows int64
	Sum  string
}

// Changed looks for them.
func (s *Source) Changed(ctx context.Context, floor Floor) (c Changes, err error) {
	for _, alias := range []string{"u", "i", "f", "s", "t", "a", "o"} {
		name := aliases[alias]
		if !s.Catalog.Tables[name].Heap {
			continue
		}
		var rows int64
		var sum string
		sql := s.since("select count(*), coalesce(sum(hashtext("+alias+".id::text || ' ' || "+alias+".xmin::text)::bigint), 0)::text from {S}."+
			name+" "+alias+" where {changed "+alias+"}", &floor)
		if err := s.row(ctx, sql, []any{&rows, &sum}); err != nil {
			return c, err
		}
		c.Rows, c.Sum = c.Rows+rows, c.Sum+" "+sum
	}
	return c, nil
}

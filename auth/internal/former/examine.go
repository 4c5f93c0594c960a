package former

import (
	"context"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Counts has the numbers of users and of related rows that a takeover reports.
type Counts struct {
	// Instances, SAML and Wallets are users whom a takeover leaves out, or who cannot sign in after it.
	Instances, SAML, Wallets int64
	// OAuthSessions are sessions of OAuthClients; both are 0 in schemas without clients.
	OAuthSessions, OAuthClients int64
	// Super are users marked is_super_admin, Admins users with one of the roles.
	Super, Admins int64
}

var countUsers = `
select
    count(*) filter (where u.instance_id <> ` + zeroID + `),
    count(*) filter (where u.is_sso_user and ` + unset(`u.deleted_at`) + `),
    count(*) filter (where coalesce(u.email, '') = '' and coalesce(u.phone, '') = '' and not u.is_anonymous
        and exists (select from {S}.identities i where i.user_id = u.id and i.provider = 'web3')
        and not exists (select from {S}.identities i where i.user_id = u.id and i.provider <> 'web3')),
    count(*) filter (where u.is_super_admin), count(*) filter (where u.role = any($1))
from {S}.users u`

var countOAuth = `
select count(*), count(distinct c.id) from {S}.sessions s join {S}.oauth_clients c on c.id = s.oauth_client_id
where ` + unset(`c.deleted_at`)

// Count counts what a takeover reports; roles are our roles of administrators.
func (s *Source) Count(ctx context.Context, roles []string) (c Counts, err error) {
	err = s.row(ctx, countUsers, []any{&c.Instances, &c.SAML, &c.Wallets, &c.Super, &c.Admins}, roles)
	if err == nil && s.Catalog.Has("sessions", "oauth_client_id") && s.Catalog.Has("oauth_clients", "deleted_at") {
		err = s.row(ctx, countOAuth, []any{&c.OAuthSessions, &c.OAuthClients})
	}
	return c, err
}

// Share is the number of rows of a kind, and how many of them a takeover leaves out, by reason.
type Share struct {
	There int64
	Left  map[string]int64
}

const ownerReason = `case when u.is_sso_user then 'saml' when u.instance_id <> ` + zeroID + ` then 'instances'
    when u.id = any($1) then 'duplicates' when u.deleted_at > '-infinity' then 'deleted' else '' end`

var pendingUsers = `not u.is_anonymous and ` + unset(`u.deleted_at`) + ` and ` + unset(`u.email_confirmed_at`) + ` and ` + unset(`u.phone_confirmed_at`) + `
    and ` + unset(`u.invited_at`) + ` and u.encrypted_password <> '' and not ` + unset(`u.confirmation_sent_at`) + ` and not ` + isExternal

// Pending counts users who never confirmed their sign-up, and passwords. Users in duplicates are not carried, and an
// invited user has no password.
func (s *Source) Pending(ctx context.Context, duplicates []uuid.UUID) (pending, passwords Share, err error) {
	share := func(sql string) (v Share, err error) {
		v.Left, err = s.readCounts(ctx, sql, ids(duplicates))
		for _, n := range v.Left {
			v.There += n
		}
		delete(v.Left, "") // carried rows are not left out
		return v, err
	}
	if pending, err = share(
		`select ` + ownerReason + `, count(*) from {S}.users u where ` + pendingUsers + ` group by 1`); err != nil {
		return pending, passwords, err
	}
	passwords, err = share(`select case when r <> '' then r when invited then 'invited' else '' end, count(*)
		from (select ` + ownerReason + `, not ` + unset(`u.invited_at`) + ` and ` + unset(`u.email_confirmed_at`) + ` and ` + unset(`u.phone_confirmed_at`) + `
		      from {S}.users u where u.encrypted_password <> '') v (r, invited) group by 1`)
	return pending, passwords, err
}

// plainBcrypt matches hashes that are valid bcrypt without further checks, which nearly all are.
const plainBcrypt = `^\$2[aby]\$(?:0[4-9]|1[0-5])\$[./A-Za-z0-9]*[.CGKOSWaeimquy26]$`

// OddPasswords reads the passwords of carried users, except those that plainBcrypt matches.
func (s *Source) OddPasswords(ctx context.Context, each func(user uuid.UUID, password string) error) error {
	return s.rows(ctx, `
select u.id, u.encrypted_password from {S}.users u
where u.encrypted_password <> '' and not (length(u.encrypted_password) = 60 and u.encrypted_password ~ '`+plainBcrypt+`')
    and `+unset(`u.deleted_at`)+` and `+userReason+` = ''
    and not (not `+unset(`u.invited_at`)+` and `+unset(`u.email_confirmed_at`)+` and `+unset(`u.phone_confirmed_at`)+`)
order by u.id`, texts(each))
}

// SealedSessions reads the keys that may be encrypted, of sessions that are carried unless the key proves unusable.
func (s *Source) SealedSessions(ctx context.Context, each func(session uuid.UUID, key string) error) error {
	return s.rows(ctx, `
select s.id, {s.refresh_token_hmac_key} from {S}.sessions s join {S}.users u on u.id = s.user_id
where {s.refresh_token_hmac_key} like '{%' and {s.refresh_token_counter} >= 0 and `+sessionReason+` = ''
order by s.id`, texts(each))
}

// texts returns a function that passes on rows of an id and a text.
func texts(each func(uuid.UUID, string) error) func(pgx.Rows) error {
	return func(r pgx.Rows) error {
		var id uuid.UUID
		var text string
		if err := r.Scan(uid(&id), &text); err != nil {
			return err
		}
		return each(id, text)
	}
}

// addressed is the condition for users who can be found by an address: neither deleted, nor of SAML, nor of another
// instance.
var addressed = unset(`u.deleted_at`) + ` and ` + userReason + ` = ''`

// OddAddresses reads the addresses (email) or numbers (phone) whose stored form here may differ: they have upper-case
// letters or characters beyond ASCII.
func (s *Source) OddAddresses(ctx context.Context, column string,
	each func(user uuid.UUID, aud, address string) error) error {
	odd := `u.email ~ '[A-Z]' or u.email ~ '[^\x01-\x7f]'`
	if column == "phone" {
		odd = `u.phone ~ '[+ ]'`
	}
	return s.rows(ctx, `select u.id, u.aud, u.`+column+` from {S}.users u where (`+odd+`) and `+addressed,
		addresses(each))
}

// WithAddress reads the users who have one of the addresses.
func (s *Source) WithAddress(ctx context.Context, column string, list []string,
	each func(user uuid.UUID, aud, address string) error) error {
	return s.rows(ctx, `select u.id, u.aud, u.`+column+` from {S}.users u where u.`+column+` = any($1) and `+addressed,
		addresses(each), list)
}

func addresses(each func(user uuid.UUID, aud, address string) error) func(pgx.Rows) error {
	return func(r pgx.Rows) error {
		var user uuid.UUID
		var aud, address string
		if err := r.Scan(uid(&user), str(&aud), str(&address)); err != nil {
			return err
		}
		return each(user, aud, address)
	}
}

// Latest returns the users sorted by last sign-in, then by creation, then by id, the latest first.
func (s *Source) Latest(ctx context.Context, users []uuid.UUID) ([]uuid.UUID, error) {
	return s.readIDs(ctx, `select u.id from {S}.users u where u.id = any($1)
order by u.last_sign_in_at desc nulls last, u.created_at desc nulls last, u.id desc`, ids(users))
}

// ProviderCounts returns how many identities each provider has.
func (s *Source) ProviderCounts(ctx context.Context) (map[string]int64, error) {
	return s.readCounts(ctx, `select i.provider, count(*) from {S}.identities i join {S}.users u on u.id = i.user_id
where `+identityReason+` = '' group by 1`)
}

// Clients counts the connections of the schema's owner that are not a takeover's, by client address. Without
// pg_read_all_stats a role sees only the existence of another role's connections: their address is "". own lists
// the server processes (pid) to leave out.
func (s *Source) Clients(ctx context.Context, own []int32) (map[string]int64, error) {
	return s.readCounts(ctx, `select case when backend_type is null then '' else coalesce(host(client_addr), 'this machine') end, count(*)
from pg_stat_activity
where usename = $1 and datname = current_database() and coalesce(application_name, '') <> $2 and pid <> all($3)
    and coalesce(backend_type, 'client backend') = 'client backend'
group by 1`, s.Catalog.Owner, ApplicationName, own)
}

// Writer returns a process that holds a lock for writing on a carried table; the pid of a prepared transaction is 0.
// Autovacuum, which has no user, does not count.
func (s *Source) Writer(ctx context.Context) (pid int, found bool, err error) {
	var list []uint32
	for _, name := range Carried {
		if t, there := s.Catalog.Tables[name]; there {
			list = append(list, t.OID)
		}
	}
	err = s.rows(ctx, `select coalesce(l.pid, 0) from pg_locks l left join pg_stat_activity a on a.pid = l.pid
where l.locktype = 'relation' and l.relation = any($1)
    and l.database = (select oid from pg_database where datname = current_database())
    and l.granted and l.mode in ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock',
        'ExclusiveLock', 'AccessExclusiveLock')
    and (l.pid is null or a.usesysid is not null)
limit 1`, func(r pgx.Rows) error {
		found = true
		return r.Scan(&pid)
	}, list)
	return pid, found, err
}

// keywords are words that need quotes, at least in some places, to be a name.
var keywords = strings.Fields(`all analyse analyze and any array as asc asymmetric authorization between bigint binary bit
	boolean both case cast char character check coalesce collate collation column concurrently constraint create cross
	current_catalog current_date current_role current_schema current_time current_timestamp current_user dec decimal default
	deferrable desc distinct do else end except exists extract false fetch float for foreign freeze from full grant greatest
	group grouping having ilike in initially inner inout int integer intersect interval into is isnull join json json_array
	json_arrayagg json_exists json_object json_objectagg json_query json_scalar json_serialize json_table json_value lateral
	leading least left like limit localtime localtimestamp merge_action national natural nchar none normalize not notnull null
	nullif numeric offset on only or order out outer overlaps overlay placing position precision primary real references
	returning right row select session_user setof similar smallint some substring symmetric system_user table tablesample then
	time timestamp to trailing treat trim true union unique user using values varchar variadic verbose when where window with
	xmlattributes xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable`)

// Name returns a name of one or two parts for SQL, with quotes only around parts that need them.
func Name(parts ...string) string {
	var quoted []string
	for _, p := range parts {
		if strings.Trim(p, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" || p == "" || p[0] <= '9' ||
			slices.Contains(keywords, p) {
			p = pgx.Identifier{p}.Sanitize()
		}
		quoted = append(quoted, p)
	}
	return strings.Join(quoted, ".")
}

package former

import (
	"context"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Counts has the numbers that a takeover reports before it starts.
type Counts struct {
	// Instances, SAML and Wallets are how many users cannot be copied, or cannot sign in afterwards: users of other
	// instances, and users who sign in only by SAML or by a wallet.
	Instances, SAML, Wallets int64
	// OAuthSessions is how many sessions belong to the OAuthClients; both are 0 in versions of the schema without OAuth
	// clients.
	OAuthSessions, OAuthClients int64
	// Super is how many users have is_super_admin set, Admins how many have an administrator's role.
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

// Count reads the Counts. roles are the roles of administrators in our service.
func (s *Source) Count(ctx context.Context, roles []string) (c Counts, err error) {
	err = s.row(ctx, countUsers, []any{&c.Instances, &c.SAML, &c.Wallets, &c.Super, &c.Admins}, roles)
	if err == nil && s.Catalog.Has("sessions", "oauth_client_id") && s.Catalog.Has("oauth_clients", "deleted_at") {
		err = s.row(ctx, countOAuth, []any{&c.OAuthSessions, &c.OAuthClients})
	}
	return c, err
}

// Share counts the rows of a kind: There is how many the source has, and Left is how many of them are not copied, by
// the reason.
type Share struct {
	There int64
	Left  map[string]int64
}

const ownerReason = `case when u.is_sso_user then 'saml' when u.instance_id <> ` + zeroID + ` then 'instances'
    when u.id = any($1) then 'duplicates' when u.deleted_at > '-infinity' then 'deleted' else '' end`

var pendingUsers = `not u.is_anonymous and ` + unset(`u.deleted_at`) + ` and ` + unset(`u.email_confirmed_at`) + ` and ` + unset(`u.phone_confirmed_at`) + `
    and ` + unset(`u.invited_at`) + ` and u.encrypted_password <> '' and not ` + unset(`u.confirmation_sent_at`) + ` and not ` + isExternal

// Pending counts the users who have never confirmed their sign-up, and the passwords. Users in duplicates count as not
// copied, and so do the passwords of invited users who have not confirmed an address.
func (s *Source) Pending(ctx context.Context, duplicates []uuid.UUID) (pending, passwords Share, err error) {
	share := func(sql string) (v Share, err error) {
		v.Left, err = s.readCounts(ctx, sql, ids(duplicates))
		for _, n := range v.Left {
			v.There += n
		}
		delete(v.Left, "") // "" is the reason of copied rows
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

// plainBcrypt matches nearly all password hashes: those that are certainly valid bcrypt hashes and need no further
// check.
const plainBcrypt = `^\$2[aby]\$(?:0[4-9]|1[0-5])\$[./A-Za-z0-9]*[.CGKOSWaeimquy26]$`

// OddPasswords reads the password hashes of users to be copied, except those that plainBcrypt matches.
func (s *Source) OddPasswords(ctx context.Context, each func(user uuid.UUID, password string) error) error {
	return s.rows(ctx, `
select u.id, u.encrypted_password from {S}.users u
where u.encrypted_password <> '' and not (length(u.encrypted_password) = 60 and u.encrypted_password ~ '`+plainBcrypt+`')
    and `+unset(`u.deleted_at`)+` and `+userReason+` = ''
    and not (not `+unset(`u.invited_at`)+` and `+unset(`u.email_confirmed_at`)+` and `+unset(`u.phone_confirmed_at`)+`)
order by u.id`, texts(each))
}

// SealedSessions reads the keys of sessions that look encrypted. Only sessions that will be copied if their key can be
// used are read.
func (s *Source) SealedSessions(ctx context.Context, each func(session uuid.UUID, key string) error) error {
	return s.rows(ctx, `
select s.id, {s.refresh_token_hmac_key} from {S}.sessions s join {S}.users u on u.id = s.user_id
where {s.refresh_token_hmac_key} like '{%' and {s.refresh_token_counter} >= 0 and `+sessionReason+` = ''
order by s.id`, texts(each))
}

// texts returns a function that reads a row of an id and a text, and calls the function each with them.
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

// addressed is the SQL condition for users who keep their address when they are copied: they are not deleted, and
// belong neither to SAML nor to another instance.
var addressed = unset(`u.deleted_at`) + ` and ` + userReason + ` = ''`

// OddAddresses reads the values of a column, email or phone, that may be stored in another form in our tables: email
// addresses with upper-case letters or characters outside of ASCII, and phone numbers with a plus or a blank.
func (s *Source) OddAddresses(ctx context.Context, column string,
	each func(user uuid.UUID, aud, address string) error) error {
	odd := `u.email ~ '[A-Z]' or u.email ~ '[^\x01-\x7f]'`
	if column == "phone" {
		odd = `u.phone ~ '[+ ]'`
	}
	return s.rows(ctx, `select u.id, u.aud, u.`+column+` from {S}.users u where (`+odd+`) and `+addressed,
		addresses(each))
}

// WithAddress reads the users whose column has one of the values in list.
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

// Latest sorts users by their last sign-in, the latest first. Users with the same time are sorted by their creation,
// the latest first, then by id.
func (s *Source) Latest(ctx context.Context, users []uuid.UUID) ([]uuid.UUID, error) {
	return s.readIDs(ctx, `select u.id from {S}.users u where u.id = any($1)
order by u.last_sign_in_at desc nulls last, u.created_at desc nulls last, u.id desc`, ids(users))
}

// ProviderCounts returns how many identities of each provider are copied.
func (s *Source) ProviderCounts(ctx context.Context) (map[string]int64, error) {
	return s.readCounts(ctx, `select i.provider, count(*) from {S}.identities i join {S}.users u on u.id = i.user_id
where `+identityReason+` = '' group by 1`)
}

// Clients counts the connections of the role that owns the schema's tables, by client address, without those of a
// takeover. A role without pg_read_all_stats sees that connections of another role exist, but not their address, which
// is then "". own are ids of server processes to leave out.
func (s *Source) Clients(ctx context.Context, own []int32) (map[string]int64, error) {
	return s.readCounts(ctx, `select case when backend_type is null then '' else coalesce(host(client_addr), 'this machine') end, count(*)
from pg_stat_activity
where usename = $1 and datname = current_database() and coalesce(application_name, '') <> $2 and pid <> all($3)
    and coalesce(backend_type, 'client backend') = 'client backend'
group by 1`, s.Catalog.Owner, ApplicationName, own)
}

// Writer returns the id of a server process whose transaction holds a lock for writing on a table to be copied; 0 if
// the transaction is a prepared one. Processes of autovacuum, which have no user, do not count.
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

// keywords are the words that must be quoted, at least in some places, to be used as names.
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

// Name returns a name of one or two parts for an SQL statement. Only parts that need quotes are quoted.
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

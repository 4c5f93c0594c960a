package mirror

import "strings"

// column describes a column of the former service's tables that the mirror writes. All generated SQL about columns is
// made from the lists of columns in this file. In the SQL, u is our row, n the row as it should be in the former
// service's table, and o the row that is there.
type column struct {
	name string // the column's name in the former service's table
	typ  string
	// here is the name of the column of our table from which the value comes; "": it has the same name and never
	// changes.
	here string
	from string // an SQL expression over u that returns the value; "": the column here
	// group is the number, from 1, of the UPDATE statement that writes the column; 0: only INSERT writes it.
	group int
	// differs is the condition under which the column must be written; "": o's value is distinct from n's. set is the
	// expression for the new value; "": n's value.
	differs, set string
	// carried is true if a change of the column by the application is copied to our table. The application's changes of
	// other columns are refused.
	carried bool
	cast    string // the type of the former service's schema to which the value is cast; "": no cast
}

// claimed is the condition for a user of ours who has not confirmed any address yet. In the former service's table the
// metadata of such a user includes the metadata of pending sign-ups.
const claimed = `(u.email_confirmed_at is null and u.phone_confirmed_at is null and u.invited_at is null
        and u.deleted_at is null and not u.is_anonymous)`

const zoned = "timestamptz"

const mergedMetadata = `case when n.claimed and jsonb_typeof(o.raw_user_meta_data) = 'object'
        then o.raw_user_meta_data || n.raw_user_meta_data else n.raw_user_meta_data end`

// kept is put before a condition. It excludes users who are soft-deleted in both tables: their addresses in the former
// service's table stay as the former service left them.
const kept = `(n.deleted_at is null or o.deleted_at is null) and `

// userColumns are the mirrored columns of the former service's table users. The columns of one group are those that the
// former service itself writes with one statement.
var userColumns = []column{
	{name: "id", typ: "uuid"},
	{name: "created_at", typ: zoned, differs: "false"},
	{name: "email", typ: "text", from: "nullif(u.email, '')", here: "email", group: 1,
		differs: kept + "o.email is distinct from n.email"},
	{name: "phone", typ: "text", from: "nullif(u.phone, '')", here: "phone", group: 2,
		differs: kept + "o.phone is distinct from n.phone"},
	{name: "is_anonymous", typ: "boolean", here: "is_anonymous", group: 3},
	{name: "role", typ: "text", here: "role", group: 4, carried: true},
	{name: "aud", typ: "text", here: "aud", group: 4},
	{name: "email_confirmed_at", typ: zoned, here: "email_confirmed_at", group: 5},
	{name: "phone_confirmed_at", typ: zoned, here: "phone_confirmed_at", group: 5},
	{name: "raw_app_meta_data", typ: "jsonb", here: "app_metadata", group: 6, carried: true},
	{name: "raw_user_meta_data", typ: "jsonb", from: "case when " + claimed +
		" then coalesce(c.user_metadata, '{}') || u.user_metadata else u.user_metadata end", here: "user_metadata", group: 7,
		differs: "o.raw_user_meta_data is distinct from " + mergedMetadata, set: mergedMetadata, carried: true},
	{name: "email_change", typ: "text", here: "new_email", group: 8,
		differs: "coalesce(o.email_change, '') <> n.email_change"},
	{name: "phone_change", typ: "text", here: "new_phone", group: 8,
		differs: "coalesce(o.phone_change, '') <> n.phone_change"},
	{name: "banned_until", typ: zoned, here: "banned_until", group: 9, carried: true},
	{name: "deleted_at", typ: zoned, here: "deleted_at", group: 9},
	{name: "invited_at", typ: zoned, here: "invited_at", group: 10},
	{name: "confirmation_sent_at", typ: zoned, here: "confirmation_sent_at", group: 10},
	{name: "recovery_sent_at", typ: zoned, here: "recovery_sent_at", group: 10},
	{name: "email_change_sent_at", typ: zoned, here: "email_change_sent_at", group: 10},
	{name: "phone_change_sent_at", typ: zoned, here: "phone_change_sent_at", group: 10},
	{name: "reauthentication_sent_at", typ: zoned, here: "reauthentication_sent_at", group: 10},
	{name: "last_sign_in_at", typ: zoned, here: "last_sign_in_at", group: 11},
}

// unwritten are columns of the former service's table users, in addition to tokens, that only the former service
// writes. The application must not write them.
var unwritten = strings.Fields("encrypted_password email_change_confirm_status is_sso_user")

// tokens are the columns of the former service's table users that hold tokens. The mirror only writes empty texts to
// them.
var tokens = strings.Fields(`confirmation_token recovery_token email_change_token_new email_change_token_current
	phone_change_token reauthentication_token`)

// rows describes a mirrored table whose rows belong to users. here is the name of our table, there that of the former
// service's table. row is the word for one row in the names of functions.
type rows struct {
	here, there, row string
	columns          []column
	mirrored         string // the condition, over our row u, for rows to be mirrored
	// pruned is the condition, over a row t of the former service's table, under which the mirror deletes the row if
	// our table lacks it. The takeover does not copy rows of other kinds, so they are never deleted.
	pruned string
	// own are further columns of the former service's table that the application must not write.
	own []string
}

var identities = rows{here: "identities", there: "identities", row: "identity", mirrored: "true",
	pruned: "t.provider <> 'web3' and t.provider not like 'sso:%'", columns: []column{
		{name: "id", typ: "uuid"},
		{name: "user_id", typ: "uuid", here: "user_id"},
		{name: "provider_id", typ: "text", here: "provider_id"},
		{name: "provider", typ: "text", from: "{provider}", here: "provider"},
		{name: "identity_data", typ: "jsonb", here: "identity_data"},
		{name: "last_sign_in_at", typ: zoned, here: "last_sign_in_at"},
		{name: "created_at", typ: zoned, differs: "false"},
	}}

var factors = rows{here: "factors", there: "mfa_factors", row: "factor", mirrored: "u.verified_at is not null and u.kind <> 'recovery_code'",
	pruned: "t.status::text = 'verified' and t.factor_type::text <> 'webauthn'", own: []string{"secret"},
	columns: []column{
		{name: "id", typ: "uuid"},
		{name: "user_id", typ: "uuid"},
		{name: "friendly_name", typ: "text", from: "nullif(u.friendly_name, '')", here: "friendly_name",
			differs: "nullif(o.friendly_name, '') is distinct from n.friendly_name"},
		{name: "factor_type", typ: "text", here: "kind", cast: "factor_type"},
		{name: "status", typ: "text", from: "'verified'::text", here: "verified_at", cast: "factor_status"},
		{name: "phone", typ: "text", from: "nullif(u.phone, '')", here: "phone",
			differs: "nullif(ltrim(o.phone, '+'), '') is distinct from n.phone"},
		{name: "created_at", typ: zoned, differs: "false"},
	}}

var sessions = rows{here: "sessions", there: "sessions", row: "session", mirrored: "u.ended_at is null", pruned: "true",
	columns: []column{
		{name: "id", typ: "uuid"},
		{name: "user_id", typ: "uuid"},
		{name: "aal", typ: "text", from: "'aal' || u.aal", here: "aal", cast: "aal_level"},
		{name: "factor_id", typ: "uuid", here: "factor_id"},
		{name: "created_at", typ: zoned, differs: "false"},
	}}

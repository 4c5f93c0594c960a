package mirror

import "strings"

// column is a mirrored column. All generated SQL about columns is made from the lists of columns in this file.
type column struct {
	name string // there
	typ  string
	// here is our column, whose changes are mirrored; "": a column of the same name, which does not change.
	here string
	from string // an expression over u, our row; "": the column itself
	// group is the number of the UPDATE that writes the former column, from 1; 0: only the INSERT writes it.
	group int
	// differs replaces the comparison of the former row o with the new row n, set replaces n's value.
	differs, set string
	// carried: a change by the application is carried over to our tables. Changes of other columns are refused.
	carried bool
	cast    string // a type in the former schema
}

// claimed is the condition for a user who has confirmed nothing yet: the former metadata then includes that of the
// pending sign-ups.
const claimed = `(u.email_confirmed_at is null and u.phone_confirmed_at is null and u.invited_at is null
        and u.deleted_at is null and not u.is_anonymous)`

const zoned = "timestamptz"

const mergedMetadata = `case when n.claimed and jsonb_typeof(o.raw_user_meta_data) = 'object'
        then o.raw_user_meta_data || n.raw_user_meta_data else n.raw_user_meta_data end`

// kept excludes users who are soft-deleted on both sides: their addresses stay as the former service left them.
const kept = `(n.deleted_at is null or o.deleted_at is null) and `

// userColumns are the columns of the table users. The columns of a group are those that one statement of the former
// service writes.
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

// unwritten are columns of the former users, besides tokens, that only the former service writes.
var unwritten = strings.Fields("encrypted_password email_change_confirm_status is_sso_user")

// tokens are the columns of the former users that hold tokens: the mirror only ever writes empty texts to them.
var tokens = strings.Fields(`confirmation_token recovery_token email_change_token_new email_change_token_current
	phone_change_token reauthentication_token`)

// rows is a table whose rows refer to users.
type rows struct {
	here, there, row string
	columns          []column
	mirrored         string // the condition, over u, for our rows that are mirrored
	// pruned is the condition for former rows t that are deleted if our tables lack them. Other rows were left out by
	// the takeover.
	pruned string
	// own are further former columns that the application may not write.
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

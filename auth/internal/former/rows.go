package former

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// The limits of a batch: its rows, and the bytes of text in them.
const (
	BatchRows  = 5000
	BatchBytes = 16 << 20
)

// Select says which rows are read: those after a cursor, those with certain ids, or those of certain users.
type Select struct {
	After      uuid.UUID
	IDs, Users []uuid.UUID // if one is not nil, only rows with these ids, or of these users, are read
	// Rows limits how many rows after the cursor are read; 0: BatchRows.
	Rows int
}

// User is a row of the table users. A time is zero if it is null or minus infinity.
type User struct {
	ID                                 uuid.UUID
	Aud, Role, Email, Phone            string
	Password                           string
	AppMetadata, UserMetadata          []byte
	NewEmail, NewPhone                 string
	ConfirmStatus                      int
	CurrentTokenGone, NewTokenGone     bool // the tokens of the pending change of address are empty
	Anonymous                          bool
	CreatedAt, UpdatedAt, LastSignInAt time.Time
	EmailConfirmedAt, PhoneConfirmedAt time.Time
	InvitedAt, BannedUntil, DeletedAt  time.Time
	ConfirmationSentAt, RecoverySentAt time.Time
	EmailChangeSentAt                  time.Time
	PhoneChangeSentAt                  time.Time
	ReauthenticationSentAt             time.Time
	// External is true if the user has an identity other than email and phone.
	External bool
	// Clock is the server's time when the row was read.
	Clock time.Time
	// Reason is why the user is not copied. If it is "", the user is copied unless another user has the same address.
	Reason string
}

// Pending reports whether the user is an unconfirmed sign-up, whose password and metadata become valid when the address
// is confirmed. An unconfirmed user to whom nothing was sent was created by an administrator, and is not pending.
func (u *User) Pending() bool {
	return !u.Anonymous && u.DeletedAt.IsZero() && u.EmailConfirmedAt.IsZero() && u.PhoneConfirmedAt.IsZero() &&
		u.InvitedAt.IsZero() && u.Password != "" && !u.ConfirmationSentAt.IsZero() && !u.External
}

const zeroID = "'00000000-0000-0000-0000-000000000000'"

// userReason is the SQL expression for the reason why a user is not copied; the rows that belong to the user are not
// copied for the same reason.
const userReason = `case when u.is_sso_user then 'saml' when u.instance_id <> ` + zeroID +
	` then 'instances' else '' end`

// unset returns the SQL condition that a time is missing in the source. Minus infinity counts as null.
func unset(column string) string { return "coalesce(" + column + ", '-infinity') = '-infinity'" }

// ownedReason is the beginning of the SQL expression for the reason why a row of user u is not copied. Unlike the user
// itself, a row of a soft-deleted user is not copied.
const ownedReason = `when u.is_sso_user then 'saml' when u.instance_id <> ` + zeroID + ` then 'instances'
    when u.deleted_at > '-infinity' then 'deleted'`

// isExternal is not written with exists, since PostgreSQL would then read all identities again for each batch of users.
const isExternal = `coalesce((select true from {S}.identities e where e.user_id = u.id and e.provider not in ('email', 'phone') limit 1), false)`

const selectUsers = `
select u.id, u.aud, u.role, u.email, u.phone, u.encrypted_password, u.raw_app_meta_data::text, u.raw_user_meta_data::text,
    u.email_change, u.phone_change, coalesce(u.email_change_confirm_status, 0),
    coalesce(u.email_change_token_current, '') = '', coalesce(u.email_change_token_new, '') = '', u.is_anonymous,
    u.created_at, u.updated_at, u.last_sign_in_at, u.email_confirmed_at, u.phone_confirmed_at, u.invited_at, u.banned_until,
    u.deleted_at, u.confirmation_sent_at, u.recovery_sent_at, u.email_change_sent_at, u.phone_change_sent_at,
    u.reauthentication_sent_at, ` + isExternal + `, now(), ` + userReason + `
from {S}.users u
where `

// where returns the condition for the selected rows and its arguments.
func (w Select) where(alias string) (sql string, args []any) {
	if w.IDs != nil {
		return alias + ".id = any($1) order by " + alias + ".id", []any{ids(w.IDs)}
	}
	if w.Users != nil {
		return alias + ".user_id = any($1) order by " + alias + ".id", []any{ids(w.Users)}
	}
	n := w.Rows
	if n == 0 {
		n = BatchRows
	}
	return alias + ".id > $1 order by " + alias + ".id limit $2", []any{ids([]uuid.UUID{w.After})[0], n}
}

// Users reads the users that w selects, ordered by id.
func (s *Source) Users(ctx context.Context, w Select, each func(*User) error) error {
	where, args := w.where("u")
	return s.batch(ctx, selectUsers+where, into(each, func(u *User) []any {
		return []any{uid(&u.ID), str(&u.Aud), str(&u.Role), str(&u.Email), str(&u.Phone), str(&u.Password),
			raw(&u.AppMetadata), raw(&u.UserMetadata), str(&u.NewEmail), str(&u.NewPhone), &u.ConfirmStatus,
			&u.CurrentTokenGone, &u.NewTokenGone, &u.Anonymous, at(&u.CreatedAt), at(&u.UpdatedAt), at(&u.LastSignInAt),
			at(&u.EmailConfirmedAt), at(&u.PhoneConfirmedAt), at(&u.InvitedAt), at(&u.BannedUntil), at(&u.DeletedAt),
			at(&u.ConfirmationSentAt), at(&u.RecoverySentAt), at(&u.EmailChangeSentAt), at(&u.PhoneChangeSentAt),
			at(&u.ReauthenticationSentAt), &u.External, at(&u.Clock), &u.Reason}
	}), args...)
}

// Identity is a row of the table identities, with times of its user.
type Identity struct {
	ID, UserID                         uuid.UUID
	Provider, ProviderID               string
	Data                               []byte
	LastSignInAt, CreatedAt, UpdatedAt time.Time
	UserCreatedAt, UserUpdatedAt       time.Time
	Clock                              time.Time // the server's time when the row was read
	Reason                             string
}

const identityReason = `case ` + ownedReason +
	` when i.provider = 'web3' then 'web3' when i.provider like 'sso:%' then 'saml' else '' end`

const selectIdentities = `
select i.id, i.user_id, i.provider, i.provider_id, i.identity_data::text, i.last_sign_in_at, i.created_at, i.updated_at,
    u.created_at, u.updated_at, now(), ` + identityReason + `
from {S}.identities i join {S}.users u on u.id = i.user_id
where `

// Identities reads the identities that w selects, ordered by id.
func (s *Source) Identities(ctx context.Context, w Select, each func(*Identity) error) error {
	where, args := w.where("i")
	return s.batch(ctx, selectIdentities+where, into(each, func(i *Identity) []any {
		return []any{uid(&i.ID), uid(&i.UserID), str(&i.Provider), str(&i.ProviderID), raw(&i.Data),
			at(&i.LastSignInAt), at(&i.CreatedAt), at(&i.UpdatedAt), at(&i.UserCreatedAt), at(&i.UserUpdatedAt), at(&i.Clock), &i.Reason}
	}), args...)
}

// CustomProviders returns the names of the form custom:NAME that identities have as their provider.
func (s *Source) CustomProviders(ctx context.Context) (names []string, err error) {
	err = s.rows(ctx, `select distinct i.provider from {S}.identities i where i.provider like 'custom:%'`,
		func(r pgx.Rows) error {
			var name string
			err := r.Scan(&name)
			names = append(names, name)
			return err
		})
	return names, err
}

// Factor is a row of the table mfa_factors.
type Factor struct {
	ID, UserID                             uuid.UUID
	Kind, Name, Phone, Secret              string
	Credential                             string // JSON with the credential of a security key
	CreatedAt, UpdatedAt, LastChallengedAt time.Time
	Reason                                 string
}

const factorReason = `case ` + ownedReason + ` when f.status::text <> 'verified' then 'unverified'
    when f.factor_type::text not in ('totp', 'phone', 'webauthn') then 'unknown' else '' end`

const selectFactors = `
select f.id, f.user_id, f.factor_type::text, f.friendly_name, {f.phone}, f.secret, f.created_at, f.updated_at, {f.last_challenged_at},
    {f.web_authn_credential}::text, ` + factorReason + `
from {S}.mfa_factors f join {S}.users u on u.id = f.user_id
where `

// FactorOwners returns the ids of the next n users after a cursor who have factors, in order.
func (s *Source) FactorOwners(ctx context.Context, after uuid.UUID, n int) ([]uuid.UUID, error) {
	return s.readIDs(ctx,
		`select distinct f.user_id from {S}.mfa_factors f where f.user_id > $1 order by f.user_id limit $2`,
		ids([]uuid.UUID{after})[0], n)
}

func factorTargets(f *Factor) []any {
	return []any{uid(&f.ID), uid(&f.UserID), &f.Kind, str(&f.Name), str(&f.Phone), str(&f.Secret), at(&f.CreatedAt),
		at(&f.UpdatedAt), at(&f.LastChallengedAt), str(&f.Credential), &f.Reason}
}

// FactorsOf reads the factors of users, those of a user together and the oldest first.
func (s *Source) FactorsOf(ctx context.Context, users []uuid.UUID, each func(*Factor) error) error {
	return s.batch(ctx, selectFactors+"f.user_id = any($1) order by f.user_id, f.created_at, f.id",
		into(each, factorTargets), ids(users))
}

// EachFactor reads all verified factors that may be copied.
func (s *Source) EachFactor(ctx context.Context, each func(*Factor) error) error {
	return s.rows(ctx, selectFactors+factorReason+" = '' order by f.user_id, f.created_at, f.id",
		into(each, factorTargets))
}

// Session is a row of the table sessions, with its valid refresh token and its methods.
type Session struct {
	ID, UserID, FactorID             uuid.UUID
	CreatedAt, RefreshedAt, NotAfter time.Time
	AAL                              int
	UserAgent, IP, Tag               string
	// Token is the text of the session's valid token if the valid token has version 1, TokenAt the time when it was
	// written. A valid token of version 2 is computed from Key and Counter.
	Token   string
	TokenAt time.Time
	Key     string
	Counter int64
	Version int // 0 if there is no valid token
	AMR     []Claim
	Reason  string
	// Clock is the server's time when the row was read.
	Clock time.Time
}

// Claim is a method with which a session was authenticated.
type Claim struct {
	Method string    `json:"method"`
	At     time.Time `json:"at"`
}

// NoToken is the reason for a session without a valid token.
const NoToken = "without a live token"

// versionOf is the SQL expression for the version of a session's valid token, from the session's columns and tok, the
// text of the newest token of version 1. settle decides the same in Go. A key that is not encrypted is 32 bytes in
// base64url. Comparing the text's length is cheaper than a repeat count in a regular expression.
const versionOf = `case
    when {s.refresh_token_hmac_key} is not null and {s.refresh_token_counter} is not null then
        case when {s.refresh_token_counter} >= 0 and ({s.refresh_token_hmac_key} like '{%'
            or length({s.refresh_token_hmac_key}) = 43
                and {s.refresh_token_hmac_key} ~ '^[A-Za-z0-9_-]*[AEIMQUYcgkosw048]$') then 2 else 0 end
    when length(tok) = 12 and tok ~ '^[a-z0-9]*$' or length(tok) = 22 and tok ~ '^[A-Za-z0-9_-]*$' then 1 else 0 end`

// sessionReason is the SQL expression for the reason that follows from a session's row and its user.
const sessionReason = `case ` + ownedReason + ` when {s.oauth_client_id} is not null then 'oauth'
    when s.not_after <= {now} and s.not_after > '-infinity' then 'expired' else '' end`

const selectSessions = `
select s.id, s.user_id, s.factor_id, s.created_at, s.refreshed_at at time zone 'UTC', s.not_after,
    case s.aal::text when 'aal2' then 2 when 'aal3' then 3 else 1 end, s.user_agent, host(s.ip), s.tag,
    case when {s.refresh_token_hmac_key} is not null and {s.refresh_token_counter} is not null then 2 else 0 end,
    {s.refresh_token_hmac_key}, coalesce({s.refresh_token_counter}, 0), now(), ` + sessionReason + `
from {S}.sessions s join {S}.users u on u.id = s.user_id
where `

// selectTokens has two parts, so that each can use the source's index on (session_id, revoked).
const selectTokens = `
select t.session_id, t.id, t.token, t.updated_at from {S}.refresh_tokens t where t.session_id = any($1) and not t.revoked
union all
select t.session_id, t.id, t.token, t.updated_at from {S}.refresh_tokens t where t.session_id = any($1) and t.revoked is null`

const selectClaims = `
select a.session_id, a.authentication_method, a.updated_at from {S}.mfa_amr_claims a where a.session_id = any($1)`

// Sessions reads the sessions that w selects, with their valid tokens and methods. It stops after BatchBytes.
func (s *Source) Sessions(ctx context.Context, w Select) (list []*Session, err error) {
	where, args := w.where("s")
	err = s.read(ctx, func(c *pgx.Conn) error {
		if err := forBatch(ctx, c); err != nil {
			return err
		}
		byID := map[uuid.UUID]*Session{}
		var all []uuid.UUID
		size := 0
		err := s.query(ctx, c, selectSessions+where, into(func(v *Session) error {
			list, all = append(list, v), append(all, v.ID)
			byID[v.ID] = v
			if size += len(v.UserAgent) + len(v.Tag) + 300; size >= BatchBytes {
				return ErrEnough
			}
			return nil
		}, func(v *Session) []any {
			return []any{uid(&v.ID), uid(&v.UserID), uid(&v.FactorID), at(&v.CreatedAt), at(&v.RefreshedAt),
				at(&v.NotAfter), &v.AAL, str(&v.UserAgent), str(&v.IP), str(&v.Tag), &v.Version, str(&v.Key), &v.Counter,
				at(&v.Clock), &v.Reason}
		}), args...)
		if err != nil || len(all) == 0 {
			return err
		}
		if err := s.newestTokens(ctx, c, all, byID); err != nil {
			return err
		}
		return s.query(ctx, c, selectClaims, func(r pgx.Rows) error {
			var session uuid.UUID
			var claim Claim
			err := r.Scan(uid(&session), &claim.Method, at(&claim.At))
			if v := byID[session]; v != nil {
				v.AMR = append(v.AMR, claim)
			}
			return err
		}, ids(all))
	})
	if err != nil {
		return nil, err
	}
	for _, v := range list {
		v.settle()
	}
	return list, nil
}

// newestTokens reads, for each session, the newest one of its refresh tokens that are not revoked.
func (s *Source) newestTokens(ctx context.Context, c *pgx.Conn, all []uuid.UUID, byID map[uuid.UUID]*Session) error {
	newest := map[uuid.UUID]int64{}
	return s.query(ctx, c, selectTokens, func(r pgx.Rows) error {
		var session uuid.UUID
		var number int64
		var token string
		var written time.Time
		if err := r.Scan(uid(&session), &number, str(&token), at(&written)); err != nil {
			return err
		}
		if n, seen := newest[session]; !seen || number > n {
			newest[session] = number
			v := byID[session]
			v.Token, v.TokenAt = token, written
		}
		return nil
	}, ids(all))
}

// settle decides which token of the session is valid, if any.
func (v *Session) settle() {
	if v.Version == 2 {
		_, readable := SessionKey(v.Key)
		if _, sealed := ParseEncrypted(v.Key); v.Counter < 0 || !readable && !sealed {
			v.Version = 0
		}
		v.Token, v.TokenAt = "", time.Time{}
	} else if t, ok := ParseToken(v.Token); ok && t.Version == 1 {
		v.Version = 1
	}
	if v.Version == 0 && v.Reason == "" {
		v.Reason = NoToken
	}
}

package store

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// The carried columns of each table, in the order in which they are copied.
var (
	carriedUser = strings.Fields(`id aud role email phone password_hash is_anonymous app_metadata user_metadata created_at updated_at
		last_sign_in_at email_confirmed_at phone_confirmed_at invited_at banned_until deleted_at confirmation_sent_at
		recovery_sent_at email_change_sent_at phone_change_sent_at reauthentication_sent_at new_email new_phone
		current_email_proven new_email_proven`)
	carriedIdentity = strings.Fields(
		`id user_id provider provider_id email identity_data last_sign_in_at created_at updated_at`)
	carriedFactor = strings.Fields(`id user_id kind friendly_name phone secret last_step created_at updated_at verified_at
		last_challenged_at`)
	carriedSession = strings.Fields(`id user_id created_at secret_hash counter refreshed_at user_agent ip aal amr tag factor_id
		not_after`)
	carriedToken = strings.Fields(`id user_id kind address link_hash flow_id identity_id password_hash user_metadata created_at
		expires_at`)
	carriedFlow = strings.Fields(`id user_id method challenge challenge_method created_at expires_at`)
)

func columns(alias string, names []string) string { return alias + strings.Join(names, ", "+alias) }

// assign returns the assignments after "do update set": every column but the id.
func assign(names []string) string {
	var parts []string
	for _, n := range names[1:] {
		parts = append(parts, n+" = excluded."+n)
	}
	return strings.Join(parts, ", ")
}

// staging is a temporary table with some columns of a table. It is dropped at the end of the transaction, so that a
// pooler's next client does not see it.
type staging struct {
	name    string
	columns []string
	create  statement
}

func stage(name, table string, names []string) staging {
	return staging{name, names, define("create temporary table " + name + " on commit drop as select " +
		strings.Join(names, ", ") + " from {" + table + "} with no data")}
}

var (
	stageUsers      = stage("carried_users", "users", carriedUser)
	stageIdentities = stage("carried_identities", "identities", carriedIdentity)
	stageFactors    = stage("carried_factors", "factors", carriedFactor)
	stageSessions   = stage("carried_sessions", "sessions", carriedSession)
	stageFormer     = stage("carried_former", "former_tokens", []string{"token_mac", "session_id"})
	stageTokens     = stage("carried_tokens", "one_time_tokens", carriedToken)
	stageFlows      = stage("carried_flows", "flows", carriedFlow)
)

// copyRows creates the temporary table and fills it with n rows.
func (c *Carrier) copyRows(ctx context.Context, into staging, n int, row func(i int) []any) error {
	if _, err := c.t.tx.Exec(ctx, c.t.db.sql[into.create]); err != nil {
		return err
	}
	_, err := c.t.tx.CopyFrom(ctx, pgx.Identifier{"pg_temp", into.name}, into.columns,
		pgx.CopyFromSlice(n, func(i int) ([]any, error) { return encodeUUIDs(row(i)), nil }))
	return err
}

// insertRows copies n rows into a temporary table, from which the statement insert writes them.
func (c *Carrier) insertRows(ctx context.Context, insert statement, from staging, n int,
	row func(i int) []any) (int64, error) {
	if err := c.copyRows(ctx, from, n, row); err != nil {
		return 0, err
	}
	return c.t.exec(ctx, insert)
}

// jsonOrNull returns JSON text as a value to copy.
func jsonOrNull(b json.RawMessage) any {
	if len(b) == 0 {
		return nil
	}
	return []byte(b)
}

func userValues(u *User) []any {
	return []any{u.ID, u.Aud, u.Role, u.Email, u.Phone, u.PasswordHash, u.IsAnonymous, jsonOrNull(u.AppMetadata),
		jsonOrNull(u.UserMetadata), u.CreatedAt, u.UpdatedAt, timeOrNull(u.LastSignInAt),
		timeOrNull(u.EmailConfirmedAt),
		timeOrNull(u.PhoneConfirmedAt), timeOrNull(u.InvitedAt), timeOrNull(u.BannedUntil), timeOrNull(u.DeletedAt),
		timeOrNull(u.ConfirmationSentAt), timeOrNull(u.RecoverySentAt), timeOrNull(u.EmailChangeSentAt),
		timeOrNull(u.PhoneChangeSentAt), timeOrNull(u.ReauthenticationSentAt), u.NewEmail, u.NewPhone,
		u.CurrentEmailProven, u.NewEmailProven}
}

// CarriedUser is a user with the pending sign-up, if there is one.
type CarriedUser struct {
	User
	Pending *Token
}

// Written is the outcome of a batch of rows.
type Written struct {
	// Added rows are new, Updated rows existed, Removed rows were deleted because another user has the address. The
	// other rows, and the Removed rows, are left for the next run.
	Added, Updated, Removed int64
}

var insertCarriedUsers = define(`
insert into {users} (` + columns("", carriedUser) + `)
select ` + columns("c.", carriedUser) + ` from carried_users c
on conflict do nothing
returning true, id`)

// Of two users with one address the existing user stays; of two new users, the user with the smaller id. The conditions
// are separate so that they can use the partial indexes.
var removeTakenUsers = define(`
with second as (
    select id from (
        select id, email <> '' and row_number() over (partition by aud, email order by id) > 1
            or phone <> '' and row_number() over (partition by aud, phone order by id) > 1 as later
        from carried_users) v
    where later
), taken as (
    delete from carried_users c
    where c.id in (select id from second)
        or c.email <> '' and exists (select from {users} u where u.aud = c.aud and u.email = c.email and u.email <> '' and u.id <> c.id)
        or c.phone <> '' and exists (select from {users} u where u.aud = c.aud and u.phone = c.phone and u.phone <> '' and u.id <> c.id)
    returning c.id
)
delete from {users} u using taken t where u.id = t.id`)

var upsertCarriedUsers = define(`
insert into {users} (` + columns("", carriedUser) + `)
select ` + columns("c.", carriedUser) + ` from carried_users c
on conflict (id) do update set ` + assign(carriedUser) + `
returning xmax = 0, id`)

// A user's sign-up is written together with the user, and again when the user changes.
var deletePendingTokens = define(`
delete from {one_time_tokens} t using carried_users c where t.user_id = c.id and t.link_hash is null`)

var insertCarriedTokens = define(`
insert into {one_time_tokens} (` + columns("", carriedToken) + `)
select ` + columns("c.", carriedToken) + ` from carried_tokens c join {users} u on u.id = c.user_id
on conflict do nothing`)

// Users writes users with their pending sign-ups. fresh says that none of the users exists yet, which is faster.
func (c *Carrier) Users(ctx context.Context, list []CarriedUser, fresh bool) (w Written, err error) {
	if err := c.copyRows(ctx, stageUsers, len(list), func(i int) []any {
		return userValues(&list[i].User)
	}); err != nil {
		return w, err
	}
	write := insertCarriedUsers
	if !fresh {
		write = upsertCarriedUsers
		if w.Removed, err = c.t.exec(ctx, removeTakenUsers); err != nil {
			return w, err
		}
		if _, err := c.t.exec(ctx, deletePendingTokens); err != nil {
			return w, err
		}
	}
	written := map[uuid.UUID]bool{}
	var id uuid.UUID
	if err := c.count(ctx, write, &w, func() { written[id] = true }, (*nullUUID)(&id)); err != nil {
		return w, err
	}
	var tokens []NewToken
	for i := range list {
		if t := list[i].Pending; t != nil && written[list[i].ID] {
			tokens = append(tokens, NewToken{Token: *t})
		}
	}
	return w, c.tokens(ctx, tokens)
}

// count runs a statement that returns for each row whether it was added, and further columns, and counts the rows.
func (c *Carrier) count(ctx context.Context, s statement, w *Written, each func(), more ...any) error {
	rows, err := c.t.tx.Query(ctx, c.t.db.sql[s])
	if err != nil {
		return err
	}
	return eachRow(rows, func(r pgx.Rows) error {
		var added bool
		if err := r.Scan(append([]any{&added}, more...)...); err != nil {
			return err
		}
		if each(); added {
			w.Added++
		} else {
			w.Updated++
		}
		return nil
	})
}

func (c *Carrier) tokens(ctx context.Context, tokens []NewToken) error {
	if len(tokens) == 0 {
		return nil
	}
	_, err := c.insertRows(ctx, insertCarriedTokens, stageTokens, len(tokens), func(i int) []any {
		t := &tokens[i]
		return []any{t.ID, t.User, string(t.Kind), t.Address, bytesOrNull(t.LinkHash), uuidOrNull(t.Flow),
			uuidOrNull(t.Identity), t.PasswordHash, jsonOrNull(t.UserMetadata), t.CreatedAt, t.ExpiresAt}
	})
	return err
}

var insertCarriedIdentities = define(`
insert into {identities} (` + columns("", carriedIdentity) + `)
select ` + columns("c.", carriedIdentity) + ` from carried_identities c join {users} u on u.id = c.user_id
on conflict do nothing`)

// Identities writes identities whose users exist. Changed identities were deleted before.
func (c *Carrier) Identities(ctx context.Context, list []Identity) (w Written, err error) {
	w.Added, err = c.insertRows(ctx, insertCarriedIdentities, stageIdentities, len(list), func(n int) []any {
		i := &list[n]
		return []any{i.ID, i.UserID, i.Provider, i.ProviderID, i.Email, []byte(i.Data), timeOrNull(i.LastSignInAt),
			i.CreatedAt, i.UpdatedAt}
	})
	return w, err
}

var insertCarriedFactors = define(`
insert into {factors} (` + columns("", carriedFactor) + `)
select ` + columns("c.", carriedFactor) + ` from carried_factors c join {users} u on u.id = c.user_id
on conflict do nothing`)

// Factors writes factors whose users exist. Changed factors were deleted before.
func (c *Carrier) Factors(ctx context.Context, list []CarriedFactor) (w Written, err error) {
	w.Added, err = c.insertRows(ctx, insertCarriedFactors, stageFactors, len(list), func(i int) []any {
		f := &list[i]
		return []any{f.ID, f.UserID, string(f.Kind), f.FriendlyName, f.Phone, bytesOrNull(f.Secret), int64(0),
			f.CreatedAt, f.UpdatedAt, f.VerifiedAt, timeOrNull(f.LastChallengedAt)}
	})
	var credentials []CarriedCredential
	for i := range list {
		if v := list[i].Credential; v != nil {
			credentials = append(credentials, *v)
		}
	}
	if err == nil && len(credentials) > 0 {
		_, err = c.Credentials(ctx, credentials)
	}
	return w, err
}

// If a session's factor was not carried, the session keeps its level.
var upsertCarriedSessions = define(`
insert into {sessions} (` + columns("", carriedSession) + `)
select ` + strings.Replace(columns("c.", carriedSession), "c.factor_id", "f.id", 1) + `
from carried_sessions c join {users} u on u.id = c.user_id left join {factors} f on f.id = c.factor_id
on conflict (id) do update set ` + assign(carriedSession) + `
returning xmax = 0`)

var deleteCarriedFormer = define(`
delete from {former_tokens} t using carried_sessions c where t.session_id = c.id`)

var insertCarriedFormer = define(`
insert into {former_tokens} (token_mac, session_id)
select c.token_mac, c.session_id from carried_former c join {sessions} s on s.id = c.session_id
on conflict (token_mac) do update set session_id = excluded.session_id`)

// Sessions writes sessions whose users exist, with the MACs that find them by their tokens.
func (c *Carrier) Sessions(ctx context.Context, list []CarriedSession, fresh bool) (w Written, err error) {
	if err := c.copyRows(ctx, stageSessions, len(list), func(i int) []any {
		s := &list[i]
		return []any{s.ID, s.UserID, s.CreatedAt, s.SecretHash[:], int64(0), s.RefreshedAt, s.UserAgent, s.IP,
			int16(s.AAL), []byte(s.AMR), s.Tag, uuidOrNull(s.FactorID), timeOrNull(s.NotAfter)}
	}); err != nil {
		return w, err
	}
	if err := c.count(ctx, upsertCarriedSessions, &w, func() {}); err != nil {
		return w, err
	}
	if !fresh {
		if _, err := c.t.exec(ctx, deleteCarriedFormer); err != nil {
			return w, err
		}
	}
	var former [][]any
	for i := range list {
		if s := &list[i]; s.TokenMAC != nil {
			former = append(former, []any{s.TokenMAC, pgtype.UUID{Bytes: s.ID, Valid: true}})
		}
	}
	if len(former) == 0 {
		return w, nil
	}
	_, err = c.insertRows(ctx, insertCarriedFormer, stageFormer, len(former), func(i int) []any { return former[i] })
	return w, err
}

var deleteCarriedLinks = define(`
delete from {one_time_tokens} where link_hash is not null`)

var deleteCarriedFlows = define(`
delete from {flows}`)

// DeleteLinks removes all carried links and the flows that they continue: the last run writes both again.
func (c *Carrier) DeleteLinks(ctx context.Context) error {
	if _, err := c.t.exec(ctx, deleteCarriedLinks); err != nil {
		return err
	}
	_, err := c.t.exec(ctx, deleteCarriedFlows)
	return err
}

var insertCarriedFlows = define(`
insert into {flows} (` + columns("", carriedFlow) + `)
select ` + columns("c.", carriedFlow) + ` from carried_flows c join {users} u on u.id = c.user_id
on conflict (id) do nothing`)

// Links writes links and the flows that they continue.
func (c *Carrier) Links(ctx context.Context, tokens []NewToken, flows []Flow) error {
	if len(flows) > 0 {
		_, err := c.insertRows(ctx, insertCarriedFlows, stageFlows, len(flows), func(i int) []any {
			f := &flows[i]
			return []any{f.ID, f.User, f.Method, f.Challenge, f.ChallengeMethod, f.CreatedAt, f.ExpiresAt}
		})
		if err != nil {
			return err
		}
	}
	return c.tokens(ctx, tokens)
}

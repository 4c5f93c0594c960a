package store

import (
	"context"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// staging describes a temporary table with columns of one of our tables. Rows are copied into the temporary table, and
// from there inserted into ours. The temporary table is dropped at the end of the transaction, so that the next client
// of a pooler does not see it.
type staging struct {
	table          string
	columns        []string
	create, insert statement
}

// stage returns the staging of a table. columns is a list such as userColumns. rest is the end of the statement that
// inserts the rows into our table (see inserting).
func stage(table, columns, rest string) staging {
	names := namesOf(columns)
	create := define("create temporary table carried_" + table + " on commit drop as select " +
		strings.Join(names, ", ") + " from {" + table + "} with no data")
	return staging{table: table, columns: names, create: create}.inserting(rest)
}

// inserting returns a staging whose insert statement inserts the rows of the temporary table, which has the alias c,
// and ends with rest. In rest, {replace} stands for the assignments that replace an existing row. If there is a column
// factor_id, rest must join our table factors as f, so that factor_id is set to null if the factor was not copied.
func (s staging) inserting(rest string) staging {
	replace := make([]string, len(s.columns)-1)
	for i, name := range s.columns[1:] {
		replace[i] = name + " = excluded." + name
	}
	s.insert = define("insert into {" + s.table + "} (" + strings.Join(s.columns, ", ") + ")\nselect " +
		strings.Replace("c."+strings.Join(s.columns, ", c."), "c.factor_id", "f.id", 1) + " from carried_" + s.table +
		" c" + strings.Replace(rest, "{replace}", strings.Join(replace, ", "), 1))
	return s
}

// ofUsers is the end of an insert statement for rows of users. It skips rows whose user does not exist and rows that
// conflict with existing rows.
const ofUsers = ` join {users} u on u.id = c.user_id
on conflict do nothing`

var (
	// freshUsers is the staging for users who are all new. It is faster than carriedUsers, since it replaces no
	// existing rows.
	freshUsers = stage("users", userColumns, `
on conflict do nothing
returning true, id`)
	carriedUsers = freshUsers.inserting(`
on conflict (id) do update set {replace}
returning xmax = 0, id`)
	carriedIdentities = stage("identities", identityColumns, ofUsers)
	carriedFactors    = stage("factors", carriedFactorColumns, ofUsers)
	// A session whose factor was not copied keeps its level.
	carriedSessions = stage("sessions", sessionColumns+", s.secret_hash", `
join {users} u on u.id = c.user_id left join {factors} f on f.id = c.factor_id
on conflict (id) do update set {replace}`)
	carriedFormer = stage("former_tokens", "token_mac, session_id", ` join {sessions} s on s.id = c.session_id
on conflict (token_mac) do update set {replace}`)
	carriedTokens = stage("one_time_tokens", tokenColumns+", t.link_hash", ofUsers)
	carriedFlows  = stage("flows", "id, user_id, method, challenge, challenge_method, created_at, expires_at", ofUsers)
	// A security key's credential is inserted only if its factor exists.
	carriedCredentials = stage("webauthn_credentials", credentialColumns, `
join {users} u on u.id = c.user_id left join {factors} f on f.id = c.factor_id
where c.factor_id is null or f.id is not null
on conflict do nothing`)
)

// CarriedUser is a user that a takeover copies, with the pending sign-up if there is one.
type CarriedUser struct {
	User
	Pending *Token
}

// removeTakenUsers removes users whose address another user has. An existing user keeps the address; of two users in
// the batch, the one with the smaller id keeps it. The conditions on email and phone are separate so that PostgreSQL
// can use the partial indexes.
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

// deletePendingTokens deletes the pending sign-ups of the users in the batch, which are written again with the users.
var deletePendingTokens = define(`
delete from {one_time_tokens} t using carried_users c where t.user_id = c.id and t.link_hash is null`)

// copyRows creates the temporary table of the staging into, and copies a list into the table.
func copyRows[T any](ctx context.Context, c *Carrier, into staging, list []T, targets func(*T) []any) error {
	if err := c.t.run(ctx, into.create); err != nil {
		return err
	}
	_, err := c.t.tx.CopyFrom(ctx, pgx.Identifier{"pg_temp", "carried_" + into.table}, into.columns,
		pgx.CopyFromSlice(len(list), func(i int) ([]any, error) { return valuesOf(targets(&list[i])), nil }))
	return err
}

// carry writes a list to our table through the temporary table. It does nothing if the list is empty.
func carry[T any](ctx context.Context, c *Carrier, by staging, list []T, targets func(*T) []any) error {
	if len(list) == 0 {
		return nil
	}
	if err := copyRows(ctx, c, by, list, targets); err != nil {
		return err
	}
	return c.t.run(ctx, by.insert)
}

// Users writes users and their pending sign-ups. added is how many of them are new. removed is how many were removed
// because another user has the address; the next run tries to write them again. If fresh is true, none of the users may
// exist already.
func (c *Carrier) Users(ctx context.Context, list []CarriedUser, fresh bool) (added, removed int64, err error) {
	into := carriedUsers
	if fresh {
		into = freshUsers
	}
	if err := copyRows(ctx, c, into, list, func(u *CarriedUser) []any { return userTargets(&u.User) }); err != nil {
		return 0, 0, err
	}
	if !fresh {
		if removed, err = c.t.exec(ctx, removeTakenUsers); err != nil {
			return 0, 0, err
		}
		if err := c.t.run(ctx, deletePendingTokens); err != nil {
			return 0, 0, err
		}
	}
	written := map[uuid.UUID]bool{}
	err = c.t.query(ctx, func(r pgx.Rows) error {
		var isNew bool
		var id uuid.UUID
		err := scanRow(r, []any{&isNew, &id})
		if written[id] = true; isNew {
			added++
		}
		return err
	}, into.insert)
	if err != nil {
		return 0, 0, err
	}
	var tokens []NewToken
	for i := range list {
		if t := list[i].Pending; t != nil && written[list[i].ID] {
			tokens = append(tokens, NewToken{Token: *t})
		}
	}
	return added, removed, c.tokens(ctx, tokens)
}

func (c *Carrier) tokens(ctx context.Context, list []NewToken) error {
	return carry(ctx, c, carriedTokens, list, func(t *NewToken) []any {
		return append(tokenTargets(&t.Token), &t.LinkHash)
	})
}

// Identities writes identities, whose users must exist. Before, the caller must delete the stored identities that have
// changed in the source.
func (c *Carrier) Identities(ctx context.Context, list []Identity) error {
	return carry(ctx, c, carriedIdentities, list, identityTargets)
}

// Factors writes factors with their credentials. Their users must exist. Before, the caller must delete the stored
// factors that have changed in the source.
func (c *Carrier) Factors(ctx context.Context, list []CarriedFactor) error {
	if err := carry(ctx, c, carriedFactors, list, carriedFactorTargets); err != nil {
		return err
	}
	var credentials []Credential
	for _, f := range list {
		if f.Credential != nil {
			credentials = append(credentials, *f.Credential)
		}
	}
	return c.Credentials(ctx, credentials)
}

// Credentials writes credentials, whose users and factors must exist. Before, the caller must delete the stored
// credentials that have changed in the source.
func (c *Carrier) Credentials(ctx context.Context, list []Credential) error {
	return carry(ctx, c, carriedCredentials, list, credentialTargets)
}

var deleteCarriedFormer = define(`
delete from {former_tokens} t using carried_sessions c where t.session_id = c.id`)

// Sessions writes sessions, whose users must exist, and the MACs of their refresh tokens. If fresh is true, none of the
// sessions may exist already.
func (c *Carrier) Sessions(ctx context.Context, list []CarriedSession, fresh bool) error {
	err := carry(ctx, c, carriedSessions, list, func(s *CarriedSession) []any {
		hash := s.SecretHash[:]
		return append(sessionTargets(&s.Session), &hash)
	})
	if err == nil && !fresh {
		err = c.t.run(ctx, deleteCarriedFormer)
	}
	if err != nil {
		return err
	}
	former := slices.DeleteFunc(slices.Clone(list), func(s CarriedSession) bool { return s.TokenMAC == nil })
	return carry(ctx, c, carriedFormer, former, func(s *CarriedSession) []any { return []any{&s.TokenMAC, &s.ID} })
}

var deleteCarriedLinks = define(`
delete from {one_time_tokens} where link_hash is not null`)

var deleteCarriedFlows = define(`
delete from {flows}`)

// DeleteLinks deletes all links that were copied and their PKCE flows. The last run of the takeover writes them again.
func (c *Carrier) DeleteLinks(ctx context.Context) error {
	if err := c.t.run(ctx, deleteCarriedLinks); err != nil {
		return err
	}
	return c.t.run(ctx, deleteCarriedFlows)
}

// Links writes links and the PKCE flows that they continue.
func (c *Carrier) Links(ctx context.Context, tokens []NewToken, flows []Flow) error {
	err := carry(ctx, c, carriedFlows, flows, func(f *Flow) []any {
		return []any{&f.ID, &f.User, &f.Method, &f.Challenge, &f.ChallengeMethod, &f.CreatedAt, &f.ExpiresAt}
	})
	if err != nil {
		return err
	}
	return c.tokens(ctx, tokens)
}

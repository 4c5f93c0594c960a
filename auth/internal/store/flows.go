package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Flow is a PKCE flow: after a link or a sign-in at a provider, the browser gets a code. A client that knows the
// verifier exchanges the code for a session.
type Flow struct {
	ID, User uuid.UUID
	// Method is the authentication method that the session's amr will have.
	Method string
	// Challenge is the PKCE code challenge, ChallengeMethod its method: s256 or plain.
	Challenge, ChallengeMethod string
	// IssuedAt is when the code was issued; zero if it was not issued yet.
	IssuedAt, CreatedAt, ExpiresAt time.Time

	// Provider is the name of the external provider if the flow is a sign-in at one. ProviderTokens are this provider's
	// tokens, sealed under the root key.
	Provider       string
	ProviderTokens []byte
	// AAL and AMR are the level and the methods of the session that the new session continues; 0 and nil if there is
	// none.
	AAL int
	AMR json.RawMessage

	// Linked is the sealed profile of an identity that is linked when the code is exchanged; nil if the flow is a
	// sign-in. LinkingSession is the session in which the user requested the linking, LinkingAAL its level at that
	// time.
	Linked         []byte
	LinkingSession uuid.UUID
	LinkingAAL     int

	// UsedAt is when the code was first exchanged, Session is the session that this exchange has opened. Only TakeFlow
	// reads these fields.
	UsedAt  time.Time
	Session uuid.UUID
	// Void is true if the user's sessions were ended after the code was issued. Only TakeFlow reads this field.
	Void bool
}

var insertFlow = define(`
insert into {flows} (id, user_id, method, challenge, challenge_method, created_at, expires_at)
select $1, $2, $3, $4, $5, $6, $7
where $2::uuid is null or exists (select from {users} where id = $2 and deleted_at is null)`)

// InsertFlow adds a flow whose code is not issued yet. It has no effect if the flow's user does not exist.
func (b *Batch) InsertFlow(f Flow) {
	b.exec("insert flow", insertFlow, f.ID, uuidOrNull(f.User), f.Method, f.Challenge, f.ChallengeMethod, f.CreatedAt,
		f.ExpiresAt)
}

const flowColumns = `
    f.id, f.user_id, f.method, f.challenge, f.challenge_method, f.issued_at, f.created_at, f.expires_at,
    f.provider, f.provider_tokens, f.aal, f.amr, f.linked_profile, f.linking_session, f.linking_aal`

var selectFlow = define(`
select ` + flowColumns + `
from {flows} f
where f.id = $1`)

// Flow reads a flow by its id.
func (b *Batch) Flow(dst *Flow, id uuid.UUID) { b.row("flow", dst, flowTargets(dst), selectFlow, id) }

func flowTargets(f *Flow) []any {
	return []any{&f.ID, &f.User, &f.Method, &f.Challenge, &f.ChallengeMethod, &f.IssuedAt, &f.CreatedAt, &f.ExpiresAt,
		&f.Provider, &f.ProviderTokens, &f.AAL, &f.AMR, &f.Linked, &f.LinkingSession, &f.LinkingAAL}
}

var insertIssuedFlow = define(insertInto("{flows}", flowColumns+", code_hash"))

// InsertIssuedFlow adds a flow of a sign-in at a provider, together with its code.
func (b *Batch) InsertIssuedFlow(f Flow, codeHash []byte) {
	f.CreatedAt = f.IssuedAt
	b.exec("insert issued flow", insertIssuedFlow, valuesOf(append(flowTargets(&f), &codeHash))...)
}

var issueCode = define(`
update {flows} set code_hash = $2, issued_at = $3, user_id = $4 where id = $1 and code_hash is null`)

// IssueCode sets the code and the user of a flow that has no code yet.
func (b *Batch) IssueCode(flow uuid.UUID, codeHash []byte, now time.Time, user uuid.UUID) {
	b.exec("issue code", issueCode, flow, codeHash, now, user)
}

// takeFlow locks the user before the flow, as all statements do to avoid deadlocks, and reads the flow as the previous
// holder of the lock has left it. In a flow that is marked as used, the hash of the code is replaced by the hash of
// this hash, and the secrets are deleted.
var takeFlow = define(`
with live as materialized (
    select f.*, u.sessions_void_before
    from {flows} f join {users} u on u.id = f.user_id
    where f.code_hash = any(array[$1::bytea, sha256($1::bytea)])
    for no key update of u for update of f
), used as (
    update {flows} f set used_at = $2, session_id = $3, code_hash = sha256(f.code_hash), provider_tokens = null, linked_profile = null
    from live where f.id = live.id and live.used_at is null
)
select ` + flowColumns + `, f.used_at, f.session_id, coalesce(f.issued_at < f.sessions_void_before, false)
from live f`)

// TakeFlow locks the user and the flow of a code, and marks the flow as used by session. It returns the flow as it was
// before. The error is ErrNotFound if there is no flow with this code. The caller must check whether the code has
// expired, since an expired flow is kept until Sweep deletes it.
func (t *Tx) TakeFlow(ctx context.Context, codeHash []byte, session uuid.UUID, now time.Time) (Flow, error) {
	var f Flow
	b := t.Batch()
	b.row("take flow", &f, append(flowTargets(&f), &f.UsedAt, &f.Session, &f.Void), takeFlow, codeHash, now, session)
	if err := b.Send(ctx); err != nil {
		return f, err
	}
	if f.ID == uuid.Nil {
		return f, t.db.wrapError("take flow", ErrNotFound)
	}
	return f, nil
}

var deleteFlows = define(`
delete from {flows} where user_id = $1 and used_at is null`)

// DeleteFlows deletes a user's flows, except used ones, which are kept so that a code that is sent again is recognized.
func (b *Batch) DeleteFlows(user uuid.UUID) { b.exec("delete flows", deleteFlows, user) }

package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Flow is a PKCE flow: the link or provider gives the browser a code, and whoever knows the
// verifier gets the session for it.
type Flow struct {
	ID, User uuid.UUID
	// Method becomes the session's amr.
	Method string
	// Challenge is compared as ChallengeMethod says: s256 or plain.
	Challenge, ChallengeMethod string
	// IssuedAt is when the code was given out; zero: not yet.
	IssuedAt, CreatedAt, ExpiresAt time.Time

	// Of a flow that came from a provider: its name, and its tokens, sealed.
	Provider       string
	ProviderTokens []byte
	// AAL and AMR are those of a session that goes on in the new one; 0 and nil: none does.
	AAL int
	AMR json.RawMessage
}

var insertFlow = define(`
insert into {flows} (id, user_id, method, challenge, challenge_method, created_at, expires_at)
select $1, $2, $3, $4, $5, $6, $7
where $2::uuid is null or exists (select from {users} where id = $2)`)

// InsertFlow begins a flow; without effect when its user doesn't exist.
func (b *Batch) InsertFlow(f Flow) {
	b.exec("insert flow", insertFlow, f.ID, nullID(f.User), f.Method, f.Challenge, f.ChallengeMethod, f.CreatedAt, f.ExpiresAt)
}

const flowColumns = `
    f.id, f.user_id, f.method, f.challenge, f.challenge_method, f.issued_at, f.created_at, f.expires_at,
    f.provider, f.provider_tokens, f.aal, f.amr`

var selectFlow = define(`
select ` + flowColumns + `
from {flows} f
where f.id = $1`)

// Flow reads a flow.
func (b *Batch) Flow(dst *Flow, id uuid.UUID) {
	*dst = Flow{}
	b.rows("flow", func(r pgx.Rows) error { return r.Scan(flowTargets(dst)...) }, selectFlow, id)
}

func flowTargets(f *Flow) []any {
	return []any{(*id)(&f.ID), (*id)(&f.User), &f.Method, &f.Challenge, &f.ChallengeMethod, (*at)(&f.IssuedAt), (*at)(&f.CreatedAt), (*at)(&f.ExpiresAt),
		&f.Provider, (*raw)(&f.ProviderTokens), (*small)(&f.AAL), (*raw)(&f.AMR)}
}

var insertIssuedFlow = define(`
insert into {flows} (id, user_id, method, challenge, challenge_method, code_hash, issued_at, created_at, expires_at,
    provider, provider_tokens, aal, amr)
values ($1, $2, $3, $4, $5, $6, $7, $7, $8, $9, $10, $11, $12)`)

// InsertIssuedFlow adds a flow that came from a provider, with its code.
func (b *Batch) InsertIssuedFlow(f Flow, codeHash []byte) {
	b.exec("insert issued flow", insertIssuedFlow, f.ID, f.User, f.Method, f.Challenge, f.ChallengeMethod, codeHash, f.IssuedAt, f.ExpiresAt,
		f.Provider, nullBytes(f.ProviderTokens), f.AAL, nullBytes(f.AMR))
}

var issueCode = define(`
update {flows} set code_hash = $2, issued_at = $3, user_id = coalesce(user_id, $4) where id = $1 and code_hash is null`)

// IssueCode gives a flow its code, once, and its user if it had none.
func (b *Batch) IssueCode(flow uuid.UUID, codeHash []byte, now time.Time, user uuid.UUID) {
	b.exec("issue code", issueCode, flow, codeHash, now, nullID(user))
}

var takeFlow = define(`
delete from {flows} f where f.code_hash = $1
returning ` + flowColumns)

// TakeFlow consumes the flow that a code belongs to. ErrNotFound: no such code, or not any more.
func (t *Tx) TakeFlow(ctx context.Context, codeHash []byte) (Flow, error) {
	var f Flow
	b := t.Batch()
	b.rows("take flow", func(r pgx.Rows) error { return r.Scan(flowTargets(&f)...) }, takeFlow, codeHash)
	if err := b.Send(ctx); err != nil {
		return f, err
	}
	if f.ID == uuid.Nil {
		return f, t.db.failure("take flow", ErrNotFound)
	}
	return f, nil
}

var deleteFlows = define(`
delete from {flows} where user_id = $1`)

// DeleteFlows ends a user's flows.
func (b *Batch) DeleteFlows(user uuid.UUID) { b.exec("delete flows", deleteFlows, user) }

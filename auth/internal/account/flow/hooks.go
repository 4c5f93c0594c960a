package flow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// KindAfterCreate is the kind of the outbox message that calls the operator's hook after a user was created.
const KindAfterCreate = "after-user-created"

// Created is the payload of a message of KindAfterCreate.
type Created struct {
	User uuid.UUID `json:"user"`
	IP   string    `json:"ip,omitempty"`
}

// createdLife is how long the outbox tries to deliver a message of KindAfterCreate.
const createdLife = 24 * time.Hour

// HookIP returns the client's address for the payload of a message on channel if a hook delivers it, else "". The
// address is kept only as long as the message.
func (s *Settings) HookIP(channel string, req RequestInfo) string {
	if !s.Hooks.Sends[channel] {
		return ""
	}
	return req.IP
}

// sendNowLife is how long the outbox leaves a message to the request that delivers it before its answer (SendNow).
// After that the outbox delivers the message, since the request may have died.
const sendNowLife = time.Minute

// HoldForSendNow returns m, delayed in the outbox by sendNowLife if the request itself delivers it.
func (s *Settings) HoldForSendNow(m store.NewMessage) store.NewMessage {
	if s.Hooks.SendNow[m.Channel] != nil {
		m.DueAt = m.At.Add(sendNowLife)
	}
	return m
}

// Creation holds what stays the same while the creation of a user is tried again.
type Creation struct {
	id      uuid.UUID
	allowed bool // the hook BeforeCreate has accepted the user
}

// NewID returns the ID of the new user. It is the same in each try, since the hook BeforeCreate may have seen it.
func (c *Creation) NewID() uuid.UUID {
	if c.id == uuid.Nil {
		c.id = uuid.New()
	}
	return c.id
}

// CheckCreation asks the hook BeforeCreate whether u may be created, only once for all tries.
func (c *Creation) CheckCreation(ctx context.Context, f *Flow, u store.User) error {
	if c.allowed {
		return nil
	}
	err := CheckCreation(ctx, f, u)
	c.allowed = err == nil
	return err
}

// CheckCreation asks the hook BeforeCreate whether u may be created. Without the hook it returns nil.
func CheckCreation(ctx context.Context, f *Flow, u store.User) error {
	if f.Settings.Hooks.BeforeCreate == nil {
		return nil
	}
	return refusal.Failure("hook before a creation", f.Settings.Hooks.BeforeCreate(ctx, f.Req.IP, u))
}

// EnqueueCreatedHook adds the statement that writes a message of KindAfterCreate for the user id. If no user was
// created, the same statement is sent for an ID that does not exist and does nothing.
func EnqueueCreatedHook(f *Flow, b *Batch, created bool, id uuid.UUID) {
	if !f.Settings.Hooks.AfterCreate {
		return
	}
	if !created {
		id = uuid.New()
	}
	b.Message(id, f.Seal(mail.ChannelHook, KindAfterCreate, Created{User: id, IP: f.Req.IP}, f.Now.Add(createdLife)))
}

// CustomClaims are the claims of an access token that the operator's hook returned.
type CustomClaims struct {
	text    []byte
	expires int64 // Unix seconds
}

// methodRefresh is the method in the hook's input when the access token is made for a refresh.
const methodRefresh = "token_refresh"

// CustomClaimsOf asks the hook of access tokens for the claims of session v. It returns nil if there is no such hook.
// method tells the hook how the session was opened; "" stands for the session's newest method.
func CustomClaimsOf(ctx context.Context, f *Flow, u store.User, v store.Session, method string) (*CustomClaims, error) {
	if f.Settings.Hooks.Claims == nil {
		return nil, nil
	}
	claims, err := f.Settings.claims(u, v, f.Now)
	if err != nil {
		return nil, err
	}
	if method == "" && len(claims.AMR) > 0 {
		method = claims.AMR[0].Method
	}
	text, err := claims.Text()
	if err != nil {
		return nil, fmt.Errorf("account: claims: %w", err)
	}
	made, err := f.Settings.Hooks.Claims(ctx, ClaimsQuestion{User: u.ID, Claims: text, Method: method, IP: f.Req.IP})
	if err != nil {
		return nil, refusal.Failure("hook of access tokens", err)
	}
	out, err := token.ParseCustom(string(made))
	if err != nil {
		return nil, &refusal.Refusal{Kind: refusal.KindFailed, Code: refusal.CodeUnexpectedFailure,
			Msg: "output claims do not conform to the expected schema", Err: err}
	}
	return &CustomClaims{text: made, expires: out.ExpiresAt}, nil
}

// CustomClaimsOfRefresh asks the hook of access tokens for the claims of a refreshed session, before its refresh token
// is rotated. If the hook is unavailable, the client keeps its refresh token and retries. Therefore every failure
// except a refusal by the hook is a 503.
func CustomClaimsOfRefresh(ctx context.Context, f *Flow, session uuid.UUID) (*CustomClaims, error) {
	if f.Settings.Hooks.Claims == nil {
		return nil, nil
	}
	u, v, err := f.Core.DB.Refreshing(ctx, session)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil // the rotation that follows reports that there is no session
	case err != nil:
		return nil, refusal.Unavailable(err, RefreshRetry)
	case v.Ended() || !u.DeletedAt.IsZero() || u.BannedUntil.After(f.Now):
		return nil, nil // the rotation that follows refuses the token
	}
	made, err := CustomClaimsOf(ctx, f, u, v, methodRefresh)
	if r, ok := errors.AsType[*refusal.Refusal](err); ok && r.Status >= 400 && r.Status < 500 && r.ByHook {
		return nil, r
	}
	if err != nil {
		return nil, refusal.Unavailable(err, RefreshRetry)
	}
	return made, nil
}

const rejectedPasswordMessage = "Further password verification attempts will be rejected."

// ReportPassword calls the operator's hook of passwords with the result of a check, if there is such a hook. If the
// hook rejects the sign-in, it returns a Refusal.
func ReportPassword(ctx context.Context, f *Flow, user uuid.UUID, right bool) error {
	if f.Settings.Hooks.Password == nil || user == uuid.Nil {
		return nil
	}
	verdict, err := f.Settings.Hooks.Password(ctx, PasswordAttempt{User: user, Valid: right, IP: f.Req.IP})
	if err != nil || !verdict.Reject {
		return err
	}
	if verdict.SignOut {
		b := f.Batch()
		b.EndSessions(store.EndSessions{User: user, Reason: store.EndedByVerdict, At: f.Now})
		if err := b.Send(ctx); err != nil {
			return err
		}
	}
	return refusal.Invalid(refusal.CodeInvalidCredentials, cmp.Or(verdict.Message, rejectedPasswordMessage))
}

// RefreshRetry is the Retry-After of a refresh that failed with a 503. The client library itself waits at least 200 ms.
const RefreshRetry = time.Second

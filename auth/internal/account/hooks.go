package account

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// Hooks are the calls into the operator's own code (docs/hooks.md); a nil one is off and costs nothing. None is made
// while a transaction is open. A hook refuses with a Refusal; any other error is a failure of the service. The hook of
// factors is FactorSettings.Attempt.
type Hooks struct {
	// BeforeCreate may refuse a new user, of whom nothing has been written yet. It is not called for users whom an
	// administrator creates or invites.
	BeforeCreate func(ctx context.Context, ip string, u store.User) error
	// AfterCreate: a message of mail.ChannelHook, whose payload is a Created, is written with each such user.
	AfterCreate bool
	// Claims may replace the claims of an access token that is about to be signed.
	Claims func(context.Context, ClaimsQuestion) (json.RawMessage, error)
	// Sends are the channels whose messages a hook delivers; these messages also carry what only a hook gets.
	Sends map[string]bool
	// SendNow delivers a message of a channel before the answer (AUTH_HOOK_SEND_SYNC); channels without it are left to
	// the outbox. A message that does not exist is not an error.
	SendNow map[string]func(ctx context.Context, message uuid.UUID) error
	// Password is called with each password that was checked for a user, and decides the outcome.
	Password func(context.Context, PasswordAttempt) (PasswordVerdict, error)
}

// KindAfterCreate is the kind of the message about a new user.
const KindAfterCreate = "after-user-created"

// Created is that message's payload.
type Created struct {
	User uuid.UUID `json:"user"`
	IP   string    `json:"ip,omitempty"`
}

// createdLife is how long the message about a new user is worth delivering.
const createdLife = 24 * time.Hour

// ClaimsQuestion holds the claims that a token would have. Method is how the session was opened, or token_refresh.
type ClaimsQuestion struct {
	User   uuid.UUID
	Claims json.RawMessage
	Method string
	IP     string
}

// PasswordAttempt is a password that was found right or wrong.
type PasswordAttempt struct {
	User  uuid.UUID
	Valid bool
	IP    string
}

// PasswordVerdict is its outcome.
type PasswordVerdict struct {
	Reject bool
	// SignOut ends all sessions of the user, with Reject only.
	SignOut bool
	Message string
}

// hookIP returns the client's address for the hook that delivers a message, "" without such a hook: it is kept no
// longer than the message is.
func (s *Settings) hookIP(channel string, req RequestInfo) string {
	if !s.Hooks.Sends[channel] {
		return ""
	}
	return req.IP
}

// sendNowLife is how long the outbox leaves a message to the request that delivers it, in case that request dies.
const sendNowLife = time.Minute

// holdForSendNow delays a message in the outbox if the request itself delivers it.
func (s *Settings) holdForSendNow(m store.NewMessage) store.NewMessage {
	if s.Hooks.SendNow[m.Channel] != nil {
		m.DueAt = m.At.Add(sendNowLife)
	}
	return m
}

// checkCreation asks the hook whether a user may be created.
func checkCreation(ctx context.Context, f *flow, u store.User) error {
	if f.settings.Hooks.BeforeCreate == nil {
		return nil
	}
	return failure("hook before a creation", f.settings.Hooks.BeforeCreate(ctx, f.req.IP, u))
}

// enqueueCreatedHook adds the message about a new user. If no user was created, the same statement does nothing.
func enqueueCreatedHook(f *flow, b *batch, created bool, id uuid.UUID) {
	if !f.settings.Hooks.AfterCreate {
		return
	}
	if !created {
		id = uuid.New()
	}
	b.message(id, f.seal(mail.ChannelHook, KindAfterCreate, Created{User: id, IP: f.req.IP}, f.now.Add(createdLife)))
}

// customClaims are claims made by a hook.
type customClaims struct {
	text    []byte
	expires int64 // Unix seconds
}

// methodRefresh is the method that a hook gets for a token that replaces another.
const methodRefresh = "token_refresh"

// customClaimsOf asks the hook of access tokens for the claims of a session; nil when it is off. If method is empty, it
// is the session's newest.
func customClaimsOf(ctx context.Context, f *flow, u store.User, v store.Session, method string) (*customClaims, error) {
	if f.settings.Hooks.Claims == nil {
		return nil, nil
	}
	claims, err := f.settings.claims(u, v, f.now)
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
	made, err := f.settings.Hooks.Claims(ctx, ClaimsQuestion{User: u.ID, Claims: text, Method: method, IP: f.req.IP})
	if err != nil {
		return nil, failure("hook of access tokens", err)
	}
	out, err := token.ParseCustom(string(made))
	if err != nil {
		return nil, &Refusal{Kind: Failed, Code: CodeUnexpectedFailure,
			Msg: "output claims do not conform to the expected schema", Err: err}
	}
	return &customClaims{text: made, expires: out.ExpiresAt}, nil
}

// customClaimsOfRefresh asks for the claims of a refreshed token before anything is rotated: if the hook is
// unavailable, the client keeps its refresh token and tries again. So anything but a refusal by the hook itself is a
// 503.
func customClaimsOfRefresh(ctx context.Context, f *flow, session uuid.UUID) (*customClaims, error) {
	if f.settings.Hooks.Claims == nil {
		return nil, nil
	}
	u, v, err := f.core.db.Refreshing(ctx, session)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil // the refresh itself reports this
	case err != nil:
		return nil, unavailable(err, refreshRetry)
	case v.Ended() || !u.DeletedAt.IsZero() || u.BannedUntil.After(f.now):
		return nil, nil // likewise
	}
	made, err := customClaimsOf(ctx, f, u, v, methodRefresh)
	if r, ok := errors.AsType[*Refusal](err); ok && r.Status >= 400 && r.Status < 500 && r.ByHook {
		return nil, r
	}
	if err != nil {
		return nil, unavailable(err, refreshRetry)
	}
	return made, nil
}

const rejectedPasswordMessage = "Further password verification attempts will be rejected."

// reportPassword reports a checked password to the hook. A verdict against it is a Refusal.
func reportPassword(ctx context.Context, f *flow, user uuid.UUID, right bool) error {
	if f.settings.Hooks.Password == nil || user == uuid.Nil {
		return nil
	}
	verdict, err := f.settings.Hooks.Password(ctx, PasswordAttempt{User: user, Valid: right, IP: f.req.IP})
	if err != nil || !verdict.Reject {
		return err
	}
	if verdict.SignOut {
		b := f.batch()
		b.EndSessions(store.EndSessions{User: user, Reason: store.EndedByVerdict, At: f.now})
		if err := b.Send(ctx); err != nil {
			return err
		}
	}
	return invalid(CodeInvalidCredentials, cmp.Or(verdict.Message, rejectedPasswordMessage))
}

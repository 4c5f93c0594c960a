package account

import (
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

// Hooks is where the operator's own code has a say (docs/hooks.md); a nil one is off and costs nothing.
// None is asked while a transaction is open. What they refuse they say with a Refusal; any other error is
// our failure. See FactorSettings.Attempt for that of factors.
type Hooks struct {
	// BeforeCreate may refuse a newcomer, of whom nothing has been written yet. Not asked for those whom an
	// administrator creates or invites.
	BeforeCreate func(ctx context.Context, ip string, u store.User) error
	// AfterCreate: a message of mail.ChannelHook, whose payload is a Created, is written with each such user.
	AfterCreate bool
	// Claims may replace the claims of an access token that is about to be signed.
	Claims func(context.Context, ClaimsQuestion) (json.RawMessage, error)
	// Sends are the channels whose messages a hook gets; they bring what only a hook is told.
	Sends map[string]bool
	// SendNow sends a message of a channel before the answer (AUTH_HOOK_SEND_SYNC); a channel without one is left
	// to the outbox. Nothing is known of a message that isn't there.
	SendNow map[string]func(ctx context.Context, message uuid.UUID) error
	// Password is told of each password that was tried for a user, and decides what comes of it.
	Password func(context.Context, PasswordAttempt) (PasswordVerdict, error)
}

// KindAfterCreate is the kind of the message that tells of a new user.
const KindAfterCreate = "after-user-created"

// Created is that message's payload.
type Created struct {
	User uuid.UUID `json:"user"`
	IP   string    `json:"ip,omitempty"`
}

// createdLife is for how long a new user is worth telling of.
const createdLife = 24 * time.Hour

// ClaimsQuestion are the claims that a token would have. Method is how the session was opened, or
// token_refresh.
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

// PasswordVerdict is what is to come of it.
type PasswordVerdict struct {
	Reject bool
	// SignOut ends all sessions of the user, with Reject only.
	SignOut bool
	Message string
}

// hookIP is the client's address for the hook that gets a message, "" where there is none: it is kept no longer
// than the message is.
func (s *Settings) hookIP(channel string, req RequestInfo) string {
	if !s.Hooks.Sends[channel] {
		return ""
	}
	return req.IP
}

// sendNowLife is how long the outbox leaves a message alone that a request sends: it takes over when that dies.
const sendNowLife = time.Minute

// holdForSendNow is a message as it is written where a request sends it.
func (s *Settings) holdForSendNow(m store.NewMessage) store.NewMessage {
	if s.Hooks.SendNow[m.Channel] != nil {
		m.DueAt = m.At.Add(sendNowLife)
	}
	return m
}

// checkCreation asks whether a user may be created. A newcomer is asked for once, however often he is tried; nil
// is nobody who could be tried again.
func checkCreation(ctx context.Context, f *flow, cand *signupCandidate, u store.User) error {
	if f.settings.Hooks.BeforeCreate == nil || cand != nil && cand.allowed {
		return nil
	}
	if err := f.settings.Hooks.BeforeCreate(ctx, f.req.IP, u); err != nil {
		return failure("hook before a creation", err)
	}
	if cand != nil {
		cand.allowed = true
	}
	return nil
}

// tell adds the message about a new user. When nobody was created the same statement does nothing.
func enqueueCreatedHook(f *flow, b *store.Batch, created bool, id uuid.UUID) {
	if !f.settings.Hooks.AfterCreate {
		return
	}
	if !created {
		id = uuid.New()
	}
	m := f.seal(mail.ChannelHook, KindAfterCreate, Created{User: id, IP: f.req.IP}, f.now.Add(createdLife))
	m.User = id
	b.InsertMessage(m)
}

// customClaims are those that a hook made.
type customClaims struct {
	text    []byte
	expires int64 // Unix seconds
}

// methodRefresh is what a hook is told of a token that replaces another.
const methodRefresh = "token_refresh"

// customClaimsOf asks the hook of access tokens for the claims of a session; nil when it is off. An empty method
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
		return nil, &Refusal{Kind: Failed, Code: CodeUnexpectedFailure, Msg: "output claims do not conform to the expected schema", Err: err}
	}
	return &customClaims{text: made, expires: out.ExpiresAt}, nil
}

// customClaimsOfRefresh asks for the claims of a refreshed token before anything is rotated: a client whose hook is
// away keeps his refresh token, and comes again. So whatever isn't a hook's own no is a 503.
func customClaimsOfRefresh(ctx context.Context, f *flow, session uuid.UUID) (*customClaims, error) {
	if f.settings.Hooks.Claims == nil {
		return nil, nil
	}
	u, v, err := f.core.db.Refreshing(ctx, session)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil // and the refresh says so
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

// reportPassword tells the hook of a password that was tried. A verdict against it is a Refusal.
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
	if verdict.Message == "" {
		verdict.Message = rejectedPasswordMessage
	}
	return invalid(CodeInvalidCredentials, verdict.Message)
}

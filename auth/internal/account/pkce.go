package account

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
)

// given says that there is a challenge; check judges it (spec core-http 1.4.7).
func (c Challenge) given() bool { return c.Challenge != "" }

func (c Challenge) check() error {
	switch {
	case (c.Challenge == "") != (c.Method == ""):
		return notValid("PKCE flow requires code_challenge_method and code_challenge")
	case c.Challenge == "":
		return nil
	case len(c.Challenge) < 43 || len(c.Challenge) > 128:
		return notValid("code challenge has to be between 43 and 128 characters")
	case strings.Trim(c.Challenge, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~") != "":
		return notValid("code challenge can only contain alphanumeric characters, hyphens, periods, underscores and tildes")
	}
	switch strings.ToLower(c.Method) {
	case "s256", "plain":
		return nil
	}
	return notValid("Invalid code_challenge_method")
}

// flow begins one for a mail, or is nil without a challenge. It outlives the mail's token by as long as
// a code may wait, so that the last moment's link still leads to a session.
func (s *Settings) flow(c Challenge, method string, now time.Time) *store.Flow {
	if !c.given() {
		return nil
	}
	return &store.Flow{
		ID: uuid.New(), Method: method, Challenge: c.Challenge, ChallengeMethod: strings.ToLower(c.Method),
		CreatedAt: now, ExpiresAt: now.Add(s.Email.OTPLife + s.FlowLife),
	}
}

// idOf is the flow's id, Nil without one.
func idOf(f *store.Flow) uuid.UUID {
	if f == nil {
		return uuid.Nil
	}
	return f.ID
}

var errNoFlow = missing(CodeFlowStateNotFound, "invalid flow state, no valid flow state found")

// ExchangeCode gives the session of a code to whoever knows the verifier (spec core-http 1.13). The
// code is used up by the first try, right or wrong; but one that ends in a 503 has changed nothing, and
// may come again.
func (a *Accounts) ExchangeCode(ctx context.Context, c Client, code, verifier string) (Grant, error) {
	s, now := a.live.Load(), a.now()
	if code == "" || verifier == "" {
		return Grant{}, notValid("invalid request: both auth code and code verifier should be non-empty")
	}
	hash := codeHash(code)
	if hash == nil {
		return Grant{}, errNoFlow
	}
	var f store.Flow
	var open opening
	var u store.User
	var refusal error // commits: the code is used up
	err := a.db.InTx(ctx, func(tx *store.Tx) (err error) {
		refusal = nil
		f, err = tx.TakeFlow(ctx, hash)
		switch {
		case errors.Is(err, store.ErrNotFound):
			refusal = errNoFlow
			return nil
		case err != nil:
			return err
		case now.After(f.IssuedAt.Add(s.FlowLife)):
			refusal = unprocessable(CodeFlowStateExpired, "invalid flow state, flow state has expired")
			return nil
		case !proves(f, verifier):
			refusal = invalid(CodeBadCodeVerifier, "code challenge does not match previously saved code verifier")
			return nil
		}
		open = s.open(c, f.User, f.Method, now)
		if f.AAL > 1 {
			open.AAL, open.AMR = f.AAL, joinAMR(open.AMR, f.AMR)
		}
		u, err = tx.OpenSession(ctx, store.OpenSession{Session: open.NewSession, Audit: store.Audit{
			At: now, Action: store.ActionLogin, Actor: f.User, Session: open.ID, IP: c.IP, Traits: traits("provider_type", cmp.Or(f.Provider, "email")),
		}})
		if errors.Is(err, store.ErrNotFound) {
			refusal, err = store.ErrNotFound, nil
		}
		return err
	})
	switch {
	case err != nil:
		return Grant{}, failure("exchange a code", err)
	case errors.Is(refusal, store.ErrNotFound):
		return Grant{}, a.whyNoSession(ctx, f.User, now)
	case refusal != nil:
		return Grant{}, refusal
	}
	a.crowdOut(ctx, s, u.ID, now)
	g, err := a.grantNew(ctx, s, c, u, &open, now)
	if err != nil {
		return Grant{}, err
	}
	a.giveTokens(&g, f)
	return g, nil
}

// whyNoSession tells a banned user from one who is gone.
func (a *Accounts) whyNoSession(ctx context.Context, user uuid.UUID, now time.Time) error {
	u, err := a.db.User(ctx, user)
	switch {
	case errors.Is(err, store.ErrNotFound) || err == nil && !u.DeletedAt.IsZero():
		return errNoFlow
	case err != nil:
		return failure("user", err)
	case u.BannedUntil.After(now):
		return denied(CodeUserBanned, "User is banned")
	}
	return errNoFlow // he was all that a moment ago
}

// proves says whether a verifier belongs to a flow's challenge (RFC 7636 section 4.6).
func proves(f store.Flow, verifier string) bool {
	got := verifier
	if f.ChallengeMethod == "s256" {
		sum := sha256.Sum256([]byte(verifier))
		got = base64.RawURLEncoding.EncodeToString(sum[:])
	}
	return subtle.ConstantTimeCompare([]byte(got), []byte(f.Challenge)) == 1
}

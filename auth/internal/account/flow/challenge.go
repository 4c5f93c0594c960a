package flow

import (
	"strings"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
)

// Challenge is the PKCE code challenge (RFC 7636) that a client sends with a request. If it is empty, the client does
// not use PKCE.
type Challenge struct {
	Challenge string `json:"code_challenge"`
	Method    string `json:"code_challenge_method"`
}

// Given reports whether the client sent a challenge.
func (c Challenge) Given() bool { return c.Challenge != "" }

// Check returns a refusal if the challenge is malformed: both members or neither, 43 to 128 characters, a known method.
func (c Challenge) Check() error {
	switch {
	case (c.Challenge == "") != (c.Method == ""):
		return refusal.NotValid("PKCE flow requires code_challenge_method and code_challenge")
	case c.Challenge == "":
		return nil
	case len(c.Challenge) < 43 || len(c.Challenge) > 128:
		return refusal.NotValid("code challenge has to be between 43 and 128 characters")
	case strings.Trim(c.Challenge, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~") != "":
		return refusal.NotValid(
			"code challenge can only contain alphanumeric characters, hyphens, periods, underscores and tildes")
	}
	switch strings.ToLower(c.Method) {
	case "s256", "plain":
		return nil
	}
	return refusal.NotValid("Invalid code_challenge_method")
}

// PkceFlow returns the PKCE flow that a mail's link continues, or nil if the client sent no challenge. The flow
// outlives the mail's token by FlowLife, the life of a PKCE code, so that a link opened at the last moment still leads
// to a session.
func (s *Settings) PkceFlow(c Challenge, method string, now time.Time) *store.Flow {
	if !c.Given() {
		return nil
	}
	return &store.Flow{
		ID: uuid.New(), Method: method, Challenge: c.Challenge, ChallengeMethod: strings.ToLower(c.Method),
		CreatedAt: now, ExpiresAt: now.Add(s.Email.OTPLife + s.FlowLife),
	}
}

// IDOf returns the ID of f, or uuid.Nil if f is nil.
func IDOf(f *store.Flow) uuid.UUID {
	if f == nil {
		return uuid.Nil
	}
	return f.ID
}

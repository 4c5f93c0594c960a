package flow

import (
	"strings"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
)

// Challenge is the client's PKCE challenge; empty: none.
type Challenge struct {
	Challenge string `json:"code_challenge"`
	Method    string `json:"code_challenge_method"`
}

// Given reports whether there is a challenge.
func (c Challenge) Given() bool { return c.Challenge != "" }

// Check checks the form of a challenge.
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

// PkceFlow begins a flow for a mail; nil without a challenge. The flow outlives the mail's token by the life of a code,
// so that a link opened at the last moment still leads to a session.
func (s *Settings) PkceFlow(c Challenge, method string, now time.Time) *store.Flow {
	if !c.Given() {
		return nil
	}
	return &store.Flow{
		ID: uuid.New(), Method: method, Challenge: c.Challenge, ChallengeMethod: strings.ToLower(c.Method),
		CreatedAt: now, ExpiresAt: now.Add(s.Email.OTPLife + s.FlowLife),
	}
}

// IDOf returns the flow's ID, Nil without one.
func IDOf(f *store.Flow) uuid.UUID {
	if f == nil {
		return uuid.Nil
	}
	return f.ID
}

package token

import (
	"fmt"
	"slices"
	"strings"

	"gatehouse/auth/internal/jsontext"
)

// needed are the claims that every token must have, even if a hook has made the claims.
var needed = []string{"aud", "exp", "iat", "sub", "email", "phone", "role", "aal", "session_id", "is_anonymous"}

// ParseCustom reads a claims object from a hook, as Verify would, and reports which of the needed claims are missing or
// have the wrong type. The error is an ErrClaims.
func ParseCustom(payload string) (c Claims, err error) {
	if err := c.parse(payload); err != nil {
		return c, err
	}
	has := map[string]bool{}
	if err := jsontext.Members(payload, func(name, _ string) error { has[name] = true; return nil }); err != nil {
		return c, fmt.Errorf("%w: %w", ErrClaims, err)
	}
	missing := slices.DeleteFunc(slices.Clone(needed), func(name string) bool { return has[name] })
	if len(missing) > 0 {
		return c, fmt.Errorf("%w: without %s", ErrClaims, strings.Join(missing, ", "))
	}
	return c, nil
}

// Text returns the claims as JSON, as they would be signed.
func (c *Claims) Text() ([]byte, error) { return c.appendTo(nil) }

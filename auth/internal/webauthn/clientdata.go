package webauthn

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"

	"gatehouse/auth/internal/jsontext"
)

// clientData is what the browser says about a ceremony, and the authenticator signs (Level 3, section 5.8.1).
type clientData struct {
	kind, challenge, origin string
	// cross is set if the page was embedded in a page of another origin, or if the data names an embedding page.
	cross bool
	hash  [sha256.Size]byte
}

// readClientData reads the members that are checked, which must have the right types. It does not decode into a struct,
// which would accept "Origin" for "origin", and the last of several members with the same name.
func readClientData(raw []byte) (c clientData, err error) {
	c.hash = sha256.Sum256(raw)
	needed := 3
	err = jsontext.Members(string(raw), func(name, value string) (err error) {
		switch name {
		case "type":
			needed--
			c.kind, err = jsontext.Unquote(value)
		case "challenge":
			needed--
			c.challenge, err = jsontext.Unquote(value)
		case "origin":
			needed--
			c.origin, err = jsontext.Unquote(value)
		case "topOrigin":
			c.cross = true
			_, err = jsontext.Unquote(value)
		case "crossOrigin":
			c.cross = c.cross || value == "true"
			if value != "true" && value != "false" {
				err = jsontext.ErrSyntax
			}
		}
		if err != nil {
			return fmt.Errorf("%s has the wrong type", name)
		}
		return nil
	})
	if err == nil && needed > 0 {
		err = errors.New("type, challenge or origin is missing")
	}
	if err != nil {
		return c, unreadable("clientDataJSON: " + err.Error())
	}
	return c, nil
}

// check compares the client data with the policy (Level 3, section 7.1 steps 7 to 11 and section 7.2 steps 10 to 14).
func (c *clientData) check(kind string, p *Policy) error {
	challenge, ok := decode(c.challenge)
	right := 0
	for _, want := range p.Challenges {
		right |= subtle.ConstantTimeCompare(challenge, want)
	}
	switch {
	case c.kind != kind:
		return FailedType
	case !ok || right != 1:
		return FailedChallenge
	case !slices.Contains(p.Origins, c.origin):
		return FailedOrigin
	case c.cross:
		return FailedCrossOrigin
	}
	return nil
}

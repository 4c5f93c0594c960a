package webauthn

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"slices"
	"unicode/utf8"
)

// clientData is the browser's data about a ceremony (L3, 5.8.1).
type clientData struct {
	kind, challenge, origin string
	// cross: the page was embedded in a page of another origin, or names an embedding page.
	cross bool
	hash  [sha256.Size]byte
}

// readClientData reads the tokens of the JSON. Decoding into a struct would accept "Origin" for "origin", and the last
// of several equal members.
func readClientData(raw []byte) (c clientData, err error) {
	c.hash = sha256.Sum256(raw)
	if !utf8.Valid(raw) || !json.Valid(raw) {
		return c, unreadable("clientDataJSON")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, _ := d.Token(); t != json.Delim('{') {
		return c, unreadable("clientDataJSON is no object")
	}
	members := map[string]json.Token{}
	for d.More() {
		name, _ := d.Token() // the JSON is valid
		value, _ := d.Token()
		if !skipRest(d, value) {
			return c, unreadable("depth of clientDataJSON")
		}
		switch name := name.(string); name {
		case "type", "challenge", "origin", "crossOrigin", "topOrigin":
			if _, twice := members[name]; twice {
				return c, unreadable(name + " stands twice in clientDataJSON")
			}
			members[name] = value
		}
	}
	return c, c.take(members)
}

// take sets the fields from the known members, which must have the right types.
func (c *clientData) take(members map[string]json.Token) error {
	kind, ok1 := members["type"].(string)
	challenge, ok2 := members["challenge"].(string)
	origin, ok3 := members["origin"].(string)
	top, embedded := members["topOrigin"]
	_, ok4 := top.(string)
	cross, given := members["crossOrigin"]
	crossed, ok5 := cross.(bool)
	if !ok1 || !ok2 || !ok3 || embedded && !ok4 || given && !ok5 {
		return unreadable("a member of clientDataJSON is missing or of another type")
	}
	c.kind, c.challenge, c.origin, c.cross = kind, challenge, origin, crossed || embedded
	return nil
}

// skipRest reads the rest of a member's value after its first token.
func skipRest(d *json.Decoder, first json.Token) bool {
	depth := 1 // the object of all members
	for t := first; ; {
		switch t {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth > maxDepth {
			return false
		}
		if depth == 1 {
			return true
		}
		var err error
		if t, err = d.Token(); err != nil {
			return false
		}
	}
}

// check compares the client data with the policy (L3, 7.1 steps 7 to 11 and 7.2 steps 10 to 14).
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

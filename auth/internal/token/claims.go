package token

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gatehouse/auth/internal/jsontext"
)

// Claims are the claims of an access token (docs/tokens.md#access-tokens). They are written in the order of the fields.
// A claim is written even if it is empty, unless its comment says optional.
type Claims struct {
	Issuer    string // iss; optional
	Subject   string // sub, the user's ID
	Audience  string // aud; written as a string; if it is an array, the first element is read
	ExpiresAt int64  // exp, in Unix seconds; 0 if a token that was read has no exp
	NotBefore int64  // nbf; only read, never written
	IssuedAt  int64  // iat, in Unix seconds
	ID        string // jti; optional
	Email     string
	Phone     string
	// AppMetadata and UserMetadata are written unchanged, except for white space; nil is written as {}. Verify leaves
	// them nil, so that no decision depends on what a user can write. Payload contains them.
	AppMetadata  json.RawMessage
	UserMetadata json.RawMessage
	Role         string
	AAL          string // authenticator assurance level, "aal1" or "aal2"
	AMR          []AMR  // newest first; optional
	SessionID    string
	IsAnonymous  bool

	Payload string // the signed claims object; set by Verify
}

// AMR is one authentication method of a session (the claim amr). Provider is written only if it is set.
type AMR struct {
	Method    string `json:"method"`
	Timestamp int64  `json:"timestamp"`
	Provider  string `json:"provider,omitempty"`
}

// appendTo appends the claims as JSON. It fails only if a metadata field is not a JSON object.
func (c *Claims) appendTo(dst []byte) ([]byte, error) {
	dst = append(dst, '{')
	if c.Issuer != "" {
		dst = append(jsontext.AppendString(append(dst, `"iss":`...), c.Issuer), ',')
	}
	dst = jsontext.AppendString(append(dst, `"sub":`...), c.Subject)
	dst = jsontext.AppendString(append(dst, `,"aud":`...), c.Audience)
	dst = strconv.AppendInt(append(dst, `,"exp":`...), c.ExpiresAt, 10)
	dst = strconv.AppendInt(append(dst, `,"iat":`...), c.IssuedAt, 10)
	if c.ID != "" {
		dst = jsontext.AppendString(append(dst, `,"jti":`...), c.ID)
	}
	dst = jsontext.AppendString(append(dst, `,"email":`...), c.Email)
	dst = jsontext.AppendString(append(dst, `,"phone":`...), c.Phone)
	dst, err := jsontext.AppendObject(append(dst, `,"app_metadata":`...), c.AppMetadata)
	if err != nil {
		return dst, fmt.Errorf("app_metadata: %w", err)
	}
	if dst, err = jsontext.AppendObject(append(dst, `,"user_metadata":`...), c.UserMetadata); err != nil {
		return dst, fmt.Errorf("user_metadata: %w", err)
	}
	dst = jsontext.AppendString(append(dst, `,"role":`...), c.Role)
	dst = jsontext.AppendString(append(dst, `,"aal":`...), c.AAL)
	if len(c.AMR) > 0 {
		dst = append(dst, `,"amr":[`...)
		for i := range c.AMR {
			dst = append(c.AMR[i].appendTo(dst), ',')
		}
		dst[len(dst)-1] = ']'
	}
	dst = jsontext.AppendString(append(dst, `,"session_id":`...), c.SessionID)
	dst = strconv.AppendBool(append(dst, `,"is_anonymous":`...), c.IsAnonymous)
	return append(dst, '}'), nil
}

func (a *AMR) appendTo(dst []byte) []byte {
	dst = jsontext.AppendString(append(dst, `{"method":`...), a.Method)
	dst = strconv.AppendInt(append(dst, `,"timestamp":`...), a.Timestamp, 10)
	if a.Provider != "" {
		dst = jsontext.AppendString(append(dst, `,"provider":`...), a.Provider)
	}
	return append(dst, '}')
}

// maxTime is the last second of the year 9999. Later times are refused: they are mistakes, or harm readers that use 32
// bits.
const maxTime = 253402300799

// parse reads a claims object. A claim that Claims knows must have the right JSON type, which null is not; other claims
// are ignored.
func (c *Claims) parse(payload string) error {
	*c = Claims{AMR: c.AMR[:0], Payload: payload}
	err := jsontext.Members(payload, func(name, value string) (err error) {
		switch name { // fields would take a third longer
		case "iss":
			c.Issuer, err = jsontext.Unquote(value)
		case "sub":
			c.Subject, err = jsontext.Unquote(value)
		case "aud":
			c.Audience, err = parseAudience(value)
		case "exp":
			if c.ExpiresAt, err = parseTime(value); c.ExpiresAt == 0 {
				err = jsontext.ErrSyntax // 0 stands for a missing exp
			}
		case "nbf":
			c.NotBefore, err = parseTime(value)
		case "iat":
			c.IssuedAt, err = parseTime(value)
		case "jti":
			c.ID, err = jsontext.Unquote(value)
		case "email":
			c.Email, err = jsontext.Unquote(value)
		case "phone":
			c.Phone, err = jsontext.Unquote(value)
		case "app_metadata", "user_metadata":
			if value[0] != '{' {
				err = jsontext.ErrSyntax
			}
		case "role":
			c.Role, err = jsontext.Unquote(value)
		case "aal":
			c.AAL, err = jsontext.Unquote(value)
		case "amr":
			err = c.parseAMR(value)
		case "session_id":
			c.SessionID, err = jsontext.Unquote(value)
		case "is_anonymous":
			c.IsAnonymous = value == "true"
			if !c.IsAnonymous && value != "false" {
				err = jsontext.ErrSyntax
			}
		}
		if err != nil {
			return fmt.Errorf("%w: %s has the wrong type or value", ErrClaims, name)
		}
		return nil
	})
	if err != nil && !errors.Is(err, ErrClaims) {
		return fmt.Errorf("%w: %w", ErrClaims, err)
	}
	return err
}

// parseTime reads a NumericDate (RFC 7519 section 2) in seconds, and drops a fraction. It refuses signs, exponents and
// times beyond the year 9999.
func parseTime(value string) (int64, error) {
	whole, fraction, _ := strings.Cut(value, ".")
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || n > maxTime || whole[0] == '-' || strings.Trim(fraction, "0123456789") != "" {
		return 0, jsontext.ErrSyntax
	}
	return n, nil
}

// fields lists members of an object by name, with pointers to the strings and times that their values are read into.
type fields []struct {
	name string
	to   any
}

// read reads the value of the member with this name, if it is among the fields.
func (f fields) read(name, value string) (err error) {
	for _, m := range f {
		if m.name != name {
			continue
		}
		switch to := m.to.(type) {
		case *string:
			*to, err = jsontext.Unquote(value)
		case *int64:
			*to, err = parseTime(value)
		}
	}
	return err
}

func parseAudience(value string) (string, error) {
	if value[0] != '[' {
		return jsontext.Unquote(value)
	}
	all, err := jsontext.Strings(value)
	if len(all) == 0 {
		return "", err
	}
	return all[0], err
}

// parseAMR reads the objects that this daemon writes, and the plain strings of RFC 8176, which a hook of access tokens
// may write.
func (c *Claims) parseAMR(value string) error {
	return jsontext.Elements(value, func(value string) error {
		var a AMR
		var err error
		if value[0] == '"' {
			a.Method, err = jsontext.Unquote(value)
		} else {
			err = jsontext.Members(value, func(name, value string) (err error) {
				switch name {
				case "method":
					a.Method, err = jsontext.Unquote(value)
				case "timestamp":
					a.Timestamp, err = parseTime(value)
				case "provider":
					a.Provider, err = jsontext.Unquote(value)
				}
				return err
			})
		}
		c.AMR = append(c.AMR, a)
		return err
	})
}

// needed are the claims that every access token must have, even if a hook has made the claims.
var needed = []string{"aud", "exp", "iat", "sub", "email", "phone", "role", "aal", "session_id", "is_anonymous"}

// ParseCustom reads a claims object that a hook has made, as Verify would. It returns an ErrClaims that says which of
// the needed claims are missing or have the wrong type.
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

// Text returns the claims as the JSON that Sign would sign.
func (c *Claims) Text() ([]byte, error) { return c.appendTo(nil) }

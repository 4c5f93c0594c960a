package flow

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/store"
)

// maxNesting limits the depth of metadata, since verifiers of tokens limit it too; ours stops at 32.
const maxNesting = 24

// Metadata parses an object that a client sent and returns it in a form that PostgreSQL and readers of our tokens
// accept; nil and null give nil. It refuses the character U+0000 and numbers beyond PostgreSQL's range, which
// PostgreSQL would refuse later.
func Metadata(data []byte) (json.RawMessage, error) {
	if len(data) == 0 || string(data) == "null" {
		return nil, nil
	}
	var members map[string]any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	err := d.Decode(&members)
	if err == nil && d.More() {
		err = errors.New("something follows the object")
	}
	if err != nil {
		return nil, &refusal.Refusal{Kind: refusal.KindInvalid, Code: refusal.CodeBadJSON,
			Msg: "Could not parse request body as JSON: metadata is not an object", Err: err}
	}
	if err := Storable(members, 1); err != nil {
		return nil, refusal.NotValid("Metadata cannot be stored: " + err.Error())
	}
	return MustJSON(members), nil
}

// ownMembers are the members of user_metadata that this service writes itself. They get into tokens, so values given by
// clients are dropped.
var ownMembers = []string{"sub", "email", "email_verified", "phone", "phone_verified"}

// UserMetadata is Metadata without the members that this service writes itself.
func UserMetadata(data []byte) (json.RawMessage, error) {
	data, err := Metadata(data)
	if err != nil || data == nil {
		return nil, err
	}
	return WithoutOwn(data), nil
}

// WithoutOwn returns the object without the members that this service writes itself.
func WithoutOwn(data json.RawMessage) json.RawMessage { return without(data, ownMembers...) }

// without returns the object as compact JSON, without the named members.
func without(data json.RawMessage, names ...string) json.RawMessage {
	members := membersOf(data)
	for _, name := range names {
		delete(members, name)
	}
	return MustJSON(members)
}

// NewMetadata is UserMetadata for a new user, and refuses objects beyond the limit. An object without members gives
// nil, since the client library sends one with calls that bring no metadata.
func (s *Settings) NewMetadata(data []byte) (json.RawMessage, error) {
	data, err := UserMetadata(data)
	if string(data) == "{}" {
		data = nil
	}
	if err == nil && s.IsTooLarge(data, nil) {
		err = s.ErrTooLarge()
	}
	return data, err
}

// IsTooLarge reports whether a user's metadata exceeds MetadataMaxBytes. Both objects are in every access token, which
// proxies and servers accept only up to a few kilobytes.
func (s *Settings) IsTooLarge(user, app json.RawMessage) bool {
	return s.MetadataMaxBytes > 0 && metadataSize(user, app) > s.MetadataMaxBytes
}

// ErrTooLarge is the answer to metadata beyond the limit.
func (s *Settings) ErrTooLarge() *refusal.Refusal {
	return refusal.NotValid(fmt.Sprintf("Metadata cannot be larger than %d bytes", s.MetadataMaxBytes))
}

// metadataSize returns the size in bytes of both objects as compact JSON, without the service's own members of
// user_metadata.
func metadataSize(user, app json.RawMessage) (size int) {
	for _, o := range []json.RawMessage{WithoutOwn(user), without(app)} {
		if len(o) > len("{}") {
			size += len(o)
		}
	}
	return size
}

// CheckGrowth refuses a change that makes a user's metadata exceed the limit. Metadata that exceeds the limit already
// may change if it does not grow.
func (s *Settings) CheckGrowth(u store.User, user, app store.MetadataPatch) error {
	if s.grows(u, user, app) {
		return s.ErrTooLarge()
	}
	return nil
}

func (s *Settings) grows(u store.User, user, app store.MetadataPatch) bool {
	if s.MetadataMaxBytes <= 0 || user.Set == nil && app.Set == nil {
		return false
	}
	newUser, newApp := user.Apply(u.UserMetadata), app.Apply(u.AppMetadata)
	return s.IsTooLarge(newUser, newApp) && metadataSize(newUser, newApp) > metadataSize(u.UserMetadata, u.AppMetadata)
}

// WithinLimit returns the patch that a sign-in or a confirmation applies to a user's metadata. Neither may fail because
// of the limit: beyond the limit, only the members that this service writes itself are kept.
func (s *Settings) WithinLimit(u store.User, p store.MetadataPatch) store.MetadataPatch {
	if !s.grows(u, p, store.MetadataPatch{}) {
		return p
	}
	members := membersOf(p.Set)
	maps.DeleteFunc(members, func(name string, _ json.RawMessage) bool { return !slices.Contains(ownMembers, name) })
	p.Set = MustJSON(members)
	return p
}

// ParsePatch reads a change of metadata, in which null removes a member.
func ParsePatch(data json.RawMessage, err error) (store.MetadataPatch, error) {
	if err != nil {
		return store.MetadataPatch{}, err
	}
	patch, err := store.ParseMetadataPatch(data)
	return patch, refusal.Failure("metadata", err)
}

// StorableText replaces characters that PostgreSQL refuses in text. No valid address contains them.
func StorableText(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

// Storable returns an error for a part of a value that PostgreSQL or readers of our tokens would refuse.
func Storable(v any, depth int) error {
	if depth > maxNesting {
		return fmt.Errorf("it is nested deeper than %d levels", maxNesting)
	}
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			if err := errors.Join(Storable(name, depth), Storable(value, depth+1)); err != nil {
				return err
			}
		}
	case []any:
		for _, value := range v {
			if err := Storable(value, depth+1); err != nil {
				return err
			}
		}
	case string:
		if strings.ContainsRune(v, 0) {
			return errors.New("a text holds the character U+0000")
		}
	case json.Number:
		f, err := strconv.ParseFloat(v.String(), 64)
		mantissa, _, _ := strings.Cut(strings.ToLower(v.String()), "e")
		if err != nil || len(v) > 1000 || f == 0 && strings.ContainsAny(mantissa, "123456789") {
			return errors.New("a number is too large or too small")
		}
	}
	return nil
}

// CheckPassword checks a new password: its length in bytes, then the policy.
func (s *Settings) CheckPassword(text string) error {
	if len(text) > password.MaxBytes {
		return refusal.NotValid("Password cannot be longer than 72 characters")
	}
	if s.Passwords.Policy == nil {
		return nil
	}
	if weak := s.Passwords.Policy.Check(text); weak != nil {
		r := refusal.Unprocessable(refusal.CodeWeakPassword, weak.Message)
		r.Weak = weak
		return r
	}
	return nil
}

// MustJSON returns v as JSON text. v must be a value that cannot fail to encode: strings, bools, maps of them, or JSON
// from PostgreSQL.
func MustJSON(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

// membersOf returns the members of the objects, of which the later ones win. An object may be nil.
func membersOf(objects ...json.RawMessage) map[string]json.RawMessage {
	members := map[string]json.RawMessage{}
	for _, o := range objects {
		if len(o) > 0 {
			_ = json.Unmarshal(o, &members) // valid: checked when it was received, or from PostgreSQL
		}
	}
	return members
}

// Merge returns the object under with the members of over, which win. Either may be nil.
func Merge(under, over json.RawMessage) json.RawMessage { return MustJSON(membersOf(under, over)) }

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

// maxNesting is how many levels deep metadata may be nested. Metadata is in access tokens, and services that verify
// these may limit the depth of JSON; this daemon's own limit is jsontext.MaxDepth.
const maxNesting = 24

// Metadata parses a JSON object that a client sent, and returns it in a form that PostgreSQL and readers of this
// daemon's access tokens accept. It returns nil for null and for no data. It refuses the character U+0000 and numbers
// beyond PostgreSQL's range, which PostgreSQL would refuse later.
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

// ownMembers are the members of user_metadata that this daemon writes itself. They are in access tokens, so values that
// clients send for them are dropped.
var ownMembers = []string{"sub", "email", "email_verified", "phone", "phone_verified"}

// UserMetadata parses an object as Metadata does, and removes the ownMembers from it.
func UserMetadata(data []byte) (json.RawMessage, error) {
	data, err := Metadata(data)
	if err != nil || data == nil {
		return nil, err
	}
	return WithoutOwn(data), nil
}

// WithoutOwn returns the object without the ownMembers, as compact JSON.
func WithoutOwn(data json.RawMessage) json.RawMessage { return without(data, ownMembers...) }

// without returns the object as compact JSON, without the named members.
func without(data json.RawMessage, names ...string) json.RawMessage {
	members := membersOf(data)
	for _, name := range names {
		delete(members, name)
	}
	return MustJSON(members)
}

// NewMetadata parses the user_metadata of a new user as UserMetadata does. It refuses an object that exceeds
// MetadataMaxBytes. It returns nil for an object without members, since the client library sends an empty object if the
// application gives no metadata.
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

// IsTooLarge reports whether user_metadata and app_metadata together exceed MetadataMaxBytes. Both are in every access
// token, and proxies and servers accept headers of only a few kilobytes.
func (s *Settings) IsTooLarge(user, app json.RawMessage) bool {
	return s.MetadataMaxBytes > 0 && metadataSize(user, app) > s.MetadataMaxBytes
}

// ErrTooLarge returns the refusal of metadata that exceeds MetadataMaxBytes.
func (s *Settings) ErrTooLarge() *refusal.Refusal {
	return refusal.NotValid(fmt.Sprintf("Metadata cannot be larger than %d bytes", s.MetadataMaxBytes))
}

// metadataSize returns the size in bytes of user_metadata, without the ownMembers, and app_metadata as compact JSON.
func metadataSize(user, app json.RawMessage) (size int) {
	for _, o := range []json.RawMessage{WithoutOwn(user), without(app)} {
		if len(o) > len("{}") {
			size += len(o)
		}
	}
	return size
}

// CheckGrowth refuses patches of user_metadata and app_metadata that make them exceed MetadataMaxBytes. Metadata that
// is too large already may change if it does not grow.
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

// WithinLimit returns the patch of user_metadata that a sign-in or a confirmation applies. Neither may fail because the
// metadata is too large, so if p would make it exceed MetadataMaxBytes, only the ownMembers of p are kept.
func (s *Settings) WithinLimit(u store.User, p store.MetadataPatch) store.MetadataPatch {
	if !s.grows(u, p, store.MetadataPatch{}) {
		return p
	}
	members := membersOf(p.Set)
	maps.DeleteFunc(members, func(name string, _ json.RawMessage) bool { return !slices.Contains(ownMembers, name) })
	p.Set = MustJSON(members)
	return p
}

// ParsePatch reads a change of metadata, in which null removes a member. It takes the results of Metadata or
// UserMetadata.
func ParsePatch(data json.RawMessage, err error) (store.MetadataPatch, error) {
	if err != nil {
		return store.MetadataPatch{}, err
	}
	patch, err := store.ParseMetadataPatch(data)
	return patch, refusal.Failure("metadata", err)
}

// StorableText replaces what PostgreSQL refuses in a text, invalid UTF-8 and U+0000, by U+FFFD. No valid address
// contains either.
func StorableText(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

// Storable returns an error if a part of a JSON value would be refused by PostgreSQL or by readers of this daemon's
// access tokens. depth is how deep v is nested.
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

// CheckPassword refuses a new password that is too long (in bytes) or that violates the operator's policy.
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

// MustJSON returns v as JSON text. v must be a value that always encodes: a string, a bool, a map of such values, or
// JSON from PostgreSQL.
func MustJSON(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

// membersOf returns the members of all objects; a member of a later object replaces one of an earlier object. An object
// may be nil.
func membersOf(objects ...json.RawMessage) map[string]json.RawMessage {
	members := map[string]json.RawMessage{}
	for _, o := range objects {
		if len(o) > 0 {
			_ = json.Unmarshal(o, &members) // valid: it comes from PostgreSQL, or was checked when it was received
		}
	}
	return members
}

// Merge returns an object with the members of both arguments, each of which may be nil. If both have a member of the
// same name, the result has the value in the second argument, over.
func Merge(under, over json.RawMessage) json.RawMessage { return MustJSON(membersOf(under, over)) }

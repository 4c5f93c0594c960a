package account

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gatehouse/auth/internal/store"
)

// maxNesting keeps metadata readable to verifiers of the tokens: they stop at some depth, ours at 32.
const maxNesting = 24

// metadata reads an object that a client sent and writes it so that PostgreSQL and every reader of our
// tokens take it; nil and null are nil. PostgreSQL refuses the character U+0000 and numbers beyond its
// range, which would otherwise be a failure of ours.
func metadata(data json.RawMessage) (json.RawMessage, error) {
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
		return nil, &Refusal{Kind: Invalid, Code: CodeBadJSON,
			Msg: "Could not parse request body as JSON: metadata is not an object", Err: err}
	}
	if err := storable(members, 1); err != nil {
		return nil, notValid("Metadata cannot be stored: " + err.Error())
	}
	return mustJSON(members), nil
}

// ownMembers are the members of user_metadata that this service writes itself. They get into tokens, so values given by
// clients are dropped.
var ownMembers = []string{"sub", "email", "email_verified", "phone", "phone_verified"}

// userMetadata is metadata without the members that are this service's own.
func userMetadata(data json.RawMessage) (json.RawMessage, error) {
	data, err := metadata(data)
	if err != nil || data == nil {
		return nil, err
	}
	return withoutOwn(data), nil
}

func withoutOwn(data json.RawMessage) json.RawMessage { return without(data, ownMembers...) }

// without is the object as compact JSON, without some of its members.
func without(data json.RawMessage, names ...string) json.RawMessage {
	members := map[string]json.RawMessage{}
	if len(data) > 0 {
		_ = json.Unmarshal(data, &members) // parsed by the caller or by PostgreSQL before
	}
	for _, name := range names {
		delete(members, name)
	}
	return mustJSON(members)
}

// newMetadata is userMetadata of a new user, within the limit.
func (s *Settings) newMetadata(data json.RawMessage) (json.RawMessage, error) {
	data, err := userMetadata(data)
	if err == nil && s.isTooLarge(data, nil) {
		err = s.errTooLarge()
	}
	return data, err
}

// isTooLarge reports whether a user's metadata exceeds MetadataMaxBytes. Both objects are in every access token, which
// proxies and servers accept only up to a few kilobytes.
func (s *Settings) isTooLarge(user, app json.RawMessage) bool {
	return s.MetadataMaxBytes > 0 && metadataSize(user, app) > s.MetadataMaxBytes
}

func (s *Settings) errTooLarge() *Refusal {
	return notValid(fmt.Sprintf("Metadata cannot be larger than %d bytes", s.MetadataMaxBytes))
}

// metadataSize returns the size in bytes of both objects as compact JSON, without the service's own members of
// user_metadata.
func metadataSize(user, app json.RawMessage) (size int) {
	for _, o := range []json.RawMessage{withoutOwn(user), without(app)} {
		if len(o) > len("{}") {
			size += len(o)
		}
	}
	return size
}

// checkGrowth refuses a change that makes a user's metadata exceed the limit. Metadata that exceeds it already may
// change as long as it does not grow.
func (s *Settings) checkGrowth(u store.User, user, app store.MetadataPatch) error {
	if s.grows(u, user, app) {
		return s.errTooLarge()
	}
	return nil
}

func (s *Settings) grows(u store.User, user, app store.MetadataPatch) bool {
	if s.MetadataMaxBytes <= 0 || user.Set == nil && app.Set == nil {
		return false
	}
	newUser, newApp := user.Apply(u.UserMetadata), app.Apply(u.AppMetadata)
	return s.isTooLarge(newUser, newApp) && metadataSize(newUser, newApp) > metadataSize(u.UserMetadata, u.AppMetadata)
}

// withinLimit returns what a sign-in or a confirmation adds to a user's metadata. Neither may fail because of the
// limit: beyond it only the service's own members are written.
func (s *Settings) withinLimit(u store.User, p store.MetadataPatch) store.MetadataPatch {
	if !s.grows(u, p, store.MetadataPatch{}) {
		return p
	}
	var members map[string]json.RawMessage
	_ = json.Unmarshal(p.Set, &members) // written here
	for name := range members {
		if !slices.Contains(ownMembers, name) {
			delete(members, name)
		}
	}
	p.Set = mustJSON(members)
	return p
}

// parsePatch reads a change of metadata, in which null removes a member.
func parsePatch(data json.RawMessage, err error) (store.MetadataPatch, error) {
	if err != nil {
		return store.MetadataPatch{}, err
	}
	patch, err := store.ParseMetadataPatch(data)
	return patch, failure("metadata", err)
}

func mantissa(number string) string {
	digits, _, _ := strings.Cut(strings.ToLower(number), "e")
	return digits
}

// storableText replaces what PostgreSQL refuses in any text. No address contains it.
func storableText(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

func storable(v any, depth int) error {
	if depth > maxNesting {
		return fmt.Errorf("it is nested deeper than %d levels", maxNesting)
	}
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			if err := errors.Join(storable(name, depth), storable(value, depth+1)); err != nil {
				return err
			}
		}
	case []any:
		for _, value := range v {
			if err := storable(value, depth+1); err != nil {
				return err
			}
		}
	case string:
		if strings.ContainsRune(v, 0) {
			return errors.New("a text holds the character U+0000")
		}
	case json.Number:
		f, err := strconv.ParseFloat(v.String(), 64)
		if err != nil || len(v) > 1000 || f == 0 && strings.ContainsAny(mantissa(v.String()), "123456789") {
			return errors.New("a number is too large or too small")
		}
	}
	return nil
}

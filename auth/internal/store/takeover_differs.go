package store

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"time"
)

// Differs returns the first column in which a user differs from a carried row; "" for none. clock is the source's,
// which bounds times: a time that equals the clock was bounded by an earlier reading of it.
func (u *User) Differs(carried *User, clock time.Time) string {
	if carried == nil {
		return "id"
	}
	return differs(userColumns, userTargets(u), userTargets(carried), clock)
}

// Differs is User.Differs for an identity of the carried user.
func (i *Identity) Differs(carried *User, clock time.Time) string {
	if carried == nil {
		return "user_id"
	}
	for _, one := range carried.Identities {
		if one.ID == i.ID {
			return differs(identityColumns, identityTargets(i), identityTargets(&one), clock)
		}
	}
	return "id"
}

// Differs is User.Differs for a factor. It does not compare secrets, which are sealed, nor credentials.
func (f *CarriedFactor) Differs(carried *CarriedFactor) string {
	return differs(factorColumns+", f.user_id", append(factorTargets(&f.Factor), &f.UserID),
		append(factorTargets(&carried.Factor), &carried.UserID), time.Time{})
}

// Differs is User.Differs for a credential; both nil: there is none.
func (c *Credential) Differs(carried *Credential) string {
	if c == nil || carried == nil {
		if c == carried {
			return ""
		}
		return "credential_id"
	}
	return differs(credentialColumns, credentialTargets(c), credentialTargets(carried), time.Time{})
}

// Differs is User.Differs for a session. It compares the columns that decide what the session may do.
func (s *CarriedSession) Differs(carried *CarriedSession) string {
	of := func(s *CarriedSession) []any { return []any{&s.UserID, &s.SecretHash, &s.TokenMAC, &s.AMR, &s.AAL} }
	return differs("user_id, secret_hash, token_mac, amr, aal", of(s), of(carried), time.Time{})
}

// differs returns the first of the columns whose values differ.
func differs(columns string, want, have []any, clock time.Time) string {
	for i, name := range namesOf(columns) {
		var same bool
		switch w := want[i].(type) {
		case *time.Time:
			same = w.Equal(*have[i].(*time.Time)) || !clock.IsZero() && w.Equal(clock)
		case *json.RawMessage:
			same = sameJSON(*w, *have[i].(*json.RawMessage))
		case *[]byte:
			same = bytes.Equal(*w, *have[i].(*[]byte))
		case *[]string:
			same = slices.Equal(*w, *have[i].(*[]string))
		default:
			same = reflect.DeepEqual(w, have[i])
		}
		if !same {
			return name
		}
	}
	return ""
}

// sameJSON reports whether two texts of jsonb columns mean the same.
func sameJSON(a, b []byte) bool {
	var x, y any
	return bytes.Equal(a, b) || json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

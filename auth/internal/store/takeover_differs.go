package store

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"time"
)

// Differs returns the name of the first column in which the user u, read from the source, differs from carried, the
// user in our tables; "" if none does. clock is the source's clock. A time in the future was replaced by the clock's
// time when the user was copied, and is replaced again when the user is read; so a time that equals clock counts as the
// same.
func (u *User) Differs(carried *User, clock time.Time) string {
	if carried == nil {
		return "id"
	}
	return differs(userColumns, userTargets(u), userTargets(carried), clock)
}

// Differs returns the name of the first column in which the identity i, read from the source, differs from the identity
// with the same id in our tables, or "" if there is none. carried is the identity's user in our tables.
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

// Differs returns the name of the first column in which the factor f, read from the source, differs from carried, the
// factor in our tables, or "" if there is none. It does not compare the secrets, which are sealed, nor the credentials
// of security keys, for which there is Credential.Differs.
func (f *CarriedFactor) Differs(carried *CarriedFactor) string {
	return differs(factorColumns+", f.user_id", append(factorTargets(&f.Factor), &f.UserID),
		append(factorTargets(&carried.Factor), &carried.UserID), time.Time{})
}

// Differs returns the name of the first column in which the credential c, read from the source, differs from carried,
// the credential in our tables, or "" if there is none. Either may be nil, which means that there is no credential.
func (c *Credential) Differs(carried *Credential) string {
	if c == nil || carried == nil {
		if c == carried {
			return ""
		}
		return "credential_id"
	}
	return differs(credentialColumns, credentialTargets(c), credentialTargets(carried), time.Time{})
}

// Differs returns the name of the first column in which the session s, read from the source, differs from carried, the
// session in our tables, or "" if there is none. It compares only the columns that decide what the session may do.
func (s *CarriedSession) Differs(carried *CarriedSession) string {
	of := func(s *CarriedSession) []any { return []any{&s.UserID, &s.SecretHash, &s.TokenMAC, &s.AMR, &s.AAL} }
	return differs("user_id, secret_hash, token_mac, amr, aal", of(s), of(carried), time.Time{})
}

// differs returns the name of the first column whose values in the lists want and have are different, or "" if there is
// none.
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

// sameJSON reports whether two JSON texts have the same value.
func sameJSON(a, b []byte) bool {
	var x, y any
	return bytes.Equal(a, b) || json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

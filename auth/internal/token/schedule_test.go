package token

import (
	"strings"
	"testing"
	"time"
)

func TestStatesAt(t *testing.T) {
	key := func(id string) *Key { k, _ := NewSecret(id, []byte("x")); return k }
	a, b, c := key("a"), key("b"), key("c")
	at := func(minutes int) time.Time { return testNow.Add(time.Duration(minutes) * time.Minute) }
	never := time.Time{}
	f := func(minute int, want string, keys ...Stored) {
		t.Helper()
		entries, err := StatesAt(keys, at(minute), 70*time.Minute)
		var have []string
		for _, e := range entries {
			have = append(have, e.Key.ID()+" "+e.State.String())
		}
		if got := strings.Join(have, ", "); got != want || (want == "") != (err != nil) {
			t.Errorf("minute %d: %s, %v; want %s", minute, got, err, want)
		}
	}
	f(0, "")
	f(0, "a current", Stored{a, at(0), never})
	f(-5, "a current", Stored{a, at(0), never}) // our clock is behind that of the replica that made it
	rotated := []Stored{{b, at(20), never}, {a, at(0), never}}
	f(0, "a current, b next", rotated...)
	f(19, "a current, b next", rotated...)
	f(20, "a previous, b current", rotated...)
	f(90, "a previous, b current", rotated...)
	f(91, "b current", rotated...)
	thrice := []Stored{{a, at(0), never}, {b, at(20), never}, {c, at(60), never}}
	f(30, "a previous, b current, c next", thrice...)
	f(60, "a previous, b previous, c current", thrice...)
	f(100, "b previous, c current", thrice...)
	f(140, "c current", thrice...)
	// Revoked before it signed, while it signs, after it signed; the last one left; all.
	f(30, "a current, b revoked", Stored{a, at(0), never}, Stored{b, at(20), at(10)})
	f(30, "a current, b revoked", Stored{a, at(0), never}, Stored{b, at(20), at(25)})
	f(30, "a revoked, b current", Stored{a, at(0), at(25)}, Stored{b, at(20), never})
	f(10, "a revoked, b current, c next", Stored{a, at(0), at(10)}, Stored{b, at(20), never}, Stored{c, at(40), never})
	f(10, "", Stored{a, at(0), at(10)}, Stored{b, at(20), at(10)})
	// b was revoked and a signed again until c took over: a is kept from then.
	f(140, "a previous, b revoked, c current", Stored{a, at(0), never}, Stored{b, at(20), at(30)},
		Stored{c, at(100), never})
}

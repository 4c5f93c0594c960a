// Package must ends a test when one of the test's own steps fails, or when the machine lacks what the test needs. Only
// tests import it.
package must

import (
	"os"
	"testing"
)

// Succeed ends t at once with err, if there is one.
func Succeed(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Have skips t if err is not nil; err says what this machine lacks. If REQUIRE_SERVERS is 1, as in make test, Have
// fails t instead.
func Have(t testing.TB, err error) {
	t.Helper()
	if err != nil && os.Getenv("REQUIRE_SERVERS") != "1" {
		t.Skip(err)
	}
	Succeed(t, err)
}

// ErrOf returns the error of a call whose value a test does not need.
func ErrOf[T any](_ T, err error) error { return err }

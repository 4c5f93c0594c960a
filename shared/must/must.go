// Package must ends a test when one of the test's own steps fails, or when the machine lacks what the test needs. Only
// tests import it.
package must

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
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

// Fetched ends t, since this machine lacks what the script .ci/NAME fetches. If the script was run and could not fetch
// it, t is skipped with the reason that the script has noted in .run/NAME-missing of the repository at root. Otherwise
// Have ends t with the text missing.
func Fetched(t testing.TB, root, name, missing string) {
	t.Helper()
	if reason, err := os.ReadFile(filepath.Join(root, ".run", name+"-missing")); err == nil {
		t.Skip(strings.TrimSpace(string(reason)))
	}
	Have(t, errors.New(missing))
}

// ErrOf returns the error of a call whose value a test does not need.
func ErrOf[T any](_ T, err error) error { return err }

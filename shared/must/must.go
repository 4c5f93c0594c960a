// Package must ends a test whose own steps fail, or that lacks what it needs. Only tests import it.
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

// Have skips t with err, which says what this machine lacks. Where REQUIRE_SERVERS is 1, as in make test, it ends t.
func Have(t testing.TB, err error) {
	t.Helper()
	if err != nil && os.Getenv("REQUIRE_SERVERS") != "1" {
		t.Skip(err)
	}
	Succeed(t, err)
}

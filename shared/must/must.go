// Package must ends a test whose own steps fail. Only tests import it.
package must

import "testing"

// Succeed ends t at once with err, if there is one.
func Succeed(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

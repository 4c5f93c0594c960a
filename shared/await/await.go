// Package await lets a test wait for what other goroutines, processes and servers do. Only tests import it.
package await

import (
	"testing"
	"time"
)

// limit is for a test that hangs, not for one on a busy machine.
const limit = time.Minute

// True returns when cond holds. It polls, at first every millisecond, and fails the test when what, the
// name of the condition, has not come within a minute; more then says what else is known.
func True(t testing.TB, what string, cond func() bool, more ...func() string) {
	t.Helper()
	pause := time.Millisecond
	for end := time.Now().Add(limit); !cond(); time.Sleep(pause) {
		if time.Now().After(end) {
			for _, say := range more {
				what += "; " + say()
			}
			t.Fatalf("not within %v: %s", limit, what)
		}
		pause = min(pause*5/4, 20*time.Millisecond)
	}
}

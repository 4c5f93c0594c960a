// Package await lets a test wait for what other goroutines, processes and servers do. Only tests import it.
package await

import (
	"sync"
	"testing"
	"time"
)

// limit is long enough for a busy machine: only a test that hangs reaches it.
const limit = 3 * time.Minute

// True returns when cond holds. It polls, at first every millisecond. If the condition does not hold within three
// minutes, it fails the test with what, the condition's name, and the text of more.
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

// Together calls f with 0 to n-1 at the same time, and returns when all calls have returned.
func Together(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

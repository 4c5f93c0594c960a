// Package await lets a test wait until other goroutines, processes and servers have done something. Only tests import
// it.
package await

import (
	"sync"
	"testing"
	"time"
)

// limit is so long that, even on a busy machine, only a test that hangs reaches it.
const limit = 3 * time.Minute

// True returns when cond returns true. It calls cond again and again, at first every millisecond. If cond is still
// false after three minutes, True fails the test. The message contains the text what, which describes the condition,
// and the texts that the functions in more return.
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

// Together calls f with 0 to n-1, each in a goroutine of its own, and returns when all calls have returned.
func Together(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

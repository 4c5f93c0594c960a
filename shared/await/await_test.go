package await

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// fake is a test that may fail.
type fake struct {
	testing.TB
	failure string
}

func (f *fake) Helper() {}

func (f *fake) Fatalf(format string, args ...any) {
	f.failure = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestTrue(t *testing.T) {
	f := func(after time.Duration, want string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			inner := &fake{TB: t}
			done := make(chan struct{})
			go func() {
				defer close(done)
				True(inner, "the end", func() bool { return time.Since(begun) >= after }, func() string {
					return "more"
				})
			}()
			<-done
			if inner.failure != want {
				t.Errorf("a condition that holds after %v: %q, want %q", after, inner.failure, want)
			}
			if took, most := time.Since(begun), min(after, limit)+20*time.Millisecond; took > most {
				t.Errorf("a condition that holds after %v took %v, want at most %v", after, took, most)
			}
		})
	}
	f(0, "")
	f(time.Second, "")
	f(limit-time.Second, "")
	f(time.Hour, "not within 3m0s: the end; more")
}

func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, seen := time.Now(), make([]int, 3)
		Together(len(seen), func(i int) {
			time.Sleep(time.Second)
			seen[i] += i + 1
		})
		if took := time.Since(begun); took != time.Second || fmt.Sprint(seen) != "[1 2 3]" {
			t.Errorf("%v after %v, want [1 2 3] after a second", seen, took)
		}
	})
}

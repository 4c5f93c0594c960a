package flow

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestBuckets(t *testing.T) {
	now := time.Date(2031, 3, 4, 12, 0, 0, 0, time.UTC)
	var b rotationLimiter
	id := uuid.New()
	f := func(want bool) {
		t.Helper()
		if got := b.Allow(id, 2, now); got != want {
			t.Errorf("allowed %v, want %v", got, want)
		}
	}
	f(true)
	b.Take(id, 2, now)
	f(true)
	b.Take(id, 2, now)
	f(false)
	now = now.Add(999 * time.Millisecond)
	f(false)
	now = now.Add(time.Millisecond)
	f(true)
	if b.Take(id, 0, now); !b.Allow(id, 0, now) {
		t.Error("switched off, and refused")
	}
	// Sessions that have rested are forgotten, those that have not are kept.
	for range sweepFirst {
		b.Take(uuid.New(), 2, now)
		now = now.Add(10 * time.Millisecond)
	}
	if n := len(b.levels); n > 200 || b.sweepAt != sweepFirst {
		t.Errorf("%d levels are kept, the next sweep is at %d", n, b.sweepAt)
	}
}

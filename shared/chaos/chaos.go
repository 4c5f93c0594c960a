// Package chaos says how long the tests that break things go on, and gives them chance that can be had again.
package chaos

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// Time is how long a chaos test goes on breaking things: normal, a quarter of it with -short, or what
// CHAOS says, such as 10m for a long night.
func Time(t testing.TB, normal time.Duration) time.Duration {
	text := os.Getenv("CHAOS")
	if text == "" {
		if testing.Short() {
			return normal / 4
		}
		return normal
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("CHAOS=%s: %v", text, err)
	}
	return d
}

// Runs is how often a test goes through random cases: normal times, a third of it under the race detector, which makes
// them slower by an order of magnitude. A test that calls it has Random in its name: make test runs such tests without
// the detector too.
func Runs(normal int) int {
	if underRace {
		return (normal + 2) / 3
	}
	return normal
}

// Rand is chance whose seed is in the test's log; CHAOS_SEED=n takes that of a run before. Goroutines and
// processes still race as they like, so the same seed gives the same blows, not the same run.
func Rand(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	if text := os.Getenv("CHAOS_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("CHAOS_SEED=%s: %v", text, err)
		}
	}
	t.Logf("CHAOS_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

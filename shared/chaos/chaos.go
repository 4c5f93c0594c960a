// Package chaos says how long the tests that break things run, and gives them reproducible randomness.
package chaos

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// Time returns how long a chaos test goes on breaking things: normal, a quarter of it with -short, or the value of
// CHAOS, such as 10m for a long night.
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

// Runs returns how many random cases a test tries: normal, or a third of it under the race detector, which makes them
// slower by an order of magnitude. A test that calls Runs has Random in its name: make test runs such tests without the
// detector too.
func Runs(normal int) int {
	if underRace {
		return (normal + 2) / 3
	}
	return normal
}

// Rand returns a source of random numbers whose seed is in the test's log; CHAOS_SEED=n uses the seed of a former run.
// Goroutines and processes still race freely, so the same seed gives the same actions, not the same run.
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

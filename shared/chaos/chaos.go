// Package chaos is for tests that kill, freeze and cut off servers: it says how long they run, and gives them random
// numbers that can be reproduced.
package chaos

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// Time returns for how long a chaos test kills, freezes and cuts off servers: the parameter normal, or a quarter of it
// with -short. If the environment variable CHAOS is set to a duration, such as 10m for a long run, Time returns that
// duration.
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

// Runs returns how many random cases a test tries. This is the parameter normal, or a third of it under the race
// detector, which makes cases slower by an order of magnitude. A test that calls Runs has Random in its name, because
// make test runs such tests a second time without the race detector.
func Runs(normal int) int {
	if underRace {
		return (normal + 2) / 3
	}
	return normal
}

// Rand returns a source of random numbers. It logs the seed, and takes the seed from the environment variable
// CHAOS_SEED if that is set, to repeat a former run. The same seed gives the same actions but not the same run, since
// goroutines and processes still race.
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

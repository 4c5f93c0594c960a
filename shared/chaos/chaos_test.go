package chaos

import (
	"testing"
	"time"
)

func TestTime(t *testing.T) {
	t.Setenv("CHAOS", "10m")
	if got := Time(t, time.Second); got != 10*time.Minute {
		t.Error(got)
	}
	t.Setenv("CHAOS", "")
	want := time.Second
	if testing.Short() {
		want /= 4
	}
	if got := Time(t, time.Second); got != want {
		t.Error(got)
	}
}

func TestRand(t *testing.T) {
	t.Setenv("CHAOS_SEED", "7")
	if a, b := Rand(t).Uint64(), Rand(t).Uint64(); a != b {
		t.Errorf("the same seed gives %d and %d", a, b)
	}
	t.Setenv("CHAOS_SEED", "")
	if a, b := Rand(t).Uint64(), Rand(t).Uint64(); a == b {
		t.Error("two runs have the same chance")
	}
}

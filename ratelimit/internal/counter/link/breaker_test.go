package link

import (
	"testing"
	"time"
)

func TestBreaker(t *testing.T) {
	b := &Breaker{Stall: 250 * time.Millisecond}
	is := func(open bool) {
		t.Helper()
		if b.open.Load() != open {
			t.Fatalf("open is %v, want %v", !open, open)
		}
	}
	fail := func(times int, now time.Duration) (opened bool) {
		for range times {
			opened = b.Failed(now)
		}
		return opened
	}
	// Five in a row, no fewer.
	if fail(4, 0) {
		t.Error("opened after 4")
	}
	b.Answered()
	if fail(4, 0) {
		t.Error("an answer in between does not count")
	}
	is(false)
	if b.ProbeDue(time.Hour) {
		t.Error("a closed breaker probes")
	}
	if !fail(1, time.Second) {
		t.Error("not opened after 5")
	}
	is(true)
	if fail(5, time.Second) {
		t.Error("opened twice")
	}

	// One probe each half second, one at a time.
	due := func(now time.Duration, want bool) {
		t.Helper()
		if got := b.ProbeDue(now); got != want {
			t.Errorf("probe due at %v: %v, want %v", now, got, want)
		}
	}
	due(1400*time.Millisecond, false)
	due(1500*time.Millisecond, true)
	due(2500*time.Millisecond, false) // the first is still out
	b.Probed(false)
	is(true)
	due(2500*time.Millisecond, true)
	b.Probed(true)
	is(false)

	// What failed before it opened does not count any more.
	if fail(4, 0) {
		t.Error("opened after 4 again")
	}
	b.Answered()

	// Age.
	aged := func(age time.Duration, want bool) {
		t.Helper()
		if got := b.Aged(age, 0); got != want {
			t.Errorf("age %v opens: %v, want %v", age, got, want)
		}
	}
	aged(249*time.Millisecond, false)
	aged(250*time.Millisecond, true)
	aged(time.Second, false) // it is open
	b.Probed(true)
	b.Stall = -1
	aged(time.Hour, false)
	is(false)
}

// More than ten openings within a minute are flapping, which is warned of once a minute.
func TestBreaker_flapping(t *testing.T) {
	b := Breaker{Stall: time.Second}
	warnings := 0
	open := func(now time.Duration) {
		t.Helper()
		if !b.Aged(time.Second, now) {
			t.Fatalf("not opened at %v", now)
		}
		if b.Warns(now) {
			warnings++
		}
		b.Probed(true)
	}
	for i := range 11 {
		if b.Flapping(time.Duration(i) * time.Second) {
			t.Errorf("flapping after %d openings", i)
		}
		open(time.Duration(i) * time.Second)
	}
	for now, want := range map[time.Duration]bool{11 * time.Second: true, 59 * time.Second: true, time.Minute: false} {
		if got := b.Flapping(now); got != want {
			t.Errorf("flapping at %v: %t, want %t", now, got, want)
		}
	}
	for i := range 120 {
		open(time.Duration(60+i) * time.Second)
	}
	if warnings != 3 { // at 10 s, 70 s and 130 s
		t.Errorf("%d warnings, want 3", warnings)
	}
}

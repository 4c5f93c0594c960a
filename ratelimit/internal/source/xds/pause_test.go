package xds

import (
	"testing"
	"time"
)

func TestPauses(t *testing.T) {
	t.Parallel()
	random := 0.5
	p := newPauses(3*time.Second, 10*time.Second, time.Minute, 0.5)
	p.random = func() float64 { return random }
	f := func(pause func() time.Duration, want ...time.Duration) {
		t.Helper()
		for i, w := range want {
			if got := pause(); got != w {
				t.Errorf("failure %d: %v, want %v", i+1, got, w)
			}
		}
	}
	const s = time.Second
	f(p.dialFailed, 3*s, 6*s, 12*s, 24*s, 48*s, 60*s, 60*s)
	f(p.streamBroke, 10*s, 20*s, 40*s, 60*s)
	for range 1000 {
		p.dialFailed()
	}
	f(p.dialFailed, 60*s)
	p.reset()
	random = 0
	f(p.dialFailed, 1500*time.Millisecond, 3*s)
	f(p.streamBroke, 5*s)
	p.reset()
	random = 1
	f(p.dialFailed, 4500*time.Millisecond)
	f(p.streamBroke, 15*s, 30*s, 60*s, 60*s) // no longer than the longest
	p = newPauses(time.Hour, time.Hour, time.Minute, 0)
	f(p.dialFailed, 60*s)
}

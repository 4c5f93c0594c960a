//go:build !race

package overlimit

import (
	"strings"
	"testing"
)

func TestOverLimitAlloc(t *testing.T) {
	o := New(0)
	short, long := []byte("short"), []byte(strings.Repeat("x", 500))
	o.Set(short, 1, 1000)
	o.Set(long, 1, 1000)
	if n := testing.AllocsPerRun(1000, func() {
		o.Get(short)
		o.Get(long)
		o.Get(short[:2])
		o.Set(long, 1, 1000)
		o.SetWait(short[:3], Wait{Pass: 1}, 1000)
		o.GetWait(short[:3])
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

package observe

import "testing"

func TestPerSecond(t *testing.T) {
	var p perSecond
	for i, step := range []struct {
		second int64
		want   bool
	}{
		{100, true}, {100, true}, {100, false},
		{99, false}, {100 - outOfOrder, false}, {100, false}, // late ones are no second of their own
		{101, true}, {98, true}, {101, false},
		{101 - outOfOrder - 1, true}, // the clock went back
	} {
		if got := p.take(step.second, 2); got != step.want {
			t.Errorf("%d: second %d: %v, want %v", i, step.second, got, step.want)
		}
	}
}

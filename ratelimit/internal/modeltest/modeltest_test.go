package modeltest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/counter"
)

const minute = 1699999980 * second

// ask is one request with one limit: when, how many hits (negative: a refund), and the answer.
type ask struct {
	at, n int64
	want  Status
}

func run(t *testing.T, l Limit, asks ...ask) {
	t.Helper()
	var m Model
	for _, a := range asks {
		got := m.Request(minute+a.at, []Ask{{Limits: []Limit{l}, N: max(a.n, -a.n), Refund: a.n < 0}})
		if d := cmp.Diff([]Status{a.want}, got); d != "" {
			t.Errorf("%d hits at %d: want (-), got (+):\n%s", a.n, a.at, d)
		}
	}
}

func TestModel(t *testing.T) {
	ok := func(at, n, remaining, reset int64) ask { return ask{at, n, Status{Remaining: remaining, Reset: reset}} }
	over := func(at, n, reset int64) ask { return ask{at, n, Status{Over: true, Reset: reset}} }
	const s = second
	run(t, Limit{Key: "k", PerUnit: 10, Window: 60}, ok(20*s, 9, 1, 40), over(21*s, 2, 39), over(22*s, 0, 38),
		ok(23*s, -1, 0, 37), ok(60*s, 1, 9, 60))
	run(t, Limit{Key: "k", PerUnit: 10, Window: 60, Algorithm: counter.SlidingWindow},
		ok(20*s, 1, 9, 100), ok(50*s, 9, 0, 70), over(50*s, 1, 16), over(60*s, 1, 6), ok(66*s, 1, 0, 114),
		ok(90*s, 3, 1, 90),
		ok(90*s, 0, 1, 90), ok(105*s, -2, 5, 75), over(120*s-1, 8, 1), ok(120*s, 8, 0, 120), over(120*s, 11, 120),
		ok(300*s, 1, 9, 120))
	run(t, Limit{Key: "k", PerUnit: 10, Window: 60, Burst: 10, Algorithm: counter.TokenBucket},
		ok(20*s, 1, 9, 6), ok(20*s, 9, 0, 60), over(20*s, 1, 6), over(26*s-1, 1, 1), ok(26*s, 1, 0, 60),
		ok(38*s, 0, 2, 48),
		over(38*s, 3, 6), ok(38*s, 2, 0, 60), ok(40*s, -5, 5, 28), ok(220*s, 0, 10, 1), over(220*s, 11, 1))
}

func TestModel_stop(t *testing.T) {
	second1 := Limit{Key: "s", PerUnit: 10, Window: 1}
	minute1 := Limit{Key: "m", PerUnit: 12, Window: 60}
	for stop, want := range map[bool][]Status{
		false: {{Remaining: 0, Reset: 1}, {Over: true, Reset: 1}, {Over: true, Limit: 1, Reset: 39}},
		true:  {{Remaining: 0, Reset: 1}, {Over: true, Reset: 1}, {Remaining: 0, Limit: 1, Reset: 39}},
	} {
		m := Model{Stop: stop}
		var got []Status
		for _, a := range []struct{ at, n int64 }{{20, 10}, {20, 1}, {21, 2}} {
			got = append(got, m.Request(minute+a.at*second, []Ask{{Limits: []Limit{second1, minute1}, N: a.n}})...)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("stop %v: want (-), got (+):\n%s", stop, d)
		}
	}
}

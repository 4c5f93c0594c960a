//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestComparisonTable(t *testing.T) {
	var out bytes.Buffer
	r := &report{out: &out}
	quiet := []float64{10, 10, 10}
	r.comparisonTable("table", []comparison{
		{"same", "CPU µs", []float64{10.4, 10.4, 10.4}, quiet, quiet},
		{"slower", "CPU µs", []float64{10.6, 10.6, 10.6}, quiet, quiet},
		{"noisy", "CPU µs", []float64{10.6, 10.6, 10.6}, quiet, []float64{9, 10, 11}},
		{"slower than noise", "CPU µs", []float64{11.2, 11.2, 11.2}, quiet, []float64{9, 10, 11}},
		{"more trips", "round trips", []float64{3}, []float64{2}, []float64{2}},
		{"refused in each round", "CPU µs", []float64{math.NaN()}, quiet, quiet},
		{"never measured", "CPU µs", nil, nil, nil},
	})
	want := `
table                           before  now    now ÷ before      again ÷ before    noise
same               CPU µs       10.00   10.40  1.04 [1.04–1.04]  1.00 [1.00–1.00]  ±0 %
slower             CPU µs       10.00   10.60  1.06 [1.06–1.06]  1.00 [1.00–1.00]  ±0 %   WORSE
noisy              CPU µs       10.00   10.60  1.06 [1.06–1.06]  1.00 [0.90–1.10]  ±10 %
slower than noise  CPU µs       10.00   11.20  1.12 [1.12–1.12]  1.00 [0.90–1.10]  ±10 %  WORSE
more trips         round trips  2.00    3.00   1.50 [1.50–1.50]  1.00 [1.00–1.00]  ±0 %   WORSE
3 of 5 figures are worse by more than 5 % and the row's noise
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestInverse keeps "larger is worse" for rates, and a measurement without answers out of the ratios.
func TestInverse(t *testing.T) {
	if got := inverse(rate.of)(sample{rate: 1000}); got != 1000 {
		t.Errorf("1,000 calls a second are %v µs a call, want 1000", got)
	}
	if got := inverse(rate.of)(sample{}); !math.IsNaN(got) {
		t.Errorf("no answers are %v µs a call, want NaN", got)
	}
}

func TestEditions(t *testing.T) {
	l := &testbed{daemon: "bin/ratelimit", against: "old"}
	for round, order := range [][]string{{"redis", "redis-before", "redis-again"},
		{"redis-before", "redis-again", "redis"}, {"redis-again", "redis", "redis-before"}} {
		got := l.withEditions(open(0, "redis"), round)
		if diff := cmp.Diff(open(0, order...), got, cmp.AllowUnexported(line{})); diff != "" {
			t.Errorf("round %d: (-want +got)\n%s", round, diff)
		}
	}
}

// TestMeasureLines measures the lines that have a process: of a yardstick there is one for each answer, and none for the
// earlier programs. A run that was refused keeps its place among the rounds.
func TestMeasureLines(t *testing.T) {
	r := &suite{results: newResults(), testbed: &testbed{daemon: "bin/ratelimit", against: "old"}}
	for _, name := range []string{"tuned single", "redis", "redis-before", "redis-again"} {
		r.targets[name] = &target{name: name}
	}
	for round := range 2 {
		err := r.measureLines(t.Context(), round, "ratelimit",
			r.testbed.withEditions(closed("single", "tuned", "redis", "gone"), round),
			func(_ context.Context, _ int, l line) (sample, error) {
				if round == 0 && l.target == "redis" {
					return none, errors.New("refused")
				}
				return sample{cpu: 7}, nil
			})
		if err != nil {
			t.Fatal(err)
		}
	}
	want := closed("single", "tuned", "redis", "redis-before", "redis-again")
	if diff := cmp.Diff(want, group(r.lines), cmp.AllowUnexported(line{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := spreadOf(r.of(want[1], cpu)); len(r.samples[want[1]]) != 2 || got != (spread{7, 7, 7}) {
		t.Errorf("one run of two was refused: %d samples, %v", len(r.samples[want[1]]), got)
	}
	if len(r.refused) != 1 {
		t.Errorf("refused: %q", r.refused)
	}
}

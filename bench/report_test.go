//go:build linux

package main

import (
	"bytes"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSpread(t *testing.T) {
	f := func(values []float64, want spread) {
		t.Helper()
		if got := spreadOf(values); got != want {
			t.Errorf("spreadOf(%v) = %+v, want %+v", values, got, want)
		}
	}
	f(nil, spread{})
	f([]float64{3}, spread{3, 3, 3})
	f([]float64{3, 1, 2}, spread{2, 1, 3})
	f([]float64{4, 1, 2, 3}, spread{2.5, 1, 4})
	f([]float64{math.NaN(), 1, 2, 3}, spread{2, 1, 3})
	f([]float64{math.NaN()}, spread{})
}

func TestRatios(t *testing.T) {
	f := func(of, by, want []float64) {
		t.Helper()
		if diff := cmp.Diff(want, ratios(of, by)); diff != "" {
			t.Errorf("ratios(%v, %v): (-want +got)\n%s", of, by, diff)
		}
	}
	f([]float64{2, 9}, []float64{1, 3}, []float64{2, 3})
	f([]float64{2, 9}, []float64{1}, []float64{2}) // a round that was cut short
	f([]float64{2, 9}, []float64{0, 3}, []float64{3})
	f(nil, []float64{1}, nil)
	f([]float64{math.NaN(), 9}, []float64{1, 3}, []float64{3}) // a run that was refused
	f([]float64{2, 9}, []float64{math.NaN(), 3}, []float64{3})
}

func TestBudgets(t *testing.T) {
	var out bytes.Buffer
	r := &report{out: &out}
	r.atMost(1.25, " ×", "single", []float64{1.2, 1.1, 1.3})
	r.atMost(40, " ms", "start", []float64{50}, "cold")
	r.atMost(40, " ms", "never measured", nil)
	r.atMost(40, " ms", "refused in each round", []float64{math.NaN()})
	r.add([]float64{4}, budget{what: "rate", unit: " ×", limit: 5, atLeast: true})
	r.add([]float64{6}, budget{what: "higher rate", unit: " ×", limit: 5, atLeast: true})
	r.printBudgets("budgets")
	want := `
budgets      median    min    max    budget
single       1.20 ×    1.10   1.30   ≤ 1.25 ×  met
start        50.00 ms  50.00  50.00  ≤ 40 ms   MISSED by 25 %  cold
rate         4.00 ×    4.00   4.00   ≥ 5 ×     MISSED by 20 %
higher rate  6.00 ×    6.00   6.00   ≥ 5 ×     met
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestRuleText holds what the scenarios rely on without the daemon: every descriptor they send has a
// rule, or was meant to have none. That the daemon reads the rules is shown by every run.
func TestRuleText(t *testing.T) {
	if n := bytes.Count(ruleText(100, 7), []byte("value: /v1/items/")); n != 100 {
		t.Errorf("%d further rules, want 100", n)
	}
	if bytes.Equal(ruleText(1, 1), ruleText(1, 2)) {
		t.Error("two generations of rules are the same")
	}
}

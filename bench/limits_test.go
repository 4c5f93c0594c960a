//go:build linux

package main

import (
	"slices"
	"testing"
)

// TestLimitBudgets has each budget's line and its twin measured in the same group, so that no ratio is missing.
func TestLimitBudgets(t *testing.T) {
	budgets := limitBudgets()
	if len(budgets) < 20 {
		t.Errorf("%d budgets", len(budgets))
	}
	for _, b := range budgets {
		if !slices.ContainsFunc(
			limitGroups(), func(g group) bool { return slices.Contains(g, b.line) && slices.Contains(g, b.twin) }) {
			t.Errorf("%s and its twin %s are in no group", b.line.row(), b.twin.row())
		}
		if b.twin == b.line {
			t.Errorf("%s is its own twin", b.line.row())
		}
		if scenarios[b.line.scenario].keys == 0 || scenarios[b.twin.scenario].keys == 0 {
			t.Errorf("%s: no such scenario", b.line.row())
		}
	}
}

func TestWantsLimits(t *testing.T) {
	f := func(only string, l line, want bool) {
		t.Helper()
		s := &suite{only: only}
		if got := s.wants("ratelimit", l); got != want {
			t.Errorf("-only %s measures %s: %v, want %v", only, l.row(), got, want)
		}
	}
	sliding := line{scenario: "sliding", target: "redis" + limitsRules}
	fixed := line{scenario: "fixed", target: "redis" + limitsRules}
	tapped := fixed
	tapped.via = viaTap
	f("limits", sliding, true)
	f("limits", fixed, true)
	f("limits", tapped, true)
	f("limits", line{scenario: "single", target: "redis"}, false)
	f("ratelimit", tapped, true)
	f("sliding", sliding, true)
	f("sliding", fixed, true)
	f("sliding", tapped, false)
	f("cidr", fixed, false)
	f("tap", fixed, true)
	f("tap", tapped, true)
	f("tap", sliding, false)
}

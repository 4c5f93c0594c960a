//go:build linux

package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// limitsRules marks the targets with the rules of limitRules.
const limitsRules = ", limits"

// twins maps a scenario to one that counts the same requests in fixed windows, or finds the same rules by exact values.
var twins = map[string]string{
	"sliding": "fixed", "bucket": "fixed", "bucket hot": "fixed hot", "sliding overlimit": "fixed overlimit",
	"list": "fixed list", "cidr": "values",
}

// limitScenarios returns the scenarios for the rules of limitRules.
func limitScenarios() []scenario {
	return []scenario{
		{name: "fixed", request: "(fixed,key-#)", keys: 10_000},
		{name: "sliding", request: "(sliding,key-#)", keys: 10_000},
		{name: "bucket", request: "(bucket,key-#)", keys: 10_000},
		{name: "fixed hot", request: "(fixed,one)", keys: 1},
		{name: "bucket hot", request: "(bucket,one)", keys: 1},
		{name: "fixed overlimit", request: "(fixed_spent,one)", keys: 1, over: true},
		{name: "sliding overlimit", request: "(sliding_spent,one)", keys: 1, over: true},
		{name: "fixed list", request: "(fixed_list,key-#)", keys: 10_000},
		{name: "list", request: "(list,key-#)", keys: 10_000},
		{name: "values", request: "(path,/v1/items/#)", keys: networkCount},
		{name: "cidr", request: "(address,2001:db8:@::1)", keys: networkCount},
	}
}

// networkCount is how many prefixes or values one key has; valuesPerEntry is the most that one entry may have.
const networkCount, valuesPerEntry = 10_000, 1_000

// fewLimits is a format: domain, plenty. It has a window that no run fills, and a bucket that no run drains, so each
// key keeps its counter for the whole run.
//
//go:embed limits.yaml
var fewLimits string

// limitRules returns the rules for limitScenarios.
func limitRules() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, fewLimits, domain, plenty)
	for i := range networkCount {
		if i%valuesPerEntry == 0 {
			fmt.Fprintf(&b, "  - key: path\n    rate_limit: %s\n    values:\n", plenty)
		}
		fmt.Fprintf(&b, "      - /v1/items/%07d\n", i)
	}
	fmt.Fprintf(&b, "  - key: address\n    rate_limit: %s\n    cidr:\n", plenty)
	for i := range networkCount {
		fmt.Fprintf(&b, "      - '2001:db8:%03d:%04d::/64'\n", i/10_000, i%10_000)
	}
	return []byte(b.String())
}

// limitStores are the stores that count by every algorithm.
var limitStores = []string{"memory", "redis", "cluster"}

// limitGroups returns each kind of limit next to its twin on each store.
func limitGroups() (all []group) {
	for _, store := range limitStores {
		on := store + limitsRules
		fixed := append(each(on, "fixed", "sliding", "bucket"), line{scenario: "fixed", target: on, via: viaTap},
			line{scenario: "fixed", target: store + "+top" + limitsRules, via: viaTop})
		all = append(all, fixed, each(on, "fixed hot", "bucket hot"), each(on, "fixed overlimit", "sliding overlimit"),
			each(store+"+cache"+limitsRules, "fixed overlimit", "sliding overlimit"), each(on, "fixed list", "list"),
			each(on, "values", "cidr"))
	}
	slow := each("redis"+limitsRules, "fixed", "sliding", "bucket")
	for i := range slow {
		slow[i].open = true
	}
	return append(all, slow)
}

// listen opens a tap of a daemon with the default rate, 100 events a second, and reads it until stop is called.
func listen(ctx context.Context, t *target) (stop func(), err error) {
	answer, err := fetch(ctx, http.DefaultClient, "http://"+t.debug+"/tap?rate=100&seconds=3600", "")
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(io.Discard, answer)
	}()
	return func() { answer.Close(); <-done }, nil
}

// limitBudgets returns the budgets of each kind of limit, relative to its twin.
func limitBudgets() (all []ratioBudget) {
	add := func(limit float64, l line, name string, figure func(sample) float64) {
		twin := l
		twin.via, twin.target = "", strings.Replace(l.target, "+top", "", 1)
		if scenario, ok := twins[l.scenario]; ok {
			twin.scenario = scenario
		}
		all = append(all, ratioBudget{line: l, name: name, figure: figure, limit: limit, twin: twin})
	}
	for _, g := range limitGroups() {
		for _, l := range g {
			_, counted := twins[l.scenario]
			switch {
			case l.via == viaTap:
				add(1.02, l, "CPU", cpuOf)
			case l.via == viaTop:
				add(1.03, l, "CPU", cpuOf)
			case counted && l.open:
				add(1.3, l, "p99", p99Of)
				add(1.15, l, "CPU", cpuOf) // at the same rate, unlike in a closed loop
			case counted:
				add(1.15, l, "CPU", cpuOf)
			}
		}
	}
	return all
}

// compareLimits compares sliding windows, token buckets, lists, networks and the debug port's pages with their budgets.
func (s *suite) compareLimits() {
	s.judge(limitBudgets())
	for _, scenario := range []string{"sliding", "bucket"} {
		l := line{scenario: scenario, target: "redis" + limitsRules}
		s.report.atMost(8, " µs", l.row()+": Redis' CPU a scripted key", s.of(l, storeOf))
	}
}

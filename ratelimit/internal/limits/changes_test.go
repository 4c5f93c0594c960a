package limits

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestRules_ChangesSince(t *testing.T) {
	f := func(before, after string, want Changes) {
		t.Helper()
		load := func(text string) *Rules { return mustLoad(t, Options{}, File{"f.yaml", []byte(text)}) }
		if d := cmp.Diff(want, load(after).ChangesSince(load(before)), cmpopts.IgnoreUnexported(Changes{})); d != "" {
			t.Errorf("%s -> %s (-want +got):\n%s", before, after, d)
		}
	}
	rule := func(name, limit string, more ...string) string {
		return "- {key: k, value: " + name + ", rate_limit: {unit: minute, requests_per_unit: " +
			limit + "}" + strings.Join(more, "") + "}\n"
	}
	const head = "domain: d\ndescriptors:\n"
	below := ", descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 7}}]"
	f(head+rule("a", "1"), head+rule("a", "1"), Changes{})
	f(head+rule("a", "1")+rule("b", "2"), head+rule("b", "2")+rule("a", "1"), Changes{}) // order alone
	f(head+rule("a", "1"), head+rule("a", "2"),
		Changes{Changed: 1, First: []string{"~ d k_a: 1 per MINUTE -> 2 per MINUTE"}})
	f(head+rule("a", "1"), head+rule("a", "1", ", shadow_mode: true"),
		Changes{Changed: 1, First: []string{"~ d k_a: 1 per MINUTE"}})
	f(head+rule("a", "1", ", metadata: {x: 1}"), head+rule("a", "1", ", metadata: {x: 2}"),
		Changes{Changed: 1, First: []string{"~ d k_a: 1 per MINUTE"}})
	f(head+rule("a", "1"), head+rule("b", "1")+rule("a", "1", below),
		Changes{Added: 2, First: []string{"+ d k_b: 1 per MINUTE", "+ d k_a.b: 7 per DAY"}})
	f(head+rule("b", "1")+rule("a", "1", below), head+rule("a", "1"),
		Changes{Removed: 2, First: []string{"- d k_a.b: 7 per DAY", "- d k_b: 1 per MINUTE"}})
	f("domain: c\ndescriptors:\n"+rule("a", "1"), head+rule("a", "1"),
		Changes{Added: 1, Removed: 1, First: []string{"+ d k_a: 1 per MINUTE", "- c k_a: 1 per MINUTE"}})
	by := func(name string) string {
		return "- {key: k, rate_limit: {unlimited: true, replaces: [{name: " + name + "}]}}\n"
	}
	f(head+by("x")+rule("a", "1"), head+rule("a", "1")+by("x"), Changes{})
	two := "- {key: l, rate_limit: {unlimited: true, name: x}}\n- {key: m, rate_limit: {unlimited: true, name: y}}\n"
	f(head+two+by("x"), head+two+by("y"), Changes{Changed: 1, First: []string{"~ d k: unlimited"}})
	many, first := head, []string(nil)
	for i := range 30 {
		many += rule(fmt.Sprint("v", i), "1")
		if i < maxChanges {
			first = append(first, fmt.Sprintf("+ d k_v%d: 1 per MINUTE", i))
		}
	}
	f("domain: d\n", many, Changes{Added: 30, First: first})
}

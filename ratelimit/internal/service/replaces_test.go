package service

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/rls"
)

// replacingRules are the matched rules of a request with one descriptor for each list of names to
// replace; the rule of descriptor i is called r<i>.
func replacingRules(tb testing.TB, names int, lists [][]int) []*limits.Rule {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range max(names, len(lists)) {
		fmt.Fprintf(&b, "- {key: k, value: v%d, rate_limit: {unit: day, requests_per_unit: 1, name: r%d, replaces: [",
			i, i)
		if i < len(lists) {
			for _, x := range lists[i] {
				if x != i {
					fmt.Fprintf(&b, "{name: r%d},", x)
				}
			}
		}
		b.WriteString("]}}\n")
	}
	r, _, err := rulefile.Load(context.Background(), []rulefile.File{{Name: "f.yaml", Text: []byte(b.String())}},
		limits.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	var matched []*limits.Rule
	for i := range lists {
		matched = append(matched, r.Domain("d").Find([]rls.Entry{{Key: "k", Value: fmt.Sprintf("v%d", i)}}))
	}
	return matched
}

// dropReplaced is what a call keeps of the rules that its descriptors match.
func dropReplaced(matched []*limits.Rule) []*limits.Rule {
	c := Call{rules: matched}
	for i, r := range matched {
		c.plan = append(c.plan, step{rule: r, descriptor: i})
	}
	c.dropReplaced()
	return c.rules
}

// A rule is dropped when any matched rule names it, however long the lists are.
func TestDropReplaced(t *testing.T) {
	for range 30 {
		const names = 200
		lists := make([][]int, 1+rand.IntN(20))
		for i := range lists {
			for range rand.IntN(1 << rand.IntN(7)) {
				lists[i] = append(lists[i], rand.IntN(names))
			}
		}
		matched := replacingRules(t, names, lists)
		before := slices.Clone(matched)
		matched = dropReplaced(matched)
		for i, r := range matched {
			replaced := false
			for by, list := range lists {
				replaced = replaced || by != i && slices.Contains(list, i)
			}
			if (r == nil) != replaced {
				t.Fatalf("rule %d of %v: dropped %v, want %v (%v)", i, lists, r == nil, replaced, before[i])
			}
		}
	}
}

// BenchmarkDropReplaced is a call whose 256 descriptors each replace 10,000 rules, none of which it
// matches.
func BenchmarkDropReplaced(b *testing.B) {
	const names, matched = 10_256, 256
	lists := make([][]int, matched)
	for i := range lists {
		for x := matched; x < names; x++ {
			lists[i] = append(lists[i], x)
		}
	}
	rules := replacingRules(b, names, lists)
	for b.Loop() {
		dropReplaced(rules)
	}
}

package limits

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// replacing is a domain of n rules; each replaces those whose numbers to names, by a prefix of its own.
func replacing(n int, to func(i int) []string) File {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range n {
		fmt.Fprintf(&b,
			"- {key: k, value: v%d, rate_limit: {unit: day, requests_per_unit: 1, name: rule%d, replaces: [", i, i)
		for _, name := range to(i) {
			fmt.Fprintf(&b, "{name: %s},", name)
		}
		b.WriteString("]}}\n")
	}
	return File{"f.yaml", []byte(b.String())}
}

func warningsOf(t *testing.T, f File) []Problem {
	t.Helper()
	_, warnings, err := Load(context.Background(), []File{f}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return warnings
}

// A generated file that replaces rules of another one gets a bounded number of suggestions.
func TestReplaces_suggestions(t *testing.T) {
	suggested := 0
	warnings := warningsOf(t, replacing(2000, func(i int) []string { return []string{fmt.Sprintf("rul%d", i)} }))
	for _, w := range warnings {
		if strings.Contains(w.Message, "did you mean rule") {
			suggested++
		}
	}
	if len(warnings) != maxProblems || suggested != maxSuggestions {
		t.Errorf("%d warnings, %d with a suggestion; want %d and %d", len(warnings), suggested, maxProblems,
			maxSuggestions)
	}
	rep := NewReport(context.Background(), false)
	var known []string
	for i := range maxCompared/10 + 7 {
		known = append(known, fmt.Sprintf("rule%06d", i))
	}
	for range maxSuggestions {
		rep.suggest("zzzz000000", known)
	}
	if rep.compared > maxCompared {
		t.Errorf("%d names compared, at most %d", rep.compared, maxCompared)
	}
}

// The bound of distance changes no distance below it.
func TestDistance(t *testing.T) {
	for range 20_000 {
		a, b := randomText("abc", 6), randomText("abc", 6)
		exact := distance(a, b, 100)
		for limit := 1; limit < 5; limit++ {
			if got := distance(a, b, limit); min(got, limit) != min(exact, limit) {
				t.Fatalf("%s %s: %d with limit %d, else %d", a, b, got, limit, exact)
			}
		}
	}
}

func randomText(letters string, atMost int) string {
	b := make([]byte, rand.IntN(atMost+1))
	for i := range b {
		b[i] = letters[rand.IntN(len(letters))]
	}
	return string(b)
}

// Rules that replace each other are reported once for each group, by at most ten of them.
func TestReplaces_circles(t *testing.T) {
	next := func(of, step int) func(i int) []string {
		return func(i int) []string { return []string{fmt.Sprintf("rule%d", i/of*of+(i+step)%of)} }
	}
	every := func(n int) func(i int) []string {
		return func(int) (names []string) {
			for i := range n {
				names = append(names, fmt.Sprintf("rule%d", i))
			}
			return names
		}
	}
	f := func(file File, want ...string) {
		t.Helper()
		warnings := warningsOf(t, file)
		if len(warnings) != len(want) {
			t.Errorf("%d warnings, want %d: %.300v", len(warnings), len(want), warnings)
			return
		}
		for i, w := range warnings {
			if !strings.Contains(w.Message, "in a circle ("+want[i]+");") || len(w.Message) > 300 {
				t.Errorf("%s\nwant %s", w.Message, want[i])
			}
		}
	}
	f(replacing(3, next(3, 1)), "rule0 replaces rule1 replaces rule2 replaces rule0")
	f(replacing(4, next(2, 1)), "rule0 replaces rule1 replaces rule0", "rule2 replaces rule3 replaces rule2")
	f(replacing(10, next(10, 1)),
		"rule0 replaces rule1 replaces rule2 replaces rule3 replaces rule4 replaces rule5 replaces rule6 replaces "+
			"rule7 replaces rule8 replaces rule9 replaces rule0")
	f(replacing(5000, next(5000, 1)),
		"rule0 replaces rule1 replaces rule2 replaces rule3 replaces rule4 replaces rule5 replaces rule6 replaces "+
			"rule7 replaces rule8 replaces rule9 and so on, 5000 rules in all")
	// Each further way back to a rule is reported as the same circle.
	f(replacing(300, func(i int) []string {
		return []string{fmt.Sprintf("rule%d", (i+1)%300), "rule0", "rule7"}[:1+min(1, i)+i/200]
	}),
		"rule0 replaces rule1 replaces rule0")
	f(replacing(5000, func(i int) []string { return []string{fmt.Sprintf("rule%d", min(i+2, 4999))}[:min(1, 4999-i)] }))
	own := replacing(40, every(40)) // naming itself is an error of its own
	own.Text = []byte(strings.ReplaceAll(string(own.Text), "name: rule", "name: x"))
	if _, _, err := Load(context.Background(), []File{own}, Options{}); err == nil {
		t.Error("a rule that replaces itself loads")
	}
}

// ReplacesID says the same of any list, searched or as bits.
func TestRule_ReplacesID(t *testing.T) {
	for _, c := range []struct{ length, span uint32 }{{0, 1}, {1, 1}, {16, 40}, {17, 17}, {17, 40}, {100, 5000},
		{100, 50_000}, {1000, 1000}} {
		var ids []uint32
		for len(ids) < int(c.length) {
			ids = append(ids, 5+rand.Uint32N(c.span))
			slices.Sort(ids)
			ids = slices.Compact(ids)
		}
		r := Rule{levels: &ruleLevels{replaces: ids, replaced: replacedBits(ids)}}
		for id := range c.span + 200 {
			if got, want := r.ReplacesID(id), slices.Contains(ids, id); got != want {
				t.Fatalf("%d of %d: id %d: %v, want %v", c.length, c.span, id, got, want)
			}
		}
	}
}

// BenchmarkReplaces loads rules whose replaces name rules that are not there, or go in one circle.
func BenchmarkReplaces(b *testing.B) {
	const n = 5000
	for name, f := range map[string]File{
		"missing": replacing(n, func(i int) []string { return []string{fmt.Sprintf("rul%d", i)} }),
		"circle": replacing(n, func(i int) []string {
			return []string{fmt.Sprintf("rule%d", (i+1)%n), "rule0"}[:min(2, i+1)]
		}),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				mustLoad(b, Options{}, f)
			}
		})
	}
}

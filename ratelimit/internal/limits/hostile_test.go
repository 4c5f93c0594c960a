package limits

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Files made to overflow the stack, to fill memory or to keep a reload busy come to a verdict at
// once. Unguarded, the parser takes minutes for some of these at ten times the size, and ends the
// process for others.
func TestLoad_hostile(t *testing.T) {
	const n = 20_000
	f := func(text, want string) {
		t.Helper()
		_, _, err := Load(context.Background(), []File{{"f.yaml", []byte(text)}}, Options{})
		if err == nil || !strings.HasPrefix(err.Error(), "f.yaml:"+want) {
			t.Errorf("%.20q: %.200v\nwant f.yaml:%s", text, err, want)
		}
	}
	rep := strings.Repeat
	f(rep("[", n), "1:1001: nested deeper than 1000 levels")
	f(rep("{a: ", n), "1:4001: nested deeper than 1000 levels")
	f(rep("[{", n), "1:1001: nested deeper than 1000 levels")
	f(rep("- ", n), "1:2001: nested deeper than 1000 levels")
	f(rep("? ", n), "1:2001: nested deeper than 1000 levels")
	f(rep("!!str ", n), "1:5001: nested deeper than 1000 levels")
	f(rep("&a ", n), "1:3001: nested deeper than 1000 levels")
	f(rep("]", n), "1:1: not YAML: ] closes nothing")
	f("["+rep(",", n), "1:2: not YAML: nothing stands before the comma")
	f(rep("a: ", n), "1:302: more than 100 colons on one line")
	f(rep("%", n), "1:1: a line --- must follow the directives")
	f(rep("---\na: b\n", n), "3:1: a second YAML document")
	f(rep("a: >\n", n), "1001:2: a map with more than 1000 keys")
	f(rep("\"a\": b\n", n), "1001:4: a map with more than 1000 keys")
	f("a: &a {}\nb:\n"+rep("- <<: *a\n", n), "10003:3: more than 10000 merge keys (<<)")
	f("a: &a {}\nb: ["+rep("{<<: *a},", n)+"]", "2:90006: more than 10000 merge keys (<<)")
	f(strings.Repeat(" ", MaxFileBytes+1), "1:1: the file has 67108865 bytes, at most 67108864 are read")

	var deep strings.Builder
	for i := range 1500 {
		deep.WriteString(rep(" ", i) + "\"a\":\n")
	}
	f(deep.String(), "1001:1004: nested deeper than 1000 levels")

	var bomb strings.Builder
	bomb.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := range 30 {
		fmt.Fprintf(&bomb, "a%d: &a%d [%s*a%d]\n", i+1, i+1, rep(fmt.Sprintf("*a%d, ", i), 9), i)
	}
	f(bomb.String(), "6:45: aliases stand for more than 1000000 values")

	bomb.Reset()
	bomb.WriteString("a: &a {" + rep("x: y, ", 2000) + "}\nb:\n")
	for range n / 2 {
		bomb.WriteString("- {<<: *a}\n")
	}
	f(bomb.String(), "169:8: aliases stand for more than 1000000 values")
}

// TestLoad_mistakeMemory: what a mistake in a long line costs is in proportion to the line.
func TestLoad_mistakeMemory(t *testing.T) {
	cost := func(n int) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		text := "a: &a {}\nb: [" + strings.Repeat("{c: *a},", n) + "]"
		if _, _, err := Load(context.Background(), []File{{"f.yaml", []byte(text)}}, Options{}); err == nil {
			t.Error("the mistake is not found")
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	if short, long := cost(1000), cost(8000); long > 16*short {
		t.Errorf("%d KiB, and %d KiB for 8 times as much", short>>10, long>>10)
	}
}

// What is deep but within bounds loads.
func TestLoad_deep(t *testing.T) {
	const levels = 400
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors: ")
	for range levels {
		b.WriteString("[{key: k, descriptors: ")
	}
	b.WriteString("[{key: k, " + perMinute("1") + "}]" + strings.Repeat("}]", levels))
	r := mustLoad(t, Options{}, File{"f.yaml", []byte(b.String())})
	if r.Domain("d").Find(entriesOf(t, strings.Repeat("(k,v)", levels+1))) == nil {
		t.Error("no rule")
	}
}

// A paced load leaves most of the time to requests; the result is that of any other.
func TestLoad_paced(t *testing.T) {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range 20_000 {
		fmt.Fprintf(&b, "- {key: k, value: v%d, %s}\n", i, perMinute("1"))
	}
	file := File{"f.yaml", []byte(b.String())}
	start := time.Now()
	r := mustLoad(t, Options{Paced: true}, file)
	paced := time.Since(start)
	if r.Domain("d").Find(entriesOf(t, "(k,v19999)")) == nil {
		t.Error("no rule")
	}
	rep := NewReport(t.Context(), true)
	worked := time.Now()
	for range stepsPerPause {
		rep.Step()
	}
	if rested := time.Since(worked); rested < restTime {
		t.Errorf("the first pause of a paced load rested %v, want at least %v", rested, restTime)
	}
	if again := rep.rested; !rep.Step() || rep.rested != again {
		t.Error("rested again after one step")
	}
	t.Logf("20,000 rules, paced: %v", paced)
}

// A load ends soon after its context, in whatever it is.
func TestLoad_abandoned(t *testing.T) {
	why := errors.New("the daemon stops")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(why)
	for _, f := range []File{manyRules(10_000), richRules(10_000)} {
		r, warnings, err := Load(ctx, []File{f}, Options{})
		if r != nil || warnings != nil || !errors.Is(err, why) {
			t.Errorf("%v %v %v", r, warnings, err)
		}
	}
	r, _, err := LoadResources(ctx, [][]byte{{}}, Options{})
	if r != nil || !errors.Is(err, why) {
		t.Errorf("%v %v", r, err)
	}
}

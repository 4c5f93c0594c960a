package rulefile

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/testing/protocmp"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/shared/must"
)

// FuzzPlain holds readPlain to the library: what it reads, the library reads as the same tree.
// Columns are compared only where no space ends the line, after which the library's are off by one.
func FuzzPlain(f *testing.F) {
	for _, s := range yamlSeeds(f) {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		mine, _ := readPlain(text, nil)
		if mine == nil {
			return
		}
		sameEntries(t, text, mine)
		// The library drops tabs inside texts and refuses them before keys.
		text = strings.ReplaceAll(text, "\t", " ")
		theirs, bad := parseAnyYAML(text, directives{})
		if bad != nil {
			t.Fatalf("the library refuses it: %v %s", bad.pos, bad.message)
		}
		columns := !strings.Contains(text, " \n") && !strings.Contains(text, " \r") && !strings.HasSuffix(text, " ")
		if a, b := noTabs(outline(mine, columns)), noTabs(outline(theirs, columns)); a != b {
			t.Fatalf("readPlain reads\n%s\nthe library\n%s", a, b)
		}
	})
}

// noTabs shows tabs as spaces.
func noTabs(outline string) string { return strings.ReplaceAll(outline, `\t`, " ") }

// sameEntries compares a document read item by item with one read from the whole tree.
func sameEntries(t *testing.T, text string, root *node) {
	rep := limits.NewReport(context.Background(), false)
	r := &reader{file: "f.yaml", report: rep}
	whole := r.document(root)
	streamed, ok := streamDocument("f.yaml", text, rep)
	if ok != (r.wrong == 0) {
		t.Fatalf("read item by item: %v, problems of the whole: %d", ok, r.wrong)
	}
	if ok {
		if d := cmp.Diff(whole, streamed, cmp.AllowUnexported(limits.Document{}, limits.Entry{}, limits.Limit{},
			limits.Replaced{}, limits.Pos{}, limits.Match{}, limits.Item{}), protocmp.Transform(),
			cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("(-whole +streamed):\n%s", d)
		}
	}
}

// outline is a tree as text, for comparing and for messages.
func outline(n *node, columns bool) string {
	var b strings.Builder
	var write func(n *node, indent int)
	at := func(n *node) string {
		if columns && !n.isNull() { // a null that is not written has no place of its own
			return fmt.Sprintf("%d:%d", n.pos.Line, n.pos.Column)
		}
		return fmt.Sprint(n.pos.Line)
	}
	write = func(n *node, indent int) {
		switch n.kind {
		case textNode:
			fmt.Fprintf(&b, "%s plain=%v %q\n", at(n), n.plain, n.text)
		default:
			fmt.Fprintf(&b, "%s %s\n", at(n), n.what())
			for _, p := range n.pairs {
				b.WriteString(strings.Repeat("  ", indent))
				if p.key != nil {
					write(p.key, indent+1)
					b.WriteString(strings.Repeat("  ", indent))
				}
				write(p.value, indent+1)
			}
		}
	}
	write(n, 1)
	return b.String()
}

// yamlSeeds are texts with the parts of YAML, one quoted on each line.
func yamlSeeds(f *testing.F) (seeds []string) {
	text, err := os.ReadFile("../testdata/yaml.txt")
	must.Succeed(f, err)
	for line := range strings.Lines(string(text)) {
		seed, err := strconv.Unquote(strings.TrimSpace(line))
		must.Succeed(f, err)
		seeds = append(seeds, seed)
	}
	return seeds
}

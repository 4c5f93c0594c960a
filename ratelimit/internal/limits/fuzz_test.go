package limits

import (
	"fmt"
	"strings"
	"testing"
)

// FuzzPlain holds readPlain to the library: what it reads, the library reads as the same tree.
// Columns are compared only where no space ends the line, after which the library's are off by one.
func FuzzPlain(f *testing.F) {
	for _, s := range yamlSeeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		mine := readPlain(text)
		if mine == nil {
			return
		}
		theirs, bad := parseAnyYAML(text)
		if bad != nil {
			t.Fatalf("the library refuses it: %v %s", bad.pos, bad.message)
		}
		columns := !strings.Contains(text, " \n") && !strings.HasSuffix(text, " ")
		if a, b := outline(mine, columns), outline(theirs, columns); a != b {
			t.Fatalf("readPlain reads\n%s\nthe library\n%s", a, b)
		}
	})
}

var yamlSeeds = []string{
	"domain: d\ndescriptors:\n  - key: a\n    value: b\n    rate_limit:\n      unit: minute\n      requests_per_unit: 3\n",
	"---\ndomain: d # x\n# y\n\ndescriptors:\n- key: 'a b'\n  value: \"c\" # z\n-\n  key: /api/*/x\n- key: a:b#c\n  value:\n  descriptors:\n  - key: x\n",
	"a: yes\nb: 0x1F\nc: 1.50\nd: ~\ne: null\nf: -1\ng: .5\nh: +5\n",
	"- a\n- b: c\n  d: e\n-\n- f\n",
	"a:\n- b\n- c\nd: e, f [g] {h} & i\n",
	"a: b\n c: d\n", "a: b\n  c\n", "a: b: c\n", "a:\n   b: c\n  d: e\n", "a: |\n  x\n", "a: &x b\nc: *x\n", "<<: a\n", "a: b\na: c\n",
	"? a\n: b\n", "a: {b: c}\n", "a: [b]\n", "a\n", "- - a\n", "a: 'b''c'\n", "a: \"b\\n\"\n", "a: b\n---\nc: d\n", "a: b\n...\n", "%YAML 1.1\n---\na: b\n",
	"a:    \n  b: c\n", "a: b   \n", "a: b #\n", "a: b#\n", "a: #c\n", "a:#c\n", "a: 'b'c\n", "a: 'b' c\n", "a: -\n", "a: - b\n", "- -\n", "a.b-c_d: e\n", "null: a\n", "true: b\n", "a: b\n\n\n  # c\nd: e\n",
}

// outline is a tree as text, for comparing and for messages.
func outline(n *node, columns bool) string {
	var b strings.Builder
	var write func(n *node, indent int)
	at := func(n *node) string {
		if columns && !n.isNull() { // a null that is not written has no place of its own
			return fmt.Sprintf("%d:%d", n.pos.line, n.pos.column)
		}
		return fmt.Sprint(n.pos.line)
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

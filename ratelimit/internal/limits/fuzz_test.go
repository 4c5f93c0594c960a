package limits

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/testing/protocmp"

	"gatehouse/ratelimit/internal/rls"
)

// FuzzLoad gives the loader any text. A refusal names at least one problem and where it is; what
// is accepted can be searched, explained and shown.
func FuzzLoad(f *testing.F) {
	for _, s := range yamlSeeds {
		f.Add(s)
	}
	for _, s := range ruleSeeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<14 {
			return
		}
		r, _, err := Load(context.Background(), []File{{"f.yaml", []byte(text)}}, Options{NearRatio: 0.8})
		if err != nil {
			refusal, ok := errors.AsType[*Rejection](err)
			if !ok || r != nil || len(refusal.Problems) == 0 {
				t.Fatalf("refused with %v and rules %v", err, r)
			}
			for _, p := range refusal.Problems {
				if p.Line < 1 || p.Column < 1 || p.Message == "" || strings.Contains(p.String(), "\n") {
					t.Fatalf("bad problem %+v", p)
				}
			}
			return
		}
		if err := r.WriteText(io.Discard); err != nil {
			t.Fatal(err)
		}
		if _, err := json.Marshal(r.View()); err != nil {
			t.Fatal(err)
		}
		for _, d := range r.Domains() {
			d.root.each(func(s *step) { checkReachable(t, r, d, s) })
		}
	})
}

// checkReachable asks for an entry by its own texts. It is found unless an entry above it is not
// chosen for its text, as with two ways to write one pattern.
func checkReachable(t *testing.T, r *Rules, d *Domain, s *step) {
	var entries []rls.Entry
	covered := false // a pattern takes the empty text that an entry for any value is asked for with
	for up := s; up.parent != nil; up = up.parent {
		value := up.value
		for _, sibling := range up.parent.below.steps {
			covered = covered || value == "" && sibling.key == up.key && sibling.pattern != nil && sibling.pattern.match("")
		}
		if up.pattern == nil {
			value = up.literal()
		} else if up.pattern.escaped {
			return
		}
		entries = append([]rls.Entry{{Key: up.key, Value: value}}, entries...)
	}
	rule := d.Find(entries)
	x := r.ExplainAt(d.Name, entries, 1700000000)
	if x.Decides != rule || x.Reason == "" || x.Text() == "" {
		t.Fatalf("explain and find differ for %v: %s", entries, x.Text())
	}
	if rule != nil {
		r.AppendKey(nil, rule, d.Name, entries, 0)
		rule.AppendMetricKey(nil, d.Name, entries)
	}
	if rule != s.rule && !covered && !strings.Contains(s.path(), "*") {
		t.Fatalf("%s is not found by its own texts", s.path())
	}
}

// FuzzPattern holds the matcher to a regular expression, and the warning about covered wildcards
// to its word.
func FuzzPattern(f *testing.F) {
	f.Add("a*b*a", "a1b2a", "a*")
	f.Add("aa*aa", "aaa", "**")
	f.Add(`a\*b*`, `a*bc`, `*\\*`)
	f.Fuzz(func(t *testing.T, value, text, other string) {
		if !utf8.ValidString(value) {
			return // regexp takes UTF-8 only
		}
		literal, p := parseValue(value)
		if p == nil {
			if want := unescapeStars(value); literal != want {
				t.Fatalf("%q is %q, want %q", value, literal, want)
			}
			return
		}
		match := p.match(text)
		if want := patternRegexp(value).MatchString(text); match != want {
			t.Fatalf("%q matches %q: %v, want %v", value, text, match, want)
		}
		if _, q := parseValue(other); q != nil && match && !strings.Contains(other, "\xff") && q.match(p.joined("\xff")) && !q.match(text) {
			t.Fatalf("%q is said to cover %q but does not match %q", other, value, text)
		}
	})
}

var escapedStar = regexp.MustCompile(`(?s)\\*\*`)

// patternRegexp writes a pattern as a regular expression, piece by piece.
func patternRegexp(value string) *regexp.Regexp {
	var b strings.Builder
	last := 0
	for _, at := range escapedStar.FindAllStringIndex(value, -1) {
		b.WriteString(regexp.QuoteMeta(value[last:at[0]]))
		slashes := at[1] - at[0] - 1
		b.WriteString(regexp.QuoteMeta(strings.Repeat(`\`, slashes/2)))
		if slashes%2 == 1 {
			b.WriteString(`\*`)
		} else {
			b.WriteString(".*")
		}
		last = at[1]
	}
	return regexp.MustCompile("(?s)^" + b.String() + regexp.QuoteMeta(value[last:]) + "$")
}

func unescapeStars(value string) string {
	return escapedStar.ReplaceAllStringFunc(value, func(m string) string { return m[:(len(m)-1)/2] + "*" })
}

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

var ruleSeeds = []string{
	"domain: d\ndescriptors: [{key: a, value: 'x*', share_threshold: yes, rate_limit: {unit: day, requests_per_unit: 1, unit_multiplier: 3, name: n, replaces: [{name: m}]}}]\n",
	"domain: d\non_store_failure: deny\ndescriptors:\n- key: a\n  metadata: {x: [1, 2.5, null, yes, {y: z}]}\n  rate_limit: {unlimited: true}\n  descriptors:\n  - {key: b, detailed_metric: true, rate_limit: {unit: Week, requests_per_unit: 0x10}}\n",
	"domain: d\ndescriptors:\n- &x {key: a, value: b, rate_limit: {unit: hour, requests_per_unit: 1_000}}\n- <<: *x\n  key: c\n- {key: 'a\\*', quota_mode: true}\n",
	"domain: d\ndescriptors:\n- key: a\n  value: 'b\\**'\n- key: a\n  value: 'b\\*'\n- key: a\n  value: '*'\n- key: a\n",
}

// sameEntries compares a document read item by item with one read from the whole tree.
func sameEntries(t *testing.T, text string, root *node) {
	rep := newReport(context.Background())
	whole := readDocument("f.yaml", root, rep)
	streamed, ok := streamDocument("f.yaml", text, rep)
	if ok != (len(rep.problems) == 0) {
		t.Fatalf("read item by item: %v, problems of the whole: %v", ok, rep.problems)
	}
	if ok {
		if d := cmp.Diff(whole, streamed, cmp.AllowUnexported(document{}, entry{}, limit{}, replaced{}, pos{}), protocmp.Transform(), cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("(-whole +streamed):\n%s", d)
		}
	}
}

var yamlSeeds = []string{
	"a: b\u00a0\nc: d\n", "a: b\u0085c\n", "a: b\u2028c\n", "a: \ufeffb\n", "é: ü # ö\n", "a: 'é' # x\nb: [é, c]\n", "ä b: {c: d é, 'ö': \"ü\"}\n",
	"a: [\n  b,\n  c\n]\nd: e\n", "a: {b: c,\n d: e}\n", "a: [ ]\n", "a: {\tb: c}\n", "a: [b\t,\tc]\n", "a: {\n\tb:\tc\n\t}\n", "a:\tb\n", "a: b\tc\t# d\n", "a: \"b\tc\"\n",
	"a: {b: c d, e: f:80, g: h#i}\n", "a: {\"b\": c, \"d\":e, 'f':'g', \"h\":5}\n", "\"a\": b\n'c d': e\n", "{\n  \"a\": \"b\",\n  \"c\": [\n1,\n2]\n}\n", "[{a: b},\n {c: d}] # e\n", "--- {a: b}\n", "--- # x\na: b\n",
	"a: \"\\x61\\u00e9\\n\\t\\\"\\\\\\/\"\n", "a: \"\\xff\\e\\0\\_\\N\\L\\P\\a\\b\\v\\f\\ \\U0001F600\"\n", "a: \"\\ud83d\\ude00\"\n", "a: 'b''c'''\n",
	"a: -1\nb: -x\nc: :path\nd: ?x\n", "a b: c\n:p: d\n/x: e\n5: f\n", "a: {b: c # d\n , e: f}\n", "a: [b, # x\n  # y\n  c]\n", "a:\n  {b: c}\nd:\n  [\n  e]\n", "a: {b: c&d, e: f*g, h: i!j, k: l|m, n: o>p, q: r<s, t: u?v, w: x\"y, z: a'b}\n",
	"descriptors: [\n {key: a},\n {key: b,},\n]\ndomain: d\n", "{domain: d, descriptors: [{key: a}, {key: b, value: é}]}\n",
	"a: {b: c}\n", "a: { b: c, d: 'e' , f: \"g\" } # h\n", "a:\n- {b: c, d: 5}\n- {b: x}\n", "a: {b: c d}\n", "a: {b: c,}\n", "a: {b: , c: d}\n", "a: {b}\n", "a: {b: {c: d}}\n", "a: [b, 'c', \"d\", {e: f, g: [h]}, [i]] # j\n", "- {key: k, rate_limit: {unit: day, requests_per_unit: 1}, descriptors: [{key: a},{key: b , value: 'c'}]}\n- [a,b]\n",
	"a: []\n", "a: {}\n", "a: [b,]\n", "a: [,b]\n", "a: [b, c\n  , d]\n", "a: [b: c]\n", "a: [b}\n", "a: [b]c\n", "a: [b] #c\n", "a: [b]#c\n", "a: {b: [c]d: e}\n", "a: {b: [c],d: e}\n", "a: [- b]\n", "[a]\n", "{a: b}\n", "a: [5, yes, null, ~, 1.5]\n", "descriptors: [{key: a}, {key: b}]\n", "a: {b: c} d\n", "a: {b: c}#\n",
	"a: b\r\nc:\r\n  d: e\r\n", "a: b # \u00e9\u2028\n# \u00e9\nc: d\n",
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

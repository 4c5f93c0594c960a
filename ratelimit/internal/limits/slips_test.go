package limits

import (
	"strings"
	"testing"
)

// The usual slips of a file that is no YAML, or other YAML than was meant, are described as people would, where they
// stand.
func TestLoad_slips(t *testing.T) {
	f := func(list string, want ...string) {
		t.Helper()
		refused(t, Options{}, []File{{"f.yaml", []byte("domain: d\ndescriptors:\n" + list)}}, want...)
	}
	file := func(text string, want ...string) {
		t.Helper()
		refused(t, Options{}, []File{{"f.yaml", []byte(text)}}, want...)
	}

	const tab = `a tab stands here; YAML is indented with blanks only, write two for each level`
	f("- key: a\n\tvalue: b\n", `f.yaml:4:1: `+tab)
	f("- key: a\n  rate_limit:\n\t  unit: day\n    requests_per_unit: 1\n", `f.yaml:5:1: `+tab)
	f("  -\tkey: a\n", `f.yaml:3:4: `+tab)

	glued := func(key, value string) string {
		return "a blank is missing after the colon of " + key + "; write " + key + ": " + value
	}
	file("domain:d\ndescriptors:\n- key: a\n", `f.yaml:1:1: `+glued("domain", "d"))
	f("- key:a\n  value: b\n", `f.yaml:3:3: `+glued("key", "a"))
	f("- key:a\n", `f.yaml:3:3: domain "d": descriptors[0] must be a map with a key, not a text (key:a); `+
		glued("key", "a"))
	f("- key: a\n  rate_limit:\n    unit: day\n    requests_per_unit:1\n", `f.yaml:6:5: `+glued("requests_per_unit", "1"))
	f("-key: a\n", `f.yaml:3:1: domain "d": a blank is missing after the dash; write - key:`)
	const conflict = `a conflict of two versions begins here, as git marks it; keep one of them, and no line of marks`
	file("<<<<<<< HEAD\ndomain: d\n=======\ndomain: e\n>>>>>>> b\n", `f.yaml:1:1: `+conflict)
	f("- key: a\n<<<<<<< HEAD\n- key: b\n=======\n- key: c\n>>>>>>> b\n", `f.yaml:4:1: `+conflict)
	f("\u00a0\u00a0- key: a\n", `f.yaml:3:1: domain "d": key "\u00a0\u00a0- key" has blanks that are none in YAML, `+
		`such as no-break spaces; write plain ones`)
	f("- key: a\n  value b\n", `f.yaml:4:3: a colon is missing after value; write value: b`)
	file("domain: d\ndescriptors\n- key: a\n", `f.yaml:2:1: a colon is missing after descriptors; write descriptors:`)

	misplaced := func(by, want string) string {
		return "this line is indented by " + by + ", which fits no line above; want " + want
	}
	f("- key: a\n   value: b\n", `f.yaml:4:4: `+misplaced("3", "2"))
	f("- key: a\n value: b\n", `f.yaml:4:2: `+misplaced("1", "0 or 2"))
	f("  - key: a\n - key: b\n", `f.yaml:4:2: `+misplaced("1", "2"))
	f("  - key: a\n    rate_limit:\n      unit: day\n     requests_per_unit: 1\n", `f.yaml:6:6: `+
		misplaced("5", "4 or 6"))
	file("domain: d\n descriptors:\n - key: a\n", `f.yaml:2:2: `+misplaced("1", "0"))
	f("- key: a\n  metadata:\n    \"x\": |\n      - y\n      - {}\n    y: &n\n    - z: 1\n- key: b\n value: c\n",
		`f.yaml:11:2: `+misplaced("1", "0 or 2"))

	const missing = `a list of descriptors begins here without descriptors: before it; write descriptors: in the line above`
	file("domain: d\n- key: a\n", `f.yaml:2:1: `+missing)
	f("- key: a\n  rate_limit: {unit: day, requests_per_unit: 1}\n  - key: b\n", `f.yaml:5:3: `+missing)
	f("- key: a\n  rate_limits:\n  - unit: day\n    requests_per_unit: 1\n    - unit: hour\n",
		`f.yaml:7:5: a list begins here that belongs to no key; end the line above with a key and a colon`)
	f("  key: a\n", `f.yaml:3:3: domain "d": descriptors must be a list, not a map; begin each item with a dash, such `+
		`as - key: user`)
	checkWarningsIn(t, "domain: d\n  - key: a\n", `f.yaml:2:11: domain "d - key: a": domain is "d - key: a", with the `+
		`list after it; write descriptors: in a line between them`)

	f("- {key: a, rate_limit: {unit: day, requests_per_unit: 1}\n- key: b\n",
		`f.yaml:3:3: the { here is never closed; write } where it ends`)
	f("- key: a\n  cidr: [10.0.0.0/8\n  value: b\n", `f.yaml:4:9: the [ here is never closed; write ] where it ends`)
	file("domain: d\ndescriptors: [\n  {key: a},\n  {key: b,\n  {key: c}\n]\n",
		`f.yaml:4:3: the { here is not closed before the ] at line 6, column 1; write }`)
	f("- key: a\n  value: 'b\n", `f.yaml:4:10: the text that begins here has no closing '`)

	f("- key: a\n  value: b: c\n", `f.yaml:4:10: a second colon stands in this line; put a text with a colon and a `+
		`blank in quotes, and each key in a line of its own`)
	f("- key: @a\n", "f.yaml:3:8: no text begins with '@'; put it in quotes")
}

// checkWarningsIn is checkWarnings for a text that the full parser reads, which warns too.
func checkWarningsIn(t *testing.T, text string, want string) {
	t.Helper()
	_, warnings, err := Load(t.Context(), []File{{"f.yaml", []byte(text)}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range warnings {
		if w.String() == want {
			return
		}
	}
	t.Errorf("%s\nwarns of %v, want %s", text, warnings, want)
}

// The whole of a file is gone through for a mistake at its end.
func TestLoad_slipAtTheEnd(t *testing.T) {
	text := "domain: d\ndescriptors:\n" + strings.Repeat("- key: a\n  value: b\n", 20_000) + " value: c\n"
	refused(t, Options{}, []File{{"f.yaml", []byte(text)}},
		"f.yaml:40003:2: this line is indented by 1, which fits no line above; want 0 or 2")
}

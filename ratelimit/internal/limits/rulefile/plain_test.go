package rulefile

import (
	"context"
	"strings"
	"testing"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
)

// What people write in rule files without anchors, merge keys, tags and texts over several lines is
// read without the library, whatever its alphabet and however its flow style is laid out.
func TestReadPlain(t *testing.T) {
	const head = "domain: d\ndescriptors:\n"
	for _, text := range []string{
		head + "- key: schlüssel\n  value: Grüße\n",
		head + "- key: a\n  value: 日本語 # 説明\n",
		head + "- {key: a,\n   value: b}\n",
		"domain: d\ndescriptors: [\n  {key: a},\n  {key: b}, # last\n]\n",
		head + "- {\n\tkey: a,\n\tvalue:\tb\n  }\n",
		head + "- key: \"a\\u00e9\\\"\"\n  value: 'it''s'\n",
		head + "- key: a\n  metadata: {}\n  descriptors: []\n",
		head +
			"- {key: a, value: \"b\",\n   rate_limit: {unit: day, requests_per_unit: 5}, metadata: {x: -1, 'y z': " +
			"[1,\n 2]}}\n",
		"{\n  \"domain\": \"d\",\n  \"descriptors\": [{\"key\":\"a\", \"value\":\"é\"},\n    {\"key\":\"b\"}]\n}\n",
		head + "- key: :authority\n  value: -x\n",
		"%YAML 1.2\n---\n" + head + "- key: a\n",
	} {
		text, _, bad := readDirectives(text)
		if bad != nil {
			t.Errorf("%q: %s", text, bad.message)
			continue
		}
		if root, why := readPlain(text, nil); root == nil {
			t.Errorf("%q goes to the library for %s at %v", text, why.what, why.pos)
		}
		if doc, ok := streamDocument("f.yaml", text, limits.NewReport(context.Background(), false)); !ok ||
			len(doc.Entries) == 0 {
			t.Errorf("%q is not read item by item: %+v", text, doc)
		}
	}
}

// A file that only the library can read says so once, with the line and the reason.
func TestLoad_fullParserWarns(t *testing.T) {
	const head = "domain: d\ndescriptors:\n"
	for text, want := range map[string]string{
		head + "- &x {key: a}\n- &y {key: b}\n": "f.yaml:3:3: an anchor here makes",
		head + "- key: a\n- {<<: {key: b}}\n":   "f.yaml:4:4: a merge key here makes",
		head + "- key: a\n- key: !!str 5\n":     "f.yaml:4:8: a tag here makes",
		head + "- key: a\n  value: |-\n    b\n": "f.yaml:4:10: a block scalar here makes",
		head +
			"- key: a\n  value: é 'b\n    c'\n": "f.yaml:5:5: a value that goes on in a further line here makes",
		head + "- key: a\n  value: \"b\n    c\"\n":         "f.yaml:4:10: a quoted text over several lines here makes",
		head + "- key: ü\n  ? value\n  : b\n":              "f.yaml:4:3: a complex key here makes",
		head + "- key: a\n  value: {b: *c}\n":              "",
		head + "- key: a # &x !!str <<\n  value: 'a &b'\n": "",
	} {
		_, warnings, err := Load(context.Background(), []File{{"f.yaml", []byte(text)}}, limits.Options{})
		switch {
		case want == "" && len(warnings) > 0:
			t.Errorf("%q: %v", text, warnings)
		case want != "" && (err != nil || len(warnings) != 1 || !strings.HasPrefix(warnings[0].String(), want)):
			t.Errorf("%q: %v %v, want %s", text, warnings, err, want)
		}
	}
}

func TestLoad_directives(t *testing.T) {
	const body = "---\ndomain: d\ndescriptors: [{key: a}]\n"
	for text, want := range map[string]string{
		"%YAML 1.1\n" + body:                                   "",
		"# c\n\n%YAML 1.2 # now\n%FOO bar\n" + body:            "",
		"%TAG !y! tag:yaml.org,2002:\n---\ndomain: !y!str 5\n": "",
		"%TAG ! tag:yaml.org,2002:\n---\ndomain: !str 5\n":     "",
		"---\ndomain: !<tag:yaml.org,2002:str> 5\n":            "",
		"%TAG !y! tag:example.org,2000:\n---\ndomain: !y!str 5\n": "f.yaml:3:9: tag tag:example.org,2000:str is not " +
			"known; allowed are !!str, !!int, !!bool, !!float, !!null, !!map or !!seq",
		"%YAML 2.0\n" + body:            "f.yaml:1:1: %YAML 2.0: want %YAML 1.1 or %YAML 1.2",
		"%YAML\n" + body:                "f.yaml:1:1: %YAML: want %YAML 1.1 or %YAML 1.2",
		"%YAML 1.1\n%YAML 1.1\n" + body: "f.yaml:2:1: %YAML stands twice",
		"%YAML 1.1\ndomain: d\n":        "f.yaml:2:1: a line --- must stand between directives and the document",
		"%YAML 1.1\n":                   "f.yaml:2:1: a line --- must follow the directives",
	} {
		_, _, err := Load(context.Background(), []File{{"f.yaml", []byte(text)}}, limits.Options{})
		if want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// Tabs may stand between the parts of flow style, in files that the library reads too.
func TestLoad_tabsInFlow(t *testing.T) {
	for _, text := range []string{
		"domain: d\ndescriptors: [{\tkey:\ta\t,\tvalue: b\t}]\n",
		"domain: &d d\ndescriptors: [{\tkey:\ta\t,\tvalue: b\t}]\n",
		"domain: &d d\ndescriptors: [\n\t{\n\t\tkey: a,\n\t\tvalue: \"b\"\n\t}\n]\n",
	} {
		r, _, err := Load(context.Background(), []File{{"f.yaml", []byte(text)}}, limits.Options{})
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if x := r.Explain("d", []rls.Entry{{Key: "a", Value: "b"}}); x.Outcome != limits.Whitelisted {
			t.Errorf("%q: %s", text, x.Text())
		}
	}
	// Those inside quotes are part of the value.
	for _, text := range []string{
		"domain: d\ndescriptors: [{key: a, value: \"x\ty\"}]\n",
		"domain: &d d\ndescriptors: [{key: a, value: \"x\ty\"}]\n",
		"domain: &d d\ndescriptors: [{key: a, value: \"x\\\ty\"}]\n", // a backslash and a tab
		"domain: &d d\ndescriptors: [{key: \"b\\\\\",\tvalue: c}, {key: a, value: \"x\ty\"}]\n",
		"domain: &d d\ndescriptors: [{key: 'b''\\',\tvalue: c}, {key: a, value: \"x\ty\"}]\n",
	} {
		r, _, err := Load(context.Background(), []File{{"f.yaml", []byte(text)}}, limits.Options{})
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if x := r.Explain("d", []rls.Entry{{Key: "a", Value: "x\ty"}}); x.Outcome != limits.Whitelisted {
			t.Errorf("%q: %s", text, x.Text())
		}
	}
}

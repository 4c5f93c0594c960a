package cli

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"gatehouse/shared/must"
)

// ruleSchema is what the command prints, compiled.
func ruleSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	var out, errs strings.Builder
	if got := (Program{}).run(t.Context(), []string{"ratelimit", "schema"}, nil, &out, &errs); got != exitOK {
		t.Fatalf("got exit status %d, %s", got, errs.String())
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(out.String()))
	must.Succeed(t, err)
	c := jsonschema.NewCompiler()
	must.Succeed(t, c.AddResource("rules.json", doc))
	s, err := c.Compile("rules.json")
	must.Succeed(t, err)
	return s
}

// checks says whether check accepts a file.
func checks(t *testing.T, text string) bool {
	t.Helper()
	file := filepath.Join(t.TempDir(), "a.yaml")
	must.Succeed(t, os.WriteFile(file, []byte(text), 0o644))
	var out strings.Builder
	return (Program{}).run(t.Context(), []string{"ratelimit", "check", file}, nil, &out, &out) == exitOK
}

// asJSON is a file as an editor's schema validator sees it; false where it has no form in JSON.
func asJSON(text string) (any, bool) {
	var v any
	if yaml.Unmarshal([]byte(text), &v) != nil {
		return nil, false
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, false
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(b)))
	return doc, err == nil
}

// The schema accepts every file of the repository that check accepts: examples, load tests, pages, fuzz corpora. It is
// for rule files: a ConfigMap, which check reads too, is another schema's.
func TestSchema_acceptsWhatCheckDoes(t *testing.T) {
	s := ruleSchema(t)
	seen := 0
	f := func(where, text string) {
		if strings.Contains(text, "kind: ConfigMap") || !checks(t, text) {
			return
		}
		doc, ok := asJSON(text)
		if !ok {
			return
		}
		seen++
		if err := s.Validate(doc); err != nil {
			t.Errorf("%s: check accepts and the schema refuses:\n%s\n%v", where, text, err)
		}
	}
	fence := regexp.MustCompile("(?s)```yaml\n(.*?)```")
	corpus := regexp.MustCompile(`(?m)^(?:\[\]byte|string)\((".*")\)$`)
	for _, root := range []string{"../..", "../../../loadtest"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			switch {
			case err != nil:
				return err
			case strings.HasSuffix(path, ".yaml") || strings.HasSuffix(path, ".yml"):
				f(path, string(b))
			case strings.HasSuffix(path, ".md"):
				for _, m := range fence.FindAllStringSubmatch(string(b), -1) {
					f(path, m[1])
				}
			case strings.Contains(path, "testdata/fuzz/"):
				if m := corpus.FindStringSubmatch(string(b)); m != nil {
					if text, err := strconv.Unquote(m[1]); err == nil {
						f(path, text)
					}
				}
			}
			return nil
		})
		must.Succeed(t, err)
	}
	if seen < 10 {
		t.Errorf("only %d files were compared", seen)
	}
	for _, text := range []string{
		"domain: d\ndescriptors:\n", "domain: 7\n", "domain: d\non_store_failure: deny\n",
		"domain: d\ndescriptors: [{key: 1, value: true, rate_limit: {unit: MINUTE, requests_per_unit: 0x10, name: " +
			"3}}]\n",
		"domain: d\ndescriptors: [{key: k, shadow_mode: yes, rate_limit: {unlimited: on}}]\n",
		"domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 5, algorithm: Token_Bucket, " +
			"burst: 7}}]\n",
		"domain: d\ndescriptors: [{key: k, rate_limit: {unit: WEEK, requests_per_unit: 5, algorithm: Fixed_Window, " +
			"calendar: UTC, unit_multiplier: null, burst: null}}]\n",
		"domain: d\ndescriptors: [{key: k, rate_limit: {unlimited: True, unit: null, name: n}}, {key: l, value: null, " +
			"values: [v], share_threshold: TRUE, group: g, prefix_length: null}]\n",
		"domain: d\ndescriptors: [{key: k, rate_limit: null, rate_limits: [{unit: hour, requests_per_unit: 5}]}]\n",
		"domain: d\ndescriptors: [{key: k, cidr: [10.0.0.0/8], not_cidr: [10.1.0.0/16], prefix_length: {v4: 24}, " +
			"rate_limit: {unit: day, requests_per_unit: 5}}]\n",
	} {
		if !checks(t, text) {
			t.Errorf("check refuses %q", text)
		}
		f("text", text)
	}
}

// The schema refuses unknown keys, wrong types, values out of bounds and keys that exclude each other, as check does.
func TestSchema_refuses(t *testing.T) {
	s := ruleSchema(t)
	const limit = "rate_limit: {unit: minute, requests_per_unit: 5}"
	for _, entry := range []string{
		"{key: k, limit: 5}", "{value: v}", "{key: [k]}", "{key: k, rate_limit: [5]}", "k",
		"{key: k, rate_limit: {unit: minute, requests_per_unit: many}}",
		"{key: k, rate_limit: {unit: minute, requests_per_unit: -1}}",
		"{key: k, rate_limit: {unit: minute, requests_per_unit: 4294967296}}",
		"{key: k, rate_limit: {unit: minute, requests_per_unit: 1.5}}",
		"{key: k, rate_limit: {unit: minute, requests_per_unit: 5, unit_multiplier: 0}}",
		"{key: k, rate_limit: {unit: minute, requests_per_unit: 5, shadow_mode: true}}",
		"{key: k, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: token_bucket, burst: 0}}",
		"{key: k, rate_limits: [{unlimited: true}]}", "{key: k, rate_limits: []}", "{key: k, rate_limits: null}",
		"{key: k, " + limit + ", rate_limits: [{unit: hour, requests_per_unit: 5}]}",
		"{key: k, value: v, values: [w], " + limit + "}", "{key: k, values: [v], cidr: [10.0.0.0/8], " + limit + "}",
		"{key: k, cidr: 10.0.0.0/8, " + limit + "}", "{key: k, cidr: null, " + limit + "}",
		"{key: k, cidr: [10.0.0.0/8], prefix_length: {v4: 33}, " + limit + "}",
		"{key: k, shadow_mode: 5, " + limit + "}", "{key: k, metadata: [1], " + limit + "}",
		"{key: k, rate_limit: {unit: day, requests_per_unit: 5, replaces: [x]}}",
		"{key: k, rate_limit: {unit: days, requests_per_unit: 5}}", "{key: k, rate_limit: {unit: null}}",
		"{key: k, rate_limit: {unlimited: yes, requests_per_unit: 5}}", "{key: k, rate_limit: {unlimited: no}}",
		"{key: k, rate_limit: {unit: day, requests_per_unit: 5, algorithm: gcra}}",
		"{key: k, rate_limits: [{unit: hour, requests_per_unit: 5, burst: 7}]}",
		"{key: k, rate_limits: [{unit: hour, requests_per_unit: 5, calendar: UTC}]}",
		"{key: k, rate_limit: {unit: day, requests_per_unit: 5, calendar: UTC, unit_multiplier: 2}}",
		"{key: k, rate_limit: {unit: day, requests_per_unit: 5, calendar: UTC, algorithm: token_bucket}}",
		"{key: k, rate_limit: {unit: day, requests_per_unit: 5, replaces: [{}]}}",
		"{key: k, prefix_length: {v4: 24}, " + limit + "}", "{key: k, group: g, " + limit + "}",
		"{key: k, cidr: [10.0.0.0/8], prefix_length: {v4: 24}, share_threshold: on, " + limit + "}",
		"{key: k, values: [v], share_threshold: true, " + limit + "}", "{key: k, shadow_mode: y, " + limit + "}",
	} {
		text := "domain: d\ndescriptors: [" + entry + "]\n"
		doc, ok := asJSON(text)
		if !ok || checks(t, text) {
			t.Errorf("check accepts %s", entry)
		} else if s.Validate(doc) == nil {
			t.Errorf("the schema accepts %s", entry)
		}
	}
}

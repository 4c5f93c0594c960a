package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	httprl "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"

	"gatehouse/ratelimit/internal/doctest"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/shared/must"
)

// This file, transcripts_test.go, and walk_test.go and metrics_test.go of internal/daemon hold README.md and the pages
// in docs/ to what the program does: their rules load, their tables are walked through by the service, their commands
// are typed. A difference is reported as the row or line that would be true.

// TestDocs_length keeps each page short enough to be read at one sitting. The tables of settings are as long as they
// have to be.
func TestDocs_length(t *testing.T) {
	for _, path := range doctest.Documents(t) {
		most := 300
		switch path {
		case "README.md":
			most = 120
		case "docs/settings.md":
			continue
		}
		if n := strings.Count(doctest.Document(t, path), "\n"); n > most {
			t.Errorf("%s has %d lines, want at most %d", path, n, most)
		}
	}
}

func loadRules(b doctest.Block) (*limits.Rules, error) {
	rules, warnings, err := rulefile.Load(context.Background(),
		[]rulefile.File{{Name: "readme.yaml", Text: []byte(b.Text)}},
		limits.Options{Settings: limits.Settings{NearRatio: 0.8}})
	if err == nil && len(warnings) > 0 {
		err = fmt.Errorf("warnings: %v", warnings)
	}
	return rules, err
}

// TestDocs_rules loads every example, each alone, and reads the YAML that is for other programs.
func TestDocs_rules(t *testing.T) {
	n := 0
	for _, b := range doctest.All(t) {
		switch {
		case doctest.IsRules(b):
			n++
			if _, err := loadRules(b); err != nil {
				t.Errorf("%s: %v", b.Place(), err)
			}
		case b.Lang == "yaml":
			for doc := range strings.SplitSeq(b.Text, "\n---\n") {
				var v map[string]any
				if err := yaml.Unmarshal([]byte(doc), &v); err != nil {
					t.Errorf("%s: %v", b.Place(), err)
				}
				if filter, ok := v["typed_config"].(map[string]any); ok {
					checkEnvoyFilter(t, b.Place(), filter)
				}
			}
		}
	}
	if n < 5 {
		t.Errorf("the pages have %d examples of rules", n)
	}
}

func checkEnvoyFilter(t *testing.T, place string, filter map[string]any) {
	delete(filter, "@type")
	text, err := json.Marshal(filter)
	must.Succeed(t, err)
	var m httprl.RateLimit
	if err := protojson.Unmarshal(text, &m); err != nil {
		t.Errorf("%s: %v", place, err)
	} else if err := m.ValidateAll(); err != nil {
		t.Errorf("%s: %v", place, err)
	}
}

// TestDocs_fields: the table of fields lists what each level of a rule file takes.
func TestDocs_fields(t *testing.T) {
	const wrong = "domain: d\nx: 1\ndescriptors: [{key: k, x: 1, rate_limit: {x: 1}}]"
	_, err := loadRules(doctest.Block{Text: wrong})
	want := map[string]bool{}
	for _, m := range regexp.MustCompile(`allowed are ([^;\n]*)`).FindAllStringSubmatch(fmt.Sprint(err), -1) {
		for name := range strings.FieldsSeq(strings.NewReplacer(",", " ", " or ", " ").Replace(m[1])) {
			want[name] = true
		}
	}
	got := map[string]bool{}
	for _, b := range doctest.Blocks(t, "docs/rules.md") {
		if b.Lang == "table" && b.Cells[0][0] == "Field" {
			for _, row := range b.Cells[2:] {
				for _, m := range doctest.CodeSpan.FindAllStringSubmatch(row[0], -1) {
					got[m[1][strings.LastIndex(m[1], ".")+1:]] = true
				}
			}
		}
	}
	if d := cmp.Diff(want, got); d != "" || len(want) < 10 {
		t.Errorf("%v%s", err, d)
	}
}

// TestDocs_refusals provokes the errors of the table that a healthy daemon can give.
func TestDocs_refusals(t *testing.T) {
	text := doctest.Document(t, "docs/wire.md")
	p := start(t, "[{key: k, @5/m}]", nil)
	f := func(body string) {
		t.Helper()
		answer, err := http.Post("http://"+p.http+"/json", "application/json", strings.NewReader(body))
		must.Succeed(t, err)
		defer answer.Body.Close()
		var said struct{ Code, Message string }
		must.Succeed(t, json.NewDecoder(answer.Body).Decode(&said))
		if row := fmt.Sprintf("| %s | %d | `%s`", said.Code, answer.StatusCode, said.Message); !strings.Contains(text,
			row) {
			t.Errorf("docs/wire.md lacks the row\n%s", row)
		}
	}
	f(`{}`)
	f(`{"domain":"d"}`)
	f(`{"domain":"d","descriptors":[` + strings.Repeat("{},", 256) + `{}]}`)
	f(`{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}],"limit":{"requestsPerUnit":1}}]}`)
	f(`{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}],"hitsAddend":"9223372036854775808"}]}`)
	p = launch(t, "", map[string]string{"FORCE_START_WITHOUT_INITIAL_CONFIG": "true",
		"RUNTIME_APPDIRECTORY": "nothing"})
	var ready struct {
		HTTP string `json:"http"`
	}
	p.log.await(t, `"ready"`, &ready)
	p.http = ready.HTTP
	f(`{"domain":"d","descriptors":[{}]}`)
}

// TestDocs_links: what a link to a Go file names in code is declared in that file. Where links lead otherwise is
// followed by TestLinks of package shared.
func TestDocs_links(t *testing.T) {
	n := 0
	for _, path := range doctest.Documents(t) {
		links := regexp.MustCompile("\\[`(?:\\w+\\.)?(\\w+)`\\]\\(([^)]+\\.go)\\)").FindAllStringSubmatch(
			doctest.Document(t,
				path), -1)
		n += len(links)
		for _, m := range links {
			file, err := os.ReadFile(filepath.Join(filepath.Dir(path), m[2]))
			if err != nil {
				t.Error(err)
			} else if !regexp.MustCompile(`(?m)^(func (\([^)]*\) )?|type )` + m[1] + `\b`).Match(file) {
				t.Errorf("%s: %s declares no %s", path, m[2], m[1])
			}
		}
	}
	if n < 15 {
		t.Errorf("the pages have %d links into the code", n)
	}
}

// TestDocs_dependencies compares the table with deps.txt.
func TestDocs_dependencies(t *testing.T) {
	deps, err := os.ReadFile("deps.txt")
	must.Succeed(t, err)
	var listed []string
	for _, b := range doctest.Blocks(t, "docs/design.md") {
		if b.Lang == "table" && b.Cells[0][0] == "Module" {
			for _, row := range b.Cells[2:] {
				for _, m := range doctest.CodeSpan.FindAllStringSubmatch(row[0], -1) {
					listed = append(listed, m[1])
				}
			}
		}
	}
	slices.Sort(listed)
	if want := strings.Fields(string(deps)); !slices.Equal(listed, want) {
		t.Errorf("docs/design.md lists %q, deps.txt %q", listed, want)
	}
}

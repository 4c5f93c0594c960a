package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Files with what rule files for envoyproxy/ratelimit hold are accepted without a warning, by check and by the schema.
// brokenFiles has those that it refuses.
func TestCheck_replacedService(t *testing.T) {
	files, err := filepath.Glob("testdata/replaced/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	s := ruleSchema(t)
	for _, file := range files {
		var b strings.Builder
		status := (Program{}).run(t.Context(), []string{"ratelimit", "check", file}, nil, &b, &b)
		want := "checking rate limit configs...\nopening config file: " + file + "\nall rate limit configs ok\n"
		if d := cmp.Diff(want, b.String()); d != "" || status != exitOK {
			t.Errorf("%s: exit status %d, %s", file, status, d)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if doc, ok := asJSON(string(text)); !ok {
			t.Errorf("%s: no YAML", file)
		} else if err := s.Validate(doc); err != nil {
			t.Errorf("%s: the schema refuses it: %v", file, err)
		}
	}
	// All of them together are one set of rules: no domain stands twice.
	var b strings.Builder
	args := []string{"ratelimit", "check", "testdata/replaced"}
	if status := (Program{}).run(t.Context(), args, nil, &b, &b); status != exitOK {
		t.Errorf("the folder: exit status %d, %s", status, b.String())
	}
}

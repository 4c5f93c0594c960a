package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/shared/must"
)

// With -format json, check prints one object with all problems and warnings.
func TestCheck_json(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	f := func(text string, status int, ok bool, problems, warnings []limits.Problem) {
		t.Helper()
		must.Succeed(t, os.WriteFile(file, []byte(text), 0o644))
		var out, errs strings.Builder
		got := (Program{}).run(t.Context(), []string{"ratelimit", "check", "-format", "json", file}, nil, &out, &errs)
		var report checkReport
		must.Succeed(t, json.Unmarshal([]byte(out.String()), &report))
		if got != status || report.OK != ok || errs.Len() > 0 {
			t.Errorf("%q: exit status %d, ok %v, on stderr %q", text, got, report.OK, errs.String())
		}
		if d := cmp.Diff(problems, report.Problems) + cmp.Diff(warnings, report.Warnings); d != "" {
			t.Errorf("%q: %s", text, d)
		}
	}
	none := []limits.Problem{}
	f("domain: d\n", exitOK, true, none, none)
	f("domain: d\ndescriptors: [{key: a*}]\n", exitOK, true, none, []limits.Problem{{File: file, Line: 2, Column: 16,
		Domain: "d", Path: "a*", Text: "a*",
		Message: `the star in key "a*" is an ordinary character; wildcards work in values only`}})
	f("domain: d\ndescriptors: [{value: v}]\n", exitFailed, false, []limits.Problem{{File: file, Line: 2, Column: 16,
		Domain: "d", Message: "descriptors[0] needs a key, such as key: remote_address"}}, none)

	var out, errs strings.Builder
	if got := (Program{}).run(t.Context(), []string{"ratelimit", "check", "-format", "json", "-settings"}, nil, &out,
		&errs); got != exitUsage || out.Len() > 0 || !strings.Contains(errs.String(), "usage: ratelimit check") {
		t.Errorf("-settings: exit status %d, %q", got, errs.String())
	}
}

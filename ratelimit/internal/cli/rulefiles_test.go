package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Rules that cannot be read end each command that decides by them with its own name, the reason and exitUsage.
func TestLoadRules(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good.yaml", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]")
	bad := write("bad.yaml", "domain: d\ndescriptors: [{key: k, rate_limt: 1}]")
	commands := map[string][]string{
		"diff":    {good},
		"explain": {"-domain", "d", "-descriptors", "k=v"},
		"replay":  {"-against", good, "-rules"},
	}
	for command, before := range commands {
		run := func(rules string) (status int, stderr string) {
			args := slices.Concat([]string{"ratelimit", command}, before, []string{rules})
			if command == "replay" {
				args = append(args, os.DevNull) // the recording
			}
			var out, errs strings.Builder
			status = (Program{}).run(t.Context(), args, nil, &out, &errs)
			return status, errs.String()
		}
		own := "ratelimit " + command + ": "
		for rules, want := range map[string]string{
			"-":                           own + "rules come from a file or a folder, not from standard input\n",
			filepath.Join(dir, "no.yaml"): own + "open ",
			bad:                           "error loading rate limit configs: " + bad + ":2:",
		} {
			if status, errs := run(rules); status != exitUsage || !strings.HasPrefix(errs, want) {
				t.Errorf("%s %s: got exit status %d and %q, want %q", command, rules, status, errs, want)
			}
		}
		if status, errs := run(good); status != exitOK || errs != "" {
			t.Errorf("%s %s: got exit status %d and %q", command, good, status, errs)
		}
	}
}

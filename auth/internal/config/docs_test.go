package config

import (
	"os"
	"strings"
	"testing"

	"gatehouse/shared/settings/settingstest"
)

// TestDocs_settingsTables makes each table of docs/settings.md from the tags and comments of a struct's fields, and
// compares. One row stands for the same setting of all providers, or hooks.
func TestDocs_settingsTables(t *testing.T) {
	settingstest.Tables(t, func(name string) string {
		return strings.Replace(collapsed(name), "_OIDC_NAME_", "_OIDC_<NAME>_", 1)
	}, Config{}, customConfig{})
}

func TestChangelog(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	settingstest.Changelog(t, string(text), settingNames.Aliases)
}

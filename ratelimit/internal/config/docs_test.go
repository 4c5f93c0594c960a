package config

import (
	"os"
	"testing"

	"gatehouse/shared/settings/settingstest"
)

// TestDocs_settingsTables makes each table of docs/settings.md from the tags and comments of a struct's fields, and
// compares. The settings of the store for limits per second stand as those of the main one.
func TestDocs_settingsTables(t *testing.T) {
	settingstest.Tables(t, func(name string) string { return name }, Config{})
}

func TestChangelog(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	settingstest.Changelog(t, string(text), settingNames.Aliases)
}

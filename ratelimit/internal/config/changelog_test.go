package config

import (
	"os"
	"testing"

	"gatehouse/shared/settings/settingstest"
)

func TestChangelog(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	settingstest.Changelog(t, string(text), settingNames.Aliases)
}

package settingstest

import (
	"testing"

	"gatehouse/shared/settings"
)

func TestChangelogProblems(t *testing.T) {
	aliases := []settings.Alias{{Old: "REDIS_URL"}, {Old: "USE_IT"}}
	const named = "`REDIS_*` and `USE_IT`\n"
	for text, want := range map[string]int{
		"## v1.0.0\n### Added\n### Upgrading\n" + named + "## v1.0.0-rc2\n## v1.0.0-rc1\n## v0.9.0\n": 0,
		"## 1.0.0\n## v0.1.0\n" + named:                 1,
		"## v0.1.0\n## v0.1.0\n" + named:                1,
		"## v0.1.0-rc1\n## v0.1.0\n" + named:            1,
		"## v0.1.0\n### Upgrading\n### Added\n" + named: 1,
		"## v0.1.0\n### News\n" + named:                 1,
		"## v0.1.0\n`REDIS_URL`\n":                      1,
		"":                                              3,
	} {
		if got := changelogProblems(text, aliases); len(got) != want {
			t.Errorf("%q: %q, want %d", text, got, want)
		}
	}
}

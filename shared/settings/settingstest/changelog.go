package settingstest

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gatehouse/shared/settings"
)

var (
	changelogVersion = regexp.MustCompile(`^v(\d+)\.(\d+)\.(\d+)(?:-rc(\d+))?$`)
	changelogParts   = []string{"Changed", "Added", "Fixed", "Security", "Upgrading"}
)

// Changelog checks the form of a daemon's changelog: it must list versions, newest first, each with some of the five
// headings in their order. It must also mention every old name of a setting, by itself or as PREFIX_*.
func Changelog(t testing.TB, text string, aliases []settings.Alias) {
	t.Helper()
	for _, problem := range changelogProblems(text, aliases) {
		t.Error(problem)
	}
}

func changelogProblems(text string, aliases []settings.Alias) (found []string) {
	var before []int
	part := -1
	for line := range strings.Lines(text) {
		switch line = strings.TrimSpace(line); {
		case strings.HasPrefix(line, "### "):
			i := slices.Index(changelogParts, line[len("### "):])
			if i <= part {
				found = append(found, line+" is no heading, or stands behind a later one")
			}
			part = i
		case strings.HasPrefix(line, "## "):
			m := changelogVersion.FindStringSubmatch(line[len("## "):])
			if m == nil {
				found = append(found, line+" is no version")
				continue
			}
			var version []int
			for i, digits := range m[1:] {
				n, err := strconv.Atoi(digits)
				if err != nil && i == 3 {
					n = 1 << 30 // a release is newer than its release candidates
				}
				version = append(version, n)
			}
			if before != nil && slices.Compare(version, before) >= 0 {
				found = append(found, line+" is not older than the version above it")
			}
			before, part = version, -1
		}
	}
	if before == nil {
		found = append(found, "there is no version")
	}
	names := regexp.MustCompile("`([A-Z][A-Z0-9_]+\\*?)`").FindAllStringSubmatch(text, -1)
	for _, a := range aliases {
		if !slices.ContainsFunc(names, func(m []string) bool {
			prefix, family := strings.CutSuffix(m[1], "*")
			return m[1] == a.Old || family && strings.HasPrefix(a.Old, prefix)
		}) {
			found = append(found, "the old name "+a.Old+" is not named")
		}
	}
	return found
}

package provider

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDocs compares the table of docs/providers.md with ours: every provider, its scopes, PKCE and whether its
// addresses count as proven without a flag.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/providers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Providers\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var listed []string
	for _, cells := range regexp.MustCompile(
		"(?m)^\\| `([a-z]+)` \\|([^|]*)\\|([^|]*)\\|([^|]*)\\|([^|]*)\\|").FindAllStringSubmatch(section, -1) {
		id := cells[1]
		listed = append(listed, id)
		r := rowOf(id, "")
		scopes, _, _ := strings.Cut(strings.TrimSpace(cells[3]), ";")
		if scopes != strings.Join(r.scopes, " ") {
			t.Errorf("%s: docs/providers.md says scopes %q, the table %q", id, scopes, r.scopes)
		}
		if (strings.TrimSpace(cells[4]) == "yes") != r.pkce {
			t.Errorf("%s: docs/providers.md says PKCE %q, the table %v", id, cells[4], r.pkce)
		}
		if always := strings.TrimSpace(cells[5]) == "always"; r.verified != "" && always != (r.verified == assumed) {
			t.Errorf("%s: docs/providers.md says an address is proven %q, the table %q", id, cells[5], r.verified)
		}
	}
	if !slices.Equal(listed, Names()) {
		t.Errorf("docs/providers.md lists %q, the table %q", listed, Names())
	}
}

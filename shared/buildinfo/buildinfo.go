// Package buildinfo says which version a daemon is.
//
// It knows no daemon and reads no setting.
package buildinfo

import (
	"fmt"
	"runtime/debug"
	"strings"
)

// Info is what the build info says of the program. It needs no linker flags.
type Info struct{ Version, Revision, Go string }

// Read returns "unknown" for what the build info lacks. A revision with changes that were not committed ends in
// ", modified".
func Read() Info {
	b := Info{"unknown", "unknown", "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Version, b.Go = info.Main.Version, info.GoVersion
	modified := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.Revision = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = ", modified"
		}
	}
	b.Revision += modified
	return b
}

// Version is the program's name with what its build info says: module version, commit, Go.
func Version(name string) string {
	b := Read()
	return fmt.Sprintf("%s %s (commit %s, %s)", name, b.Version, b.Revision, b.Go)
}

// Release is the module's version alone, "0.0.0" where the build info has none.
func Release() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "0.0.0"
	}
	return strings.TrimPrefix(info.Main.Version, "v")
}

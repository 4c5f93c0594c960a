// Package buildinfo returns the version of a daemon.
//
// It knows no daemon and reads no setting.
package buildinfo

import (
	"fmt"
	"runtime/debug"
	"strings"
)

// Info is the version from the program's build info. It needs no linker flags.
type Info struct{ Version, Revision, Go string }

// Read returns "unknown" for fields that the build info lacks. A revision with uncommitted changes ends in ",
// modified".
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

// Version returns the program's name with its module version, commit and Go version.
func Version(name string) string {
	b := Read()
	return fmt.Sprintf("%s %s (commit %s, %s)", name, b.Version, b.Revision, b.Go)
}

// Release returns only the module's version, "0.0.0" if the build info has none.
func Release() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "0.0.0"
	}
	return strings.TrimPrefix(info.Main.Version, "v")
}

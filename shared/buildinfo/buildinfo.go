// Package buildinfo returns the version of the running program.
//
// It depends on no daemon and reads no settings.
package buildinfo

import (
	"fmt"
	"runtime/debug"
	"strings"
)

// Info is the version that Go's build info has of the program. It needs no linker flags.
type Info struct{ Version, Revision, Go string }

// Read returns the build info. A field that the build info lacks is "unknown". A revision that was built with
// uncommitted changes ends in ", modified".
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

// Version returns a line for people: the program's name, its version, its commit and the version of Go.
func Version(name string) string {
	b := Read()
	return fmt.Sprintf("%s %s (commit %s, %s)", name, b.Version, b.Revision, b.Go)
}

// Release returns the version alone; "0.0.0" if the build info has none.
func Release() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "0.0.0"
	}
	return strings.TrimPrefix(info.Main.Version, "v")
}

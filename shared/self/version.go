package self

import (
	"fmt"
	"runtime/debug"
	"strings"
)

// Version is the program's name with what the build info says: module version, commit, Go. It needs
// no linker flags.
func Version(name string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return name + ", built without module information"
	}
	revision, dirty := "commit unknown", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = "commit " + s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = ", modified"
		}
	}
	return fmt.Sprintf("%s %s (%s%s, %s)", name, info.Main.Version, revision, dirty, info.GoVersion)
}

// Release is the module's version alone, "0.0.0" where the build info has none.
func Release() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "0.0.0"
	}
	return strings.TrimPrefix(info.Main.Version, "v")
}

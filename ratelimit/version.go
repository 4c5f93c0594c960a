package main

import (
	"fmt"
	"runtime/debug"
)

// version is one line from the build info: module version, commit, Go. It needs no linker flags.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "ratelimit, built without module information"
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
	return fmt.Sprintf("ratelimit %s (%s%s, %s)", info.Main.Version, revision, dirty, info.GoVersion)
}

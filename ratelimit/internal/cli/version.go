package cli

import (
	"fmt"
	"io"

	"gatehouse/shared/buildinfo"
)

// version prints the program's name, version and commit, and the version of Go.
func version(stdout io.Writer) int {
	fmt.Fprintln(stdout, buildinfo.Version("ratelimit"))
	return exitOK
}

package cli

import (
	"fmt"
	"io"

	"gatehouse/shared/self"
)

// version prints the program's name, version and commit, and the version of Go.
func version(stdout io.Writer) int {
	fmt.Fprintln(stdout, self.Version("ratelimit"))
	return exitOK
}

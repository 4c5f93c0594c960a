package cli

import (
	"fmt"

	"gatehouse/shared/buildinfo"
)

// version is the command of that name.
func (p *program) version() { fmt.Fprintln(p.stdout, buildinfo.Version("auth")) }

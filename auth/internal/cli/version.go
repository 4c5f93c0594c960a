package cli

import (
	"fmt"

	"gatehouse/shared/buildinfo"
)

// version runs auth version.
func (p *program) version() { fmt.Fprintln(p.stdout, buildinfo.Version("auth")) }

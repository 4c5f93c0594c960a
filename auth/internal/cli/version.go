package cli

import (
	"fmt"

	"gatehouse/shared/self"
)

// version is the command of that name.
func (p *program) version() { fmt.Fprintln(p.stdout, self.Version("auth")) }

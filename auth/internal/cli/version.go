package cli

import (
	"context"
	"fmt"

	"gatehouse/shared/buildinfo"
)

// version runs the command "auth version".
func (p *program) version(context.Context, []string) error {
	_, err := fmt.Fprintln(p.stdout, buildinfo.Version("auth"))
	return err
}

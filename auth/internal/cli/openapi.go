package cli

import (
	"context"
	"flag"

	"gatehouse/auth/internal/httpapi"
)

// openAPI runs the command "auth openapi". It needs no settings.
func (p *program) openAPI(_ context.Context, args []string) error {
	if _, err := p.parse(flag.NewFlagSet("openapi", flag.ContinueOnError), args, "", 0, 0); err != nil {
		return err
	}
	_, err := p.stdout.Write(httpapi.OpenAPI())
	return err
}

package cli

import (
	"context"
	"flag"
	"fmt"

	"gatehouse/auth/internal/daemon"
)

// migrate is the command of that name.
func (p *program) migrate(ctx context.Context, args []string) error {
	if _, err := p.parse(flag.NewFlagSet("migrate", flag.ContinueOnError), args, "", 0, 0); err != nil {
		return err
	}
	c, _, _, err := p.load()
	if err != nil {
		return err
	}
	log := daemon.NewLogger(p.stderr, c.Log)
	db, err := daemon.OpenStore(ctx, c.StoreOptions(log.Logger), daemon.DatabaseTimeout)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := daemon.CheckSchema(ctx, db); err != nil {
		return err
	}
	n, err := db.Migrate(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.stdout, "applied %d migrations\n", n)
	return err
}

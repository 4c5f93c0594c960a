package cli

import (
	"context"
	"flag"
	"fmt"
	"strings"

	"gatehouse/auth/internal/daemon"
	"gatehouse/auth/internal/store"
)

// migrate runs the command "auth migrate".
func (p *program) migrate(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("migrate", flag.ContinueOnError)
	plan := flags.Bool("plan", false, "print what would be applied and the rights it needs; change nothing")
	if _, err := p.parse(flags, args, "", 0, 0); err != nil {
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
	if *plan {
		return p.plan(ctx, db, c.DB.Store.Namespace)
	}
	n, err := db.Migrate(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.stdout, "applied %d migrations\n", n)
	return err
}

// plan prints the migrations that would be applied. It returns an error if the database role lacks a right for them.
func (p *program) plan(ctx context.Context, db *store.DB, namespace string) error {
	files, err := db.Plan(ctx)
	if err != nil {
		return err
	}
	if len(files) == 0 {
		_, err = fmt.Fprintln(p.stdout, "nothing to apply")
		return err
	}
	for _, f := range files {
		line := f.Name
		if f.Outside {
			line += ", outside a transaction"
		}
		if f.Breaks {
			line += ", older programs stop working"
		}
		fmt.Fprintln(p.stdout, line)
	}
	f, err := db.ForeignTables(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "%d files; needs: CREATE on schema %s, ownership of table %s\n", len(files), f.Schema,
		namespace+"users")
	_, missing, err := db.MissingRights(ctx)
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("missing: %s", strings.Join(missing, "; "))
	}
	return err
}

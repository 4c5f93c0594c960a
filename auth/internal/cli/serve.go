package cli

import (
	"context"
	"flag"
	"os"
	"os/signal"
	"syscall"

	"gatehouse/auth/internal/daemon"
)

// serve runs the command "auth serve".
func (p *program) serve(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("serve", flag.ContinueOnError)
	skip := f.Bool("skip-migrations", false, "refuse a database that lacks migrations, instead of applying them")
	if _, err := p.parse(f, args, "[-skip-migrations]", 0, 0); err != nil {
		return err
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP) // before the settings are read, so that SIGHUP never ends the process
	defer signal.Stop(hup)
	signal.Ignore(syscall.SIGPIPE) // the process must not end if the reader of its log does

	c, l, warnings, err := p.load()
	if err != nil {
		return err
	}
	return daemon.Serve(ctx, daemon.Options{
		Config: &c, Live: l, Warnings: warnings, Environ: p.environ, File: p.file, Hangup: hup, Stderr: p.stderr,
		SkipMigrations: *skip, Hashing: hashingCommand(),
	})
}

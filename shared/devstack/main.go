// Command devstack is behind make run: it starts the daemons from nothing, prints what to try, and stops everything it
// started on Ctrl-C or when one of them ends.
//
// It is for one developer at one machine: listeners are on loopback only, and users and counts are lost at the end. Its
// files are in .run/, except PostgreSQL's data, to which it has a link.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	bin := flag.String("bin", "bin", "`folder` of the built daemons")
	dir := flag.String("dir", ".run", "`folder` for rules, secrets and logs")
	flag.Parse()
	if err := run(ctx, *bin, *dir, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "devstack:", err)
		os.Exit(1)
	}
}

// run returns nil when ctx has ended and everything was stopped.
func run(ctx context.Context, bin, dir string, out io.Writer) error {
	limits, err := startRatelimit(ctx, bin, dir, out)
	if err != nil {
		return orStopped(ctx, err)
	}
	users, err := startAuth(ctx, bin, dir, limits, out)
	if err != nil {
		return errors.Join(orStopped(ctx, err), limits.stop())
	}
	limits.introduce(out)
	users.introduce(out, dir)
	fmt.Fprintln(out, "\nCtrl-C stops everything.")

	select {
	case <-ctx.Done():
		fmt.Fprintln(out, "\nstopping")
	case <-limits.process.Ended():
		err = errors.New("ratelimit ended by itself")
	case <-users.process.Ended():
		err = errors.New("auth ended by itself")
	case <-users.postgres.Ended():
		err = errors.New("PostgreSQL ended by itself")
	}
	return errors.Join(err, users.stop(), limits.stop())
}

// orStopped returns nil if the stack was stopped while it started, otherwise err.
func orStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

//go:embed rules.yaml
var exampleRules []byte

// writeRules makes the rules file, unless there is one, which may have been edited.
func writeRules(path string) (kept bool, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, os.ErrExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	_, err = f.Write(exampleRules)
	return false, errors.Join(err, f.Close())
}

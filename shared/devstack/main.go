// Command devstack is the program behind `make run`. It starts both daemons and the servers they need, prints what to
// try, and stops everything on Ctrl-C or when a daemon or PostgreSQL ends.
//
// It is for one developer on one machine: it listens on loopback only, and users and counts are lost when it ends. Its
// files are in .run/, except for PostgreSQL's data, to which .run/ has a link.
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

// run starts everything, waits until ctx ends, stops everything and returns nil. It returns an error if a daemon or
// PostgreSQL ends before.
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

// orStopped returns nil if ctx ended while the daemons were starting, otherwise err.
func orStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

//go:embed rules.yaml
var exampleRules []byte

// writeRules writes the example rules to a file, unless the file exists, since it may have been edited.
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

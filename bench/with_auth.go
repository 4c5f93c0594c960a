//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"strconv"
)

// runWithAuth starts PostgreSQL and auth, runs a command with BASE_URL, ADDR, PID and DATABASE_URL in its
// environment, and ends both. The k6 scripts are run so; a delay shows that they notice.
func runWithAuth(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("with-auth", flag.ContinueOnError)
	program := flags.String("auth-daemon", "bin/auth", "`program` to start")
	settings := flags.String("env", "", "further settings of the daemon, `NAME=value` separated by spaces")
	delay := flags.Duration("delay", 0, "how much later than it was made each answer arrives")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("with-auth: no command to run")
	}
	dir, err := os.MkdirTemp("", "gatehouse-load-")
	if err != nil {
		return err
	}
	l := &testbed{dir: dir, authDaemon: *program}
	l.settings(*settings)
	db, err := startDatabase(ctx)
	if err != nil {
		return errors.Join(err, l.close())
	}
	defer db.close()
	defer func() { err = errors.Join(err, l.close()) }() // before its database
	url, err := db.create(ctx, "load")
	if err != nil {
		return err
	}
	t, err := l.auth("auth", url, "AUTH_PASSWORD_HASH=bcrypt:4")
	if err != nil {
		return err
	}
	if err := l.awaitHTTP(ctx, t, "/readyz", ""); err != nil {
		return err
	}
	addr, err := delayed(ctx, t.addr, *delay)
	if err != nil {
		return err
	}
	return runCommand(ctx, flags.Args(), "BASE_URL=http://"+addr, "ADDR="+addr, "DATABASE_URL="+url,
		"PID="+strconv.Itoa(t.process.PID()))
}

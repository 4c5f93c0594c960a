//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"strconv"

	"gatehouse/shared/localserver"
)

// runWithRatelimit starts a Redis and ratelimit with a file of rules, runs a command with BASE_URL (of /json),
// ADDR (of gRPC) and PID in its environment, and ends both, as runWithAuth does for auth.
func runWithRatelimit(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("with-ratelimit", flag.ContinueOnError)
	program := flags.String("daemon", "bin/ratelimit", "`program` to start")
	rules := flags.String("rules", "loadtest/ratelimit/rules.yaml", "`file` of rules")
	settings := flags.String("env", "", "further settings of the daemon, `NAME=value` separated by spaces")
	delay := flags.Duration("delay", 0, "how much later than it was made each answer arrives")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("with-ratelimit: no command to run")
	}
	text, err := os.ReadFile(*rules)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gatehouse-load-")
	if err != nil {
		return err
	}
	l := &testbed{dir: dir, daemon: *program}
	l.settings(*settings)
	redis, err := localserver.Redis(ctx, localserver.RedisOptions{})
	if err != nil {
		return errors.Join(err, l.close())
	}
	defer redis.Close()
	defer func() { err = errors.Join(err, l.close()) }() // before its store
	t, err := l.ratelimit("ratelimit", text, redis)
	if err != nil {
		return err
	}
	if err := l.await(ctx, t); err != nil {
		return err
	}
	addr, err := delayed(ctx, t.addr, *delay)
	if err != nil {
		return err
	}
	http, err := delayed(ctx, t.http, *delay)
	if err != nil {
		return err
	}
	return runCommand(ctx, flags.Args(), "BASE_URL=http://"+http, "ADDR="+addr, "PID="+strconv.Itoa(t.process.PID()))
}

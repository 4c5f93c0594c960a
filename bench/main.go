//go:build linux

// Command bench measures the running daemons from outside and compares the results with budgets.
//
// It compares the daemons with yardsticks. A yardstick is a process of this program that speaks the same protocol as a
// daemon and does nothing else. Daemon and yardstick are measured in turns in the same run, and most budgets are ratios
// of the two, because absolute figures vary from run to run.
//
// The command needs Linux (/proc, ppoll). It makes the load on the machine that it measures, and so uses part of the
// same cores. The figure to compare is the CPU time for each request; a rate only shows which side reached its limit
// first.
package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"gatehouse/shared/localserver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(exitStatus(run(ctx, os.Args[1:])))
}

// exitStatus prints an error and returns the exit status. A request for help is not an error.
func exitStatus(err error) int {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	return 1
}

//go:embed usage.txt
var usageFormat string

// printUsage prints the flags, and what can be measured.
func printUsage(flags *flag.FlagSet) {
	targets := func(all []group) string {
		var names []string
		for _, l := range slices.Concat(all...) {
			names = append(names, strings.TrimSuffix(l.target, limitsRules))
		}
		return list(names)
	}
	fmt.Fprintf(flags.Output(), usageFormat, list(ratelimitNames()), targets(groups()), list(authScenarios),
		targets(authGroups()), list(append(takeoverNames(), "small")))
	flags.PrintDefaults()
}

// list returns the names sorted, without duplicates, and separated by semicolons.
func list(names []string) string {
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(names))), "; ")
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "yardstick":
			return runYardstick(ctx, args[1:], os.Stdout)
		case "load", "http-load":
			return runLoad(args)
		case "with-auth", "with-ratelimit":
			return runWith(ctx, args)
		}
	}
	return runSuite(ctx, args, os.Stdout)
}

// runLoad sends one load to a running server and prints the result. The load is gRPC calls or, as the command
// http-load, requests to an auth daemon, for which it signs up accounts, or to a yardstick.
func runLoad(args []string) error {
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	l, calls := load{}, grpcTraffic{}
	var name *string
	var accounts *int
	grpc, what := args[0] == "load", "request"
	if grpc {
		what = "call"
		flags.StringVar(&l.addr, "addr", "127.0.0.1:8081", "`address` of the gRPC listener, IPv4")
		name = flags.String("scenario", "single", strings.Join(slices.Sorted(maps.Keys(scenarios)), ", "))
		flags.IntVar(&l.conns, "conns", 4, "connections")
		flags.IntVar(&calls.streams, "streams", 64, "calls in flight on each connection (closed loop)")
		flags.StringVar(&calls.timeout, "timeout", "", "grpc-timeout of each call, for example 20m (milliseconds)")
	} else {
		flags.StringVar(&l.addr, "addr", "127.0.0.1:8082", "`address` of the HTTP listener, IPv4")
		name = flags.String("scenario", "user", "user, refresh, password, signup, or a path to GET")
		flags.IntVar(&l.conns, "conns", authConns, "connections, at most 16")
		accounts = flags.Int("accounts", 1_000, "accounts to sign up for user, refresh and password")
	}
	flags.Float64Var(&l.rate, "rate", 0, what+"s a second at Poisson distributed times (open loop)")
	flags.DurationVar(&l.warm, "warm", 500*time.Millisecond, "time before measuring")
	flags.DurationVar(&l.run, "time", 3*time.Second, "measured time")
	pid := flags.Int("pid", 0, "process whose CPU time is measured")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if grpc {
		var ok bool
		if calls.scenario, ok = scenarios[*name]; !ok {
			return fmt.Errorf("no scenario %q", *name)
		}
		l.traffic = calls
	} else {
		l.conns = min(l.conns, authConns)
		var err error
		if l.traffic, err = authTraffic(*name, l.addr, *accounts, l.conns); err != nil {
			return err
		}
	}
	return l.print(*pid, what)
}

// authTraffic returns the requests of an auth scenario, made by accounts that it signs up.
func authTraffic(scenario, addr string, accounts, conns int) (traffic, error) {
	var crowd []account
	var err error
	prefix := fmt.Sprintf("load%d", time.Now().UnixNano())
	if scenario == "user" || scenario == "refresh" || scenario == "password" {
		if crowd, err = signUpAccounts(&target{name: addr, addr: addr}, prefix, accounts); err != nil {
			return nil, err
		}
	}
	return requests(scenario, conns, crowd, prefix, &crowd), nil
}

// print runs a load and prints the result. If pid is not 0, it also prints the CPU time that this process has used for
// each call or request.
func (l load) print(pid int, what string) error {
	r, used, err := l.measured(func() (reading, error) {
		u, err := readUsage(pid)
		return reading{own: u.cpu}, err
	})
	if err != nil {
		return err
	}
	fmt.Printf("%.0f/s: %d OK, %d OVER_LIMIT, %d failed %s\n", r.perSecond(), r.ok, r.over, r.failed, r.refusal)
	fmt.Printf("p50 %v p99 %v max %v\n", r.latency.quantile(.5), r.latency.quantile(.99), r.latency.quantile(1))
	if pid != 0 {
		fmt.Printf("CPU %.2f µs a %s\n", used.cpu, what)
	}
	return nil
}

// runWith starts a daemon and its store, runs a command, and stops both. The command gets BASE_URL, ADDR and PID in its
// environment, and for auth DATABASE_URL, too. For ratelimit, which gets a file of rules, BASE_URL is the address of
// /json and ADDR that of gRPC. The k6 scripts are run this way; with a delay, they must notice that the daemon is slow.
func runWith(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	l, rules := &testbed{statsd: []string{"DISABLE_STATS=true"}}, ""
	grpc := args[0] == "with-ratelimit"
	if grpc {
		flags.StringVar(&l.daemon, "daemon", "bin/ratelimit", "`program` to start")
		flags.StringVar(&rules, "rules", "loadtest/ratelimit/rules.yaml", "`file` of rules")
	} else {
		flags.StringVar(&l.authDaemon, "auth-daemon", "bin/auth", "`program` to start")
	}
	settings := flags.String("env", "", "further settings of the daemon, `NAME=value` separated by spaces")
	delay := flags.Duration("delay", 0, "how much later than it was made each answer arrives")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New(args[0] + ": no command to run")
	}
	l.settings(*settings)
	if l.dir, err = os.MkdirTemp("", "gatehouse-load-"); err != nil {
		return err
	}
	var t *target
	var env []string
	if grpc {
		t, err = l.ratelimitOnRedis(ctx, rules)
	} else {
		t, env, err = l.authOnDatabase(ctx)
	}
	if err == nil {
		err = t.run(ctx, flags.Args(), *delay, env)
	}
	return errors.Join(err, l.close())
}

func (l *testbed) authOnDatabase(ctx context.Context) (t *target, env []string, err error) {
	db, err := startDatabase(ctx, l)
	if err != nil {
		return nil, nil, err
	}
	url, err := db.create(ctx, "load")
	if err != nil {
		return nil, nil, err
	}
	t, err = l.auth(ctx, l.authDaemon,
		authDaemon{name: "auth", database: url, settings: []string{"AUTH_PASSWORD_HASH=bcrypt:4"}})
	return t, []string{"DATABASE_URL=" + url}, err
}

func (l *testbed) ratelimitOnRedis(ctx context.Context, file string) (*target, error) {
	rules, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	redis, err := startServer(ctx, l, localserver.Redis, localserver.RedisOptions{})
	if err != nil {
		return nil, err
	}
	return l.ratelimit(ctx, l.daemon, "", daemon{"ratelimit", rules, []*localserver.Server{redis}, nil})
}

// run runs a command to its end, with the address of the target in its environment.
func (t *target) run(ctx context.Context, command []string, delay time.Duration, env []string) error {
	addr, err := delayed(ctx, t.addr, delay)
	if err != nil {
		return err
	}
	http, err := delayed(ctx, cmp.Or(t.http, t.addr), delay)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(append(os.Environ(), "BASE_URL=http://"+http, "ADDR="+addr,
		"PID="+strconv.Itoa(t.process.PID())), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = grace
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", command[0], err)
	}
	return nil
}

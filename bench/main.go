//go:build linux

// Command bench measures the daemons as they run, from outside, against their budgets.
//
// Its yardsticks are processes of its own program that do the same protocol and nothing else. Both
// sides are measured in turns in one run, and the budget is the ratio: machines are noisy.
//
// It needs Linux (/proc, ppoll) and measures on this machine only, so the load it makes takes part
// of the same cores. CPU per request is what to compare; a rate says which side ran out first.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "yardstick":
			return runYardstick(ctx, args[1:], os.Stdout)
		case "http-yardstick":
			return runHTTPYardstick(ctx, args[1:], os.Stdout)
		case "load":
			return runLoad(args[1:])
		case "http-load":
			return runHTTPLoad(args[1:])
		case "with-auth":
			return runWithAuth(ctx, args[1:])
		case "with-ratelimit":
			return runWithRatelimit(ctx, args[1:])
		}
	}
	return runSuite(ctx, args, os.Stdout)
}

// runLoad sends one load to a server that is running already and prints what came back.
func runLoad(args []string) error {
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	l := load{}
	addr := flags.String("addr", "127.0.0.1:8081", "`address` of the gRPC listener, IPv4")
	name := flags.String("scenario", "single", scenarioNames())
	var calls grpcTraffic
	flags.IntVar(&l.conns, "conns", 4, "connections")
	flags.IntVar(&calls.streams, "streams", 64, "calls in flight on each connection (closed loop)")
	flags.StringVar(&calls.timeout, "timeout", "", "grpc-timeout of each call, for example 20m (milliseconds)")
	pid := loadFlags(flags, &l, "calls")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var ok bool
	if calls.scenario, ok = scenarios[*name]; !ok {
		return fmt.Errorf("no scenario %q", *name)
	}
	l.addr, l.traffic = *addr, calls
	r, cpu, err := driveWatched(l, *pid)
	if err != nil {
		return err
	}
	fmt.Printf("%.0f/s: %d OK, %d OVER_LIMIT, %d failed %s\n", r.perSecond(), r.ok, r.over, r.failed, r.refusal)
	printLoad(r, cpu, "call")
	return nil
}

// runHTTPLoad sends one scenario to an auth daemon, or to a yardstick, that is running already, and prints what
// came back. It signs up the accounts that it needs.
func runHTTPLoad(args []string) error {
	flags := flag.NewFlagSet("http-load", flag.ContinueOnError)
	l := load{}
	addr := flags.String("addr", "127.0.0.1:8082", "`address` of the HTTP listener, IPv4")
	name := flags.String("scenario", "user", "user, refresh, password, signup, or a path to GET")
	flags.IntVar(&l.conns, "conns", authConns, "connections, at most 16")
	accounts := flags.Int("accounts", 1_000, "accounts to sign up for user, refresh and password")
	pid := loadFlags(flags, &l, "requests")
	if err := flags.Parse(args); err != nil {
		return err
	}
	l.addr, l.conns = *addr, min(l.conns, authConns)
	var crowd []account
	var err error
	prefix := fmt.Sprintf("load%d", time.Now().UnixNano())
	if *name == "user" || *name == "refresh" || *name == "password" {
		if crowd, err = signUpAccounts(&target{name: *addr, addr: *addr}, prefix, *accounts); err != nil {
			return err
		}
	}
	switch *name {
	case "user":
		l.traffic = asUser(crowd)
	case "refresh":
		l.traffic = refreshing(crowd)
	case "password":
		l.traffic = signingIn(l.conns, crowd)
	case "signup":
		l.traffic = signingUp(prefix, &crowd)
	default:
		l.traffic = getting(*name)
	}
	r, cpu, err := driveWatched(l, *pid)
	if err != nil {
		return err
	}
	fmt.Printf("%.0f/s: %d as wanted, %d not %s\n", r.perSecond(), r.ok, r.failed, r.refusal)
	printLoad(r, cpu, "request")
	return nil
}

// loadFlags declares the flags that both kinds of load have, and returns that of the process to watch.
func loadFlags(flags *flag.FlagSet, l *load, what string) (pid *int) {
	flags.Float64Var(&l.rate, "rate", 0, what+" a second at Poisson distributed times (open loop)")
	flags.DurationVar(&l.warm, "warm", 500*time.Millisecond, "time before measuring")
	flags.DurationVar(&l.run, "time", 3*time.Second, "measured time")
	return flags.Int("pid", 0, "process whose CPU time is measured")
}

// driveWatched runs a load and reads the CPU time that a process, if there is one, used meanwhile.
func driveWatched(l load, pid int) (r *result, cpu time.Duration, err error) {
	var marks []time.Duration
	l.mark = func() error {
		u, err := readUsage(pid)
		if pid != 0 {
			u.cpu = exactCPU(pid, u.cpu)
		}
		marks = append(marks, u.cpu)
		return err
	}
	if r, err = l.drive(); err != nil {
		return nil, 0, err
	}
	return r, marks[1] - marks[0], nil
}

// printLoad writes latencies and, where a process was watched, its CPU time for each call or request.
func printLoad(r *result, cpu time.Duration, what string) {
	fmt.Printf("p50 %v p99 %v max %v\n", r.latency.quantile(.5), r.latency.quantile(.99), r.latency.max)
	if cpu != 0 {
		fmt.Printf("CPU %.2f µs a %s\n", float64(cpu.Nanoseconds())/1e3/float64(r.answered()), what)
	}
}

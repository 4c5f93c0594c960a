//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"
)

const mib = 1 << 20

// otherBudgets measures the budgets that are not about a call: start, memory, reload, the binary.
func (s *suite) otherBudgets(ctx context.Context) error {
	fmt.Fprintln(os.Stderr, "start, memory, reload")
	for _, f := range []func(context.Context) error{s.startTime, s.memory, s.connections, s.allocations, s.reload} {
		if err := f(ctx); err != nil {
			return err
		}
	}
	return s.report.printBinary(s.testbed.daemon, "other budgets", 25, 41)
}

// fresh starts a daemon on its in-process store, passes it to use after its first decision, and ends it.
func (s *suite) fresh(ctx context.Context, name string, rules []byte, use func(t *target, took time.Duration) error,
	settings ...string) error {
	began := time.Now()
	t, err := s.testbed.ratelimit(ctx, s.testbed.daemon, "", daemon{name, rules, nil, settings})
	if err != nil {
		return err
	}
	if err := use(t, time.Since(began)); err != nil {
		return err
	}
	return s.testbed.stop(t)
}

// startTime measures from before the fork to the first decision on a socket.
func (s *suite) startTime(ctx context.Context) error {
	var took []float64
	for range 2*s.rounds + 1 {
		err := s.fresh(ctx, "start", ruleText(0, 1), func(_ *target, d time.Duration) error {
			took = append(took, float64(d.Microseconds())/1000)
			return nil
		})
		if err != nil {
			return err
		}
	}
	s.report.atMost(40, " ms", "start to first decision, memory", took)
	return nil
}

// compare compares the whole-daemon measurements with their budgets.
func (s *suite) compare() {
	s.report.linef("redis-benchmark -P 64 INCRBY: %v µs of Redis' CPU a command", spreadOf(s.incrby))
	s.judge(serverBudgets())
	s.report.atMost(2, " ×", "single, redis: Redis' CPU ÷ that of redis-benchmark",
		ratios(s.of(line{scenario: "single", target: "redis"}, storeOf), s.incrby))
	at := line{scenario: neighbours, target: "memory", open: true, rate: slowRate}
	twin := at
	twin.target = library
	s.report.atMost(2, " ×", "64 descriptors with patterns on the connection: p99 of small calls ÷ that of grpc-go",
		ratios(s.of(at, p99Of), s.of(twin, p99Of)))
	s.report.printBudgets("ratios, round by round")
	s.compareLimits()
	s.report.printBudgets("kinds of limits, round by round")
}

// serverBudgets returns the budgets of the daemon's own gRPC server, and one of grpc-go's.
func serverBudgets() (all []ratioBudget) {
	add := func(limit float64, name string, figure func(sample) float64, lines ...line) {
		for _, l := range lines {
			all = append(all, ratioBudget{line: l, name: name, figure: figure, limit: limit, least: name == "calls/s"})
		}
	}
	cpu := func(limit float64, lines ...line) { add(limit, "CPU", cpuOf, lines...) }
	byClient := line{scenario: "single", target: "memory", via: viaGRPCGo}
	cpu(.14, closed("single", "memory")...)
	add(5, "calls/s", rateOf, closed("single", "memory")...)
	cpu(.25, closed("single", "redis")...)
	add(1.7, "calls/s", rateOf, closed("single", "redis")...)
	cpu(1.3, closed("single", library)...)
	cpu(.33, closed("multi", "memory")...)
	cpu(.55, closed("multi", "redis")...)
	cpu(.07, closed("unmatched", "memory", "redis")...)
	cpu(.07, closed("overlimit", "memory+cache", "redis+cache")...)
	for _, at := range []struct{ rate, memory, redis, redisP99 float64 }{{slowRate, .45, 1.1, 1.5},
		{0, .45, 1, 1.25}, {fastRate, .6, .9, 1}} {
		cpu(at.memory, open(at.rate, "memory")...)
		add(1, "p99", p99Of, open(at.rate, "memory")...)
		cpu(at.redis, open(at.rate, "redis")...)
		add(at.redisP99, "p99", p99Of, open(at.rate, "redis")...)
	}
	cpu(.35, byClient)
	add(1.7, "calls/s", rateOf, byClient)
	byClient.open = true
	cpu(.70, byClient)
	cpu(.30, line{scenario: "single", target: "memory", via: viaEnvoy})
	cpu(.55, line{scenario: "single", target: "redis", via: viaEnvoy})
	return all
}

// goBenchmarks runs the Go benchmarks of the packages, briefly, and prints their lines.
func (s *suite) goBenchmarks(ctx context.Context) error {
	fmt.Fprintln(os.Stderr, "Go benchmarks")
	args := []string{"test", "-run", "^$", "-bench", ".", "-benchmem", "-benchtime", "100ms", "./shared/..."}
	for _, daemon := range []string{"ratelimit", "auth"} {
		if s.asked(daemon) {
			args = append(args, "./"+daemon+"/...")
		}
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stdout, cmd.Stderr = s.report.out, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go benchmarks: %w", err)
	}
	return nil
}

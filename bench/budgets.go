//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const mib = 1 << 20

// otherBudgets measures the budgets that are not about a call: start, memory, reload, the binary.
func (s *suite) otherBudgets(ctx context.Context) error {
	if !s.asked("ratelimit") {
		return nil
	}
	fmt.Fprintln(os.Stderr, "start, memory, reload")
	if err := inOrder(ctx, s.startTime, s.memory, s.connections, s.allocations, s.reload); err != nil {
		return err
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
		ratios(s.of(line{scenario: "single", target: "redis"}, store), s.incrby))
	small := like(line{scenario: neighbours, open: true, rate: slowRate}, "memory", library)
	s.report.atMost(2, " ×", "64 descriptors with patterns on the connection: p99 of small calls ÷ that of grpc-go",
		ratios(s.of(small[0], p99), s.of(small[1], p99)))
	s.report.printBudgets("ratios, round by round")
	s.judge(limitBudgets())
	for _, l := range each("redis"+limitsRules, "sliding", "bucket") {
		s.report.atMost(8, " µs", l.row()+": Redis' CPU a scripted key", s.of(l, store))
	}
	s.report.printBudgets("kinds of limits, round by round")
}

// serverBudgets returns the budgets of the daemon's own gRPC server, and one of grpc-go's.
func serverBudgets() (all []ratioBudget) {
	client := line{scenario: "single", via: viaGRPCGo}
	openClient := line{scenario: "single", via: viaGRPCGo, open: true}
	envoy := line{scenario: "single", via: viaEnvoy}
	for _, b := range []struct {
		limit  float64
		figure figure
		lines  group
	}{
		{.14, cpu, closed("single", "memory")}, {5, rate, closed("single", "memory")},
		{.25, cpu, closed("single", "redis")}, {1.7, rate, closed("single", "redis")},
		{1.3, cpu, closed("single", library)},
		{.33, cpu, closed("multi", "memory")}, {.55, cpu, closed("multi", "redis")},
		{.07, cpu, closed("unmatched", "memory", "redis")}, {.07, cpu, closed("overlimit", "memory+cache", "redis+cache")},
		{.45, cpu, open(slowRate, "memory")}, {1, p99, open(slowRate, "memory")},
		{1.1, cpu, open(slowRate, "redis")}, {1.5, p99, open(slowRate, "redis")},
		{.45, cpu, open(0, "memory")}, {1, p99, open(0, "memory")},
		{1, cpu, open(0, "redis")}, {1.25, p99, open(0, "redis")},
		{.6, cpu, open(fastRate, "memory")}, {1, p99, open(fastRate, "memory")},
		{.9, cpu, open(fastRate, "redis")}, {1, p99, open(fastRate, "redis")},
		{.35, cpu, like(client, "memory")}, {1.7, rate, like(client, "memory")}, {.70, cpu, like(openClient, "memory")},
		{.30, cpu, like(envoy, "memory")}, {.55, cpu, like(envoy, "redis")},
	} {
		for _, l := range b.lines {
			all = append(all, ratioBudget{limit: b.limit, figure: b.figure, line: l})
		}
	}
	return all
}

// limitBudgets returns the budgets of each kind of limit, relative to its twin.
func limitBudgets() (all []ratioBudget) {
	for _, l := range slices.Concat(limitGroups()...) {
		twin := l
		twin.via, twin.target = "", strings.Replace(l.target, "+top", "", 1)
		scenario, counted := twins[l.scenario]
		if counted {
			twin.scenario = scenario
		}
		switch {
		case l.via == viaTap:
			all = append(all, ratioBudget{1.02, cpu, l, twin})
		case l.via == viaTop:
			all = append(all, ratioBudget{1.03, cpu, l, twin})
		case counted && l.open: // CPU at the same rate, unlike in a closed loop
			all = append(all, ratioBudget{1.3, p99, l, twin}, ratioBudget{1.15, cpu, l, twin})
		case counted:
			all = append(all, ratioBudget{1.15, cpu, l, twin})
		}
	}
	return all
}

// goBenchmarks runs the Go benchmarks, briefly, and prints their lines. Only the packages that have some are named:
// building the tests of all others takes minutes.
func (s *suite) goBenchmarks(ctx context.Context) error {
	fmt.Fprintln(os.Stderr, "Go benchmarks")
	find := []string{"-rl", "--include=*_test.go", "^func Benchmark", "shared"}
	for _, daemon := range []string{"ratelimit", "auth"} {
		if s.asked(daemon) {
			find = append(find, daemon)
		}
	}
	files, err := exec.CommandContext(ctx, "grep", find...).Output()
	if err != nil {
		return fmt.Errorf("find Go benchmarks: %w", err)
	}
	var packages []string
	for file := range strings.FieldsSeq(string(files)) {
		packages = append(packages, "./"+filepath.Dir(file))
	}
	slices.Sort(packages)
	args := []string{"test", "-vet=off", "-run", "^$", "-bench", ".", "-benchmem", "-benchtime", "100ms"}
	cmd := exec.CommandContext(ctx, "go", append(args, slices.Compact(packages)...)...)
	cmd.Stdout, cmd.Stderr = s.report.out, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go benchmarks: %w", err)
	}
	return nil
}

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

// otherBudgets measures the figures of ratelimit that have budgets but are not about calls: time to start, memory,
// reload, and size of the program.
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

// fresh starts a ratelimit daemon that counts in its own memory. When the daemon has made its first decision, fresh
// calls the function use with the time from the start to that decision. Then it ends the daemon.
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

// startTime measures the time from before the fork of the daemon to its first decision over gRPC.
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

// compare compares the measurements of ratelimit with their budgets.
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

// serverBudgets returns the budgets of the h2grpc server, and one of grpc-go's server.
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

// limitBudgets returns the budgets of each kind of limit. They are relative to the measurements of the limit's twin,
// which counts the same requests in fixed windows or finds the same rules by exact values.
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
		case counted && l.open: // CPU time is compared at the same rate, which a closed loop does not have
			all = append(all, ratioBudget{1.3, p99, l, twin}, ratioBudget{1.15, cpu, l, twin})
		case counted:
			all = append(all, ratioBudget{1.15, cpu, l, twin})
		}
	}
	return all
}

// goBenchmarks runs the Go benchmarks for a short time and prints their lines. It names only the packages that have
// benchmarks, because building the tests of all others takes minutes.
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

// header prints which versions of auth and PostgreSQL are measured.
func (s *authSuite) header(ctx context.Context) error {
	if err := s.report.program("auth", s.testbed.authDaemon); err != nil {
		return err
	}
	var version string
	if err := s.db.conn.QueryRow(ctx, "show server_version").Scan(&version); err != nil {
		return err
	}
	s.report.linef("PostgreSQL %s on a unix socket, fsync and full page writes on; pool %d but for default; bcrypt:4 "+
		"but for default and flood", version, authPool)
	s.report.linef(
		"rounds     %d of %v each; closed loop: %d connections with one request each; one checkpoint before each round",
		s.rounds, s.time, authConns)
	return nil
}

// compare compares the measurements of auth with their budgets.
func (s *authSuite) compare() {
	all := []ratioBudget{
		{1.1, cpu, hs("health"), bareLine},
		{1.2, cpu, hs("settings"), bareLine},
		{1.2, cpu, line{scenario: "jwks", target: "RS256"}, bareLine},
		{1.9, cpu, hs("user"), selectLine},
		{2.7, store, hs("user"), selectLine},
		{2.75, cpu, hs("refresh"), updateLine},
		{2.75, store, hs("refresh"), updateLine},
		{3.2, wal, hs("refresh"), updateLine},
		{8.8, store, hs("signup"), updateLine},
		{2, cpu, hs("logout"), updateLine},
		{2, store, hs("logout"), updateLine},
		{2, cpu, optionsLine, hs("health")},
		{1.4, store, passkeyLine, hs("password")},
		{1.4, wal, passkeyLine, hs("password")},
		{2, p99, floodedLine, quietLine},
	}
	for _, scenario := range millionScenarios {
		all = append(all, ratioBudget{1.2, p50, millionLine(scenario), hs(scenario)})
	}
	s.judge(all)
	for algorithm, yardstick := range map[string]line{"RS256": rs256Line, "ES256": es256Line} {
		signature := minus(s.of(yardstick, cpu), s.of(bareLine, cpu))
		s.report.atMost(2.75, " ×", fmt.Sprintf("refresh, %s: server without one signature ÷ update", algorithm),
			ratios(minus(s.of(line{scenario: "refresh", target: algorithm}, cpu), signature), s.of(updateLine, cpu)),
			fmt.Sprintf("signature %s µs", spreadOf(signature)))
	}
	hash := minus(s.of(hashLine, cpu), s.of(bareLine, cpu))
	s.report.atMost(500, " µs", "password: server beyond the hash", minus(s.of(hs("password"), cpu), hash),
		fmt.Sprintf("bcrypt:4 %s µs", spreadOf(hash)))
	s.comparePasskeys()
	s.report.atMost(2900, " B", "signup: WAL", s.of(hs("signup"), wal))
	s.report.atMost(600, " B", "logout: WAL", s.of(hs("logout"), wal))
	for _, t := range []struct {
		scenario string
		limit    float64
	}{{"user", 1}, {"refresh", 1}, {"password", 2}, {"signup", 2}, {"logout", 1}} {
		// Allow .05 more, for the daemon's polls in the background, which are few compared with several hundred round
		// trips.
		s.report.atMost(t.limit+.05, "", t.scenario+": round trips", s.of(hs(t.scenario), commands))
	}
	s.report.atMost(1.1, " ×", "refresh, RS256: rate with a pool of 10 ÷ with the default one",
		ratios(s.of(line{scenario: "refresh", target: "RS256"}, rate),
			s.of(line{scenario: "refresh", target: "default"}, rate)))
	s.report.atMost(15_000, " µs", floodedLine.row()+": p99", s.of(floodedLine, p99))
	s.report.atMost(1.11, " ×", "flood: hashes that the cores allow ÷ sign-ins",
		ratios(s.of(hashesLine, rate), s.of(signInLine, rate)), "at least 90 % of them")
	s.compareEnumeration()
	if s.large {
		s.report.atMost(0, "", "whole reads of users, identities, sessions meanwhile",
			[]float64{float64(s.millionScans)})
	}
	s.report.printBudgets("auth, round by round")
}

// minus returns the differences of[i] − less[i], one for each round i.
func minus(of, less []float64) []float64 {
	var values []float64
	for i := range min(len(of), len(less)) {
		values = append(values, of[i]-less[i])
	}
	return values
}

// otherBudgets measures the figures of auth that have budgets but are not about requests: time to start, memory, and
// size of the program.
func (s *authSuite) otherBudgets(ctx context.Context) error {
	if !s.asked("auth") {
		return nil
	}
	busy, err := readFamily(s.targets["HS256"].process.PID())
	if err != nil {
		return err
	}
	s.report.linef("\nRSS after the measurements, HS256, with the hashing process: %.1f MiB", float64(busy.rss)/mib)
	var took, idle []float64
	for range 2*s.rounds + 1 {
		began := time.Now()
		// The start is over when the daemon answers GET /user, which needs everything that later requests need.
		t, err := s.testbed.auth(ctx, s.testbed.authDaemon, authDaemon{"start", s.db.server.PostgresURL("ES256"),
			cheapHash("ES256"), s.crowd["ES256"][0].access})
		if err != nil {
			return err
		}
		took = append(took, float64(time.Since(began).Microseconds())/1000)
		if len(idle) < s.rounds {
			time.Sleep(500 * time.Millisecond) // until the garbage of the start has been collected
			u, err := readUsage(t.process.PID())
			if err != nil {
				return err
			}
			idle = append(idle, float64(u.rss)/mib)
		}
		if err := s.testbed.stop(t); err != nil {
			return err
		}
	}
	s.report.atMost(40, " ms", "start to the first GET /user", took, "migrated before, key there")
	s.report.atMost(24, " MiB", "RSS, idle", idle)
	return s.report.printBinary(s.testbed.authDaemon, "auth, other budgets", 27, 37)
}

//go:build linux

package main

import (
	"context"
	"fmt"
	"time"
)

// header prints what was measured on which versions.
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

// compare compares the measurements with their budgets.
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
		// The polls in the background are few among several hundred round trips.
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

// minus subtracts round by round.
func minus(of, less []float64) []float64 {
	var values []float64
	for i := range min(len(of), len(less)) {
		values = append(values, of[i]-less[i])
	}
	return values
}

// otherBudgets measures the budgets that are not about a request: start, memory, the binary.
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
		// As for ratelimit, until the first answer after which everything that a request needs has been done.
		t, err := s.testbed.auth(ctx, s.testbed.authDaemon, authDaemon{"start", s.db.server.PostgresURL("ES256"),
			cheapHash("ES256"), s.crowd["ES256"][0].access})
		if err != nil {
			return err
		}
		took = append(took, float64(time.Since(began).Microseconds())/1000)
		if len(idle) < s.rounds {
			time.Sleep(500 * time.Millisecond) // until the garbage of the start is collected
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

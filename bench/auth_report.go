//go:build linux

package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"time"
)

// header prints what was measured on which versions.
func (s *authSuite) header(ctx context.Context) error {
	info, err := buildinfo.ReadFile(s.testbed.authDaemon)
	if err != nil {
		return fmt.Errorf("%w (make build makes it)", err)
	}
	var version string
	if err := s.db.conn.QueryRow(ctx, "show server_version").Scan(&version); err != nil {
		return err
	}
	s.report.linef("\nauth       %s, %s", info.Main.Version, info.GoVersion)
	s.report.linef("PostgreSQL %s on a unix socket, fsync and full page writes on; pool %d but for default; bcrypt:4 "+
		"but for default and flood", version, authPool)
	s.report.linef(
		"rounds     %d of %v each; closed loop: %d connections with one request each; one checkpoint before each round",
		s.rounds, s.time, authConns)
	return nil
}

// compare compares the measurements with their budgets.
func (s *authSuite) compare() {
	const server, pg = "server", "PostgreSQL"
	by := func(limit float64, l, twin line, name string, figure func(sample) float64) ratioBudget {
		return ratioBudget{line: l, name: name, figure: figure, limit: limit, twin: twin}
	}
	all := []ratioBudget{
		by(1.1, hs("health"), bareLine, server, cpuOf),
		by(1.2, hs("settings"), bareLine, server, cpuOf),
		by(1.2, line{scenario: "jwks", target: "RS256"}, bareLine, server, cpuOf),
		by(1.9, hs("user"), selectLine, server, cpuOf),
		by(2.7, hs("user"), selectLine, pg, storeOf),
		by(2.75, hs("refresh"), updateLine, server, cpuOf),
		by(2.75, hs("refresh"), updateLine, pg, storeOf),
		by(3.2, hs("refresh"), updateLine, "WAL", walOf),
		by(8.8, hs("signup"), updateLine, pg, storeOf),
		by(2, hs("logout"), updateLine, server, cpuOf),
		by(2, hs("logout"), updateLine, pg, storeOf),
		by(2, optionsLine, hs("health"), server, cpuOf),
		by(1.4, passkeyLine, hs("password"), pg, storeOf),
		by(1.4, passkeyLine, hs("password"), "WAL", walOf),
		by(2, floodedLine, quietLine, "p99", p99Of),
	}
	for _, scenario := range millionScenarios {
		all = append(all, by(1.2, millionLine(scenario), hs(scenario), "p50", p50Of))
	}
	s.judge(all)
	for algorithm, yardstick := range map[string]line{"RS256": rs256Line, "ES256": es256Line} {
		signature := minus(s.of(yardstick, cpuOf), s.of(bareLine, cpuOf))
		s.report.atMost(2.75, " ×", fmt.Sprintf("refresh, %s: server without one signature ÷ update", algorithm),
			ratios(minus(s.of(line{scenario: "refresh", target: algorithm}, cpuOf), signature), s.of(updateLine, cpuOf)),
			fmt.Sprintf("signature %s µs", spreadOf(signature)))
	}
	hash := minus(s.of(hashLine, cpuOf), s.of(bareLine, cpuOf))
	s.report.atMost(500, " µs", "password: server beyond the hash", minus(s.of(hs("password"), cpuOf), hash),
		fmt.Sprintf("bcrypt:4 %s µs", spreadOf(hash)))
	s.comparePasskeys()
	s.report.atMost(2900, " B", "signup: WAL", s.of(hs("signup"), walOf))
	s.report.atMost(600, " B", "logout: WAL", s.of(hs("logout"), walOf))
	for _, t := range []struct {
		scenario string
		limit    float64
	}{{"user", 1}, {"refresh", 1}, {"password", 2}, {"signup", 2}, {"logout", 1}} {
		// The polls in the background are few among several hundred round trips.
		s.report.atMost(t.limit+.05, "", t.scenario+": round trips", s.of(hs(t.scenario), commandsOf))
	}
	s.report.atMost(1.1, " ×", "refresh, RS256: rate with a pool of 10 ÷ with the default one",
		ratios(s.of(line{scenario: "refresh", target: "RS256"}, rateOf),
			s.of(line{scenario: "refresh", target: "default"}, rateOf)))
	s.report.atMost(15_000, " µs", floodedLine.row()+": p99", s.of(floodedLine, p99Of))
	s.report.atMost(1.11, " ×", "flood: hashes that the cores allow ÷ sign-ins",
		ratios(s.of(hashesLine, rateOf), s.of(signInLine, rateOf)), "at least 90 % of them")
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

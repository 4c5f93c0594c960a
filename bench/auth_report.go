//go:build linux

package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"time"
)

// header says what was measured on what.
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

// tables prints what was measured and compares it with the budgets.
func (s *authSuite) tables() {
	rows := [][]string{{"scenario", "target", "server µs", "PostgreSQL µs", "WAL bytes", "round trips", "requests/s",
		"p50 µs", "p99 µs", "max µs"}}
	for _, g := range authGroups() {
		for _, l := range g {
			samples := s.samples[l]
			if len(samples) == 0 {
				continue
			}
			trips, store, wal := "", "", ""
			if n, ok := s.trips[""][l.scenario]; ok && l.target == "HS256" {
				trips = fmt.Sprintf("%.2f", n)
			}
			if touches := spreadOf(of(samples, storeOf)); touches.median > 5 { // below: its background processes
				store = touches.String()
				wal = fmt.Sprintf("%.0f", spreadOf(of(samples, walOf)).median)
			}
			target := l.target
			if target == l.scenario {
				target = "yardstick"
			}
			rows = append(rows, []string{
				l.scenario, target, spreadOf(of(samples, cpuOf)).String(), store, wal, trips,
				spreadOf(of(samples, rateOf)).String(),
				fmt.Sprintf("%.0f", spreadOf(of(samples, p50Of)).median),
				spreadOf(of(samples, p99Of)).String(),
				fmt.Sprintf("%.0f", spreadOf(of(samples, maxOf)).median),
			})
		}
	}
	if len(rows) > 1 {
		s.report.linef("\nmedian [min–max] of the rounds")
		s.report.table(rows)
	}
	s.floodTable()
	s.enumerationTable()
	s.millionTable()
	for _, why := range s.refused {
		s.report.linef("no figures of %s", why)
	}
	s.compare()
	s.report.printBudgets("auth, round by round")
}

func (s *authSuite) floodTable() {
	if len(s.flood) == 0 {
		return
	}
	figure := func(f func(floodRound) float64) string {
		var values []float64
		for _, r := range s.flood {
			values = append(values, f(r))
		}
		return spreadOf(values).String()
	}
	s.report.linef("\nGET /user at %d a second, default settings; flood: %d clients sign in without pause", userRate,
		floodClients)
	s.report.table([][]string{
		{"", "users/s", "p50 µs", "p99 µs", "max µs", "sign-ins/s", "hashes/s of a bare handler"},
		{"quiet", figure(func(f floodRound) float64 { return rateOf(f.quiet) }),
			figure(func(f floodRound) float64 { return p50Of(f.quiet) }),
			figure(func(f floodRound) float64 { return p99Of(f.quiet) }), figure(func(f floodRound) float64 {
				return maxOf(f.quiet)
			})},
		{"flood", figure(func(f floodRound) float64 { return rateOf(f.flooded) }),
			figure(func(f floodRound) float64 { return p50Of(f.flooded) }),
			figure(func(f floodRound) float64 { return p99Of(f.flooded) }),
			figure(func(f floodRound) float64 { return maxOf(f.flooded) }),
			figure(func(f floodRound) float64 { return f.signIns }), figure(func(f floodRound) float64 {
				return f.hashes
			})},
	})
}

// compare fills in the budgets that are ratios between targets of the same round.
func (s *authSuite) compare() {
	figures := func(l authLine, figure func(sample) float64) []float64 { return of(s.samples[l], figure) }
	by := func(limit float64, l, yardstick authLine, figure func(sample) float64, name string) {
		s.report.atMost(limit, " ×", fmt.Sprintf("%s: %s ÷ %s", l.scenario, name, yardstick.scenario),
			ratios(figures(l, figure), figures(yardstick, figure)))
	}
	hs := func(scenario string) authLine { return authLine{scenario, "HS256"} }
	const pg = "PostgreSQL"
	by(1.1, hs("health"), bareLine, cpuOf, "server")
	by(1.2, hs("settings"), bareLine, cpuOf, "server")
	by(1.2, authLine{"jwks", "RS256"}, bareLine, cpuOf, "server")
	by(1.9, hs("user"), selectLine, cpuOf, "server")
	by(2.7, hs("user"), selectLine, storeOf, pg)
	by(2.75, hs("refresh"), updateLine, cpuOf, "server")
	by(2.75, hs("refresh"), updateLine, storeOf, pg)
	by(3.2, hs("refresh"), updateLine, walOf, "WAL")
	for _, signed := range []struct{ algorithm, yardstick authLine }{
		{authLine{"refresh", "RS256"}, rs256Line}, {authLine{"refresh", "ES256"}, es256Line},
	} {
		signature := minus(figures(signed.yardstick, cpuOf), figures(bareLine, cpuOf))
		s.report.atMost(2.75, " ×", fmt.Sprintf("refresh, %s: server without one signature ÷ update",
			signed.algorithm.target),
			ratios(minus(figures(signed.algorithm, cpuOf), signature), figures(updateLine, cpuOf)),
			fmt.Sprintf("signature %s µs", spreadOf(signature)))
	}
	hash := minus(figures(hashLine, cpuOf), figures(bareLine, cpuOf))
	s.report.atMost(500, " µs", "password: server beyond the hash", minus(figures(hs("password"), cpuOf), hash),
		fmt.Sprintf("bcrypt:4 %s µs", spreadOf(hash)))
	by(8.8, hs("signup"), updateLine, storeOf, pg)
	s.report.atMost(2900, " B", "signup: WAL", figures(hs("signup"), walOf))
	by(2, hs("logout"), updateLine, cpuOf, "server")
	by(2, hs("logout"), updateLine, storeOf, pg)
	s.report.atMost(450, " B", "logout: WAL", figures(hs("logout"), walOf))
	for _, t := range []struct {
		scenario string
		limit    float64
	}{{"user", 1}, {"refresh", 1}, {"password", 2}, {"signup", 2}, {"logout", 1}} {
		if n, ok := s.trips[""][t.scenario]; ok {
			// The background's polls are a few of several hundred.
			s.report.atMost(t.limit+.05, "", t.scenario+": round trips", []float64{n})
		}
	}
	s.report.atMost(1.1, " ×", "refresh, RS256: rate with a pool of 10 ÷ with the default one",
		ratios(figures(authLine{"refresh", "RS256"}, rateOf), figures(authLine{"refresh", "default"}, rateOf)))
	s.compareFlood()
}

func (s *authSuite) compareFlood() {
	var slower, p99, share []float64
	for _, f := range s.flood {
		slower = append(slower, p99Of(f.flooded)/p99Of(f.quiet))
		p99 = append(p99, p99Of(f.flooded)/1000)
		share = append(share, f.hashes/f.signIns)
	}
	s.report.atMost(2, " ×", "user under a flood of sign-ins: p99 ÷ quiet", slower)
	s.report.atMost(15, " ms", "user under a flood of sign-ins: p99", p99)
	s.report.atMost(1.11, " ×", "flood: hashes that the cores allow ÷ sign-ins", share, "at least 90 % of them")
}

// minus subtracts round by round.
func minus(of, less []float64) []float64 {
	var values []float64
	for i := range min(len(of), len(less)) {
		values = append(values, of[i]-less[i])
	}
	return values
}

// otherBudgets measures the budgets that aren't about a request: start, memory, the binary.
func (s *authSuite) otherBudgets(ctx context.Context) error {
	busy, err := readFamily(s.targets["HS256"].process.PID())
	if err != nil {
		return err
	}
	s.report.linef("\nRSS after the measurements, HS256, with the hashing process: %.1f MiB", float64(busy.rss)/mib)
	var took, idle []float64
	for range 2*s.rounds + 1 {
		began := time.Now()
		t, err := s.testbed.auth("start", s.db.server.PostgresURL("ES256"), cheapHash("ES256")...)
		if err != nil {
			return err
		}
		// As in ratelimit's, the first answer that has done all that a request does.
		if err := s.testbed.awaitHTTP(ctx, t, "/user", s.crowd["ES256"][0].access); err != nil {
			return err
		}
		took = append(took, float64(time.Since(began).Microseconds())/1000)
		if len(idle) < s.rounds {
			time.Sleep(500 * time.Millisecond) // what start-up left behind is collected
			u, err := readUsage(t.process.PID())
			if err != nil {
				return err
			}
			idle = append(idle, float64(u.rss)/mib)
		}
		if err := s.testbed.stop(t); err != nil {
			return fmt.Errorf("start: %w\n%s", err, s.testbed.logTail(t))
		}
	}
	s.report.atMost(40, " ms", "start to the first GET /user", took, "migrated before, key there")
	s.report.atMost(24, " MiB", "RSS, idle", idle)
	file, err := os.Stat(s.testbed.authDaemon)
	if err != nil {
		return err
	}
	info, err := buildinfo.ReadFile(s.testbed.authDaemon)
	if err != nil {
		return err
	}
	s.report.atMost(27, " MB", "binary", []float64{float64(file.Size()) / 1e6})
	s.report.atMost(37, "", "modules linked", []float64{float64(len(info.Deps))})
	s.report.printBudgets("auth, other budgets")
	return nil
}

//go:build linux

package main

import (
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// report writes what was measured, and collects what is compared with a budget.
type report struct {
	out     io.Writer
	budgets []budget
}

// budget is one row of the last table.
type budget struct {
	what     string
	measured spread
	unit     string
	limit    float64
	atLeast  bool // limit is the least, not the most
	note     string
}

// missed reports whether the median is on the wrong side of the limit, and by what share of it.
func (b budget) missed() (by float64, missed bool) {
	by = b.measured.median/b.limit - 1
	if b.atLeast {
		by = 1 - b.measured.median/b.limit
	}
	return by, by > 0
}

func (r *report) linef(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }

// atMost compares the median of values with a limit. Nothing measured is no row.
func (r *report) atMost(limit float64, unit, what string, values []float64, note ...string) {
	if len(values) > 0 {
		r.budgets = append(r.budgets, budget{
			what: what, measured: spreadOf(values), unit: unit, limit: limit, note: strings.Join(note, " "),
		})
	}
}

// atLeast is atMost for figures of which more is better.
func (r *report) atLeast(limit float64, unit, what string, values []float64, note ...string) {
	if len(values) > 0 {
		r.budgets = append(r.budgets, budget{
			what: what, measured: spreadOf(values), unit: unit, limit: limit, atLeast: true,
			note: strings.Join(note, " "),
		})
	}
}

func (r *report) table(rows [][]string) {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
	for row := range strings.Lines(text.String()) {
		r.linef("%s", strings.TrimRight(row, " \n"))
	}
}

// printBudgets writes the rows collected so far and forgets them.
func (r *report) printBudgets(title string) {
	if len(r.budgets) == 0 {
		return
	}
	rows := [][]string{{title, "median", "min", "max", "budget", "", ""}}
	for _, b := range r.budgets {
		verdict := "met"
		if by, missed := b.missed(); missed {
			verdict = fmt.Sprintf("MISSED by %.0f %%", 100*by)
		}
		sign := "≤ "
		if b.atLeast {
			sign = "≥ "
		}
		rows = append(rows, []string{
			b.what, b.measured.format(b.measured.median) + b.unit, b.measured.format(b.measured.low),
			b.measured.format(b.measured.high), sign + fmt.Sprint(b.limit) + b.unit, verdict, b.note,
		})
	}
	r.linef("")
	r.table(rows)
	r.budgets = nil
}

// format writes figures of one row with equal precision: three digits of the smallest that matter.
func (s spread) format(v float64) string {
	switch {
	case s.median >= 1000:
		return fmt.Sprintf("%.0f", v)
	case s.median >= 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func (s spread) String() string {
	return fmt.Sprintf("%s [%s–%s]", s.format(s.median), s.format(s.low), s.format(s.high))
}

// createResult makes the file for a run that is to be kept.
func createResult(now time.Time) (*os.File, error) {
	dir := filepath.Join("bench", "results")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(dir, now.UTC().Format("2006-01-02T1504")+".txt"),
		os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
}

// header prints where it was measured: results without it cannot be compared.
func (s *suite) header() error {
	s.report.linef("gatehouse bench, %s, %s/%s, %d cores", time.Now().UTC().Format("2006-01-02 15:04 MST"),
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	busy, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err
	}
	s.report.linef("load       %s (average of 1, 5 and 15 minutes before; above 0.5 somebody else works here too)",
		strings.Join(strings.Fields(string(busy))[:3], " "))
	return nil
}

// ratelimitHeader says what was measured.
func (s *suite) ratelimitHeader() error {
	info, err := buildinfo.ReadFile(s.testbed.daemon)
	if err != nil {
		return fmt.Errorf("%w (make build makes it)", err)
	}
	stats := "statsd over TCP to a sink in this program, the daemon's default"
	if s.testbed.statsd == "" {
		stats = "DISABLE_STATS=true"
	}
	s.report.linef("\nratelimit  %s, %s", info.Main.Version, info.GoVersion)
	s.report.linef("statistics %s", stats)
	s.report.linef("settings   %s", strings.Join(append(s.testbed.extra, "grpc-timeout="+orNone(s.timeout)), " "))
	s.report.linef("rounds     %d of %v each; closed loop: 4 connections × 64 streams; open loop: Poisson, %.0f "+
		"calls a second on 4 connections", s.rounds, s.time, s.rate)
	return nil
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// tables prints the whole-daemon measurements and compares them with their budgets.
func (s *suite) tables() {
	rows := [][]string{{"scenario", "loop", "target", "daemon µs/call", "store µs/call", "commands/call", "calls/s",
		"p50 µs", "p99 µs", "max µs"}}
	for _, g := range groups() {
		for _, l := range g {
			samples := s.samples[l]
			if len(samples) == 0 {
				continue
			}
			loop, store, commands := "closed", "", ""
			if l.open {
				loop = "open"
			}
			if l.rate > 0 {
				loop += fmt.Sprintf(" %.0f/s", l.rate)
			}
			if l.via != "" {
				loop += ", " + string(l.via)
			}
			if t := s.target(l); len(t.stores) > 0 {
				store = spreadOf(of(samples, storeOf)).String()
				commands = fmt.Sprintf("%.2f", spreadOf(of(samples, commandsOf)).median)
			}
			rows = append(rows, []string{
				l.scenario, loop, l.target, spreadOf(of(samples, cpuOf)).String(), store, commands,
				spreadOf(of(samples, rateOf)).String(),
				fmt.Sprintf("%.0f", spreadOf(of(samples, p50Of)).median),
				spreadOf(of(samples, p99Of)).String(),
				fmt.Sprintf("%.0f", spreadOf(of(samples, maxOf)).median),
			})
		}
	}
	s.report.linef("\nmedian [min–max] of the rounds")
	s.report.table(rows)
	for _, why := range s.refused {
		s.report.linef("no figures of %s", why)
	}
	s.report.linef("redis-benchmark -P 64 INCRBY: %v µs of Redis' CPU a command", spreadOf(s.incrby))
	s.compareNative()
	s.report.printBudgets("ratios, round by round")
	s.compareLibrary()
	s.report.printBudgets("GRPC_SERVER=grpc-go, round by round")
	s.compareLimits()
	s.report.printBudgets("kinds of limits, round by round")
}

// ratioBudget is the largest, or smallest, permitted ratio of a target's value to its twin's in the same round, or to
// the tuned yardstick's where it has no twin.
type ratioBudget struct {
	line   line
	name   string
	figure func(sample) float64
	limit  float64
	least  bool
	twin   line
}

// nativeBudgets are those of the daemon's own gRPC server.
func nativeBudgets() (all []ratioBudget) {
	cpu := func(limit float64, l line) {
		all = append(all, ratioBudget{line: l, name: "CPU", figure: cpuOf, limit: limit})
	}
	p99 := func(limit float64, l line) {
		all = append(all, ratioBudget{line: l, name: "p99", figure: p99Of, limit: limit})
	}
	rate := func(limit float64, l line) {
		all = append(all, ratioBudget{line: l, name: "calls/s", figure: rateOf, limit: limit, least: true})
	}
	closed := func(scenario, target string) line { return line{scenario: scenario, target: target} }
	open := func(target string, rate float64) line {
		return line{scenario: "single", target: target, open: true, rate: rate}
	}
	cpu(.20, closed("single", "memory"))
	rate(5, closed("single", "memory"))
	cpu(.45, closed("single", "redis"))
	rate(1.7, closed("single", "redis"))
	cpu(.35, closed("multi", "memory"))
	cpu(1.2, closed("multi", "redis"))
	cpu(.17, closed("unmatched", "memory"))
	cpu(.17, closed("unmatched", "redis"))
	cpu(.17, closed("overlimit", "memory+cache"))
	cpu(.17, closed("overlimit", "redis+cache"))
	for _, at := range []struct{ rate, redis, redisP99 float64 }{{slowRate, 1.15, 1.5}, {0, 1, 1.25},
		{fastRate, .9, 1}} {
		cpu(.75, open("memory", at.rate))
		p99(1, open("memory", at.rate))
		cpu(at.redis, open("redis", at.rate))
		p99(at.redisP99, open("redis", at.rate))
	}
	cpu(.35, line{scenario: "single", target: "memory", via: viaGRPCGo})
	rate(1.7, line{scenario: "single", target: "memory", via: viaGRPCGo})
	cpu(.70, line{scenario: "single", target: "memory", via: viaGRPCGo, open: true})
	cpu(.40, line{scenario: "single", target: "memory", via: viaEnvoy})
	cpu(.65, line{scenario: "single", target: "redis", via: viaEnvoy})
	return all
}

// libraryBudgets are those of the daemon with GRPC_SERVER=grpc-go.
func libraryBudgets() (all []ratioBudget) {
	add := func(limit float64, scenario, store string, open bool, name string, figure func(sample) float64) {
		l := line{scenario: scenario, target: store + libraryServer, open: open}
		all = append(all, ratioBudget{line: l, name: name, figure: figure, limit: limit})
	}
	add(1.3, "single", "memory", false, "CPU", cpuOf)
	add(1.55, "single", "redis", false, "CPU", cpuOf)
	add(1.5, "multi", "memory", false, "CPU", cpuOf)
	add(2.2, "multi", "redis", false, "CPU", cpuOf)
	add(1.1, "unmatched", "memory", false, "CPU", cpuOf)
	add(1.1, "unmatched", "redis", false, "CPU", cpuOf)
	add(1.1, "single", "memory", true, "CPU", cpuOf)
	add(1.3, "single", "memory", true, "p99", p99Of)
	add(1.5, "single", "redis", true, "CPU", cpuOf)
	add(4, "single", "redis", true, "p99", p99Of)
	return all
}

// judge compares ratios between targets of the same round with their budgets.
func (s *suite) judge(all []ratioBudget) {
	for _, b := range all {
		yardstick, by := b.twin, b.twin.scenario
		if b.twin == (line{}) {
			yardstick, by = b.line, "tuned"
			yardstick.target = "tuned"
			if b.line.scenario == "overlimit" { // the tuned server answers a refusal as fast as it answers anything
				yardstick.scenario, by = "unmatched", "tuned, unmatched"
			}
		}
		add := s.report.atMost
		if b.least {
			add = s.report.atLeast
		}
		add(b.limit, " ×", b.line.row()+": "+b.name+" ÷ "+by,
			ratios(of(s.samples[b.line], b.figure), of(s.samples[yardstick], b.figure)))
	}
}

// compareNative compares the daemon's own gRPC server with its budgets.
func (s *suite) compareNative() {
	s.judge(nativeBudgets())
	s.compareRedis("redis")
	at := line{scenario: neighbours, target: "memory", open: true, rate: slowRate}
	library := at
	library.target += libraryServer
	s.report.atMost(2, " ×", "64 descriptors with patterns on the connection: p99 of small calls ÷ that of grpc-go",
		ratios(of(s.samples[at], p99Of), of(s.samples[library], p99Of)))
}

// compareLibrary does the same with GRPC_SERVER=grpc-go.
func (s *suite) compareLibrary() {
	s.judge(libraryBudgets())
	s.compareRedis("redis" + libraryServer)
	for _, store := range []string{"memory", "redis"} {
		s.report.atMost(1.2, " ×", fmt.Sprintf("overlimit, %s+cache%s: CPU ÷ unmatched", store, libraryServer),
			ratios(of(s.samples[line{scenario: "overlimit", target: store + "+cache" + libraryServer}], cpuOf),
				of(s.samples[line{scenario: "unmatched", target: store + libraryServer}], cpuOf)))
	}
}

func (s *suite) compareRedis(target string) {
	s.report.atMost(2, " ×", "single, "+target+": Redis' CPU ÷ that of redis-benchmark",
		ratios(of(s.samples[line{scenario: "single", target: target}], storeOf), s.incrby))
}

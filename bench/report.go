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
	note     string
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
	rows := [][]string{{title, "median", "min", "max", "budget", "", ""}}
	for _, b := range r.budgets {
		verdict := "met"
		if b.measured.median > b.limit {
			verdict = fmt.Sprintf("MISSED by %.0f %%", 100*(b.measured.median/b.limit-1))
		}
		rows = append(rows, []string{
			b.what, b.measured.format(b.measured.median) + b.unit, b.measured.format(b.measured.low),
			b.measured.format(b.measured.high), "≤ " + fmt.Sprint(b.limit) + b.unit, verdict, b.note,
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
	return os.OpenFile(filepath.Join(dir, now.UTC().Format("2006-01-02T1504")+".txt"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
}

// header says where it was measured: figures without it can't be compared.
func (s *suite) header() error {
	s.report.linef("gatehouse bench, %s, %s/%s, %d cores", time.Now().UTC().Format("2006-01-02 15:04 MST"), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	busy, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err
	}
	s.report.linef("load       %s (average of 1, 5 and 15 minutes before; above 0.5 somebody else works here too)", strings.Join(strings.Fields(string(busy))[:3], " "))
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
	s.report.linef("rounds     %d of %v each; closed loop: 4 connections × 64 streams; open loop: Poisson, %.0f calls a second on 4 connections", s.rounds, s.time, s.rate)
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
	rows := [][]string{{"scenario", "loop", "target", "daemon µs/call", "store µs/call", "commands/call", "calls/s", "p50 µs", "p99 µs", "max µs"}}
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
	s.compare()
	s.report.printBudgets("ratios, round by round")
}

// compare fills in the budgets that are ratios between targets of the same round.
func (s *suite) compare() {
	figures := func(scenario, target string, open bool, figure func(sample) float64) []float64 {
		return of(s.samples[line{scenario: scenario, target: target, open: open}], figure)
	}
	by := func(limit float64, scenario, target string, open bool, figure func(sample) float64, name string) {
		loop := ""
		if open {
			loop = ", open loop"
		}
		s.report.atMost(limit, " ×", fmt.Sprintf("%s%s, %s: %s ÷ tuned", scenario, loop, target, name),
			ratios(figures(scenario, target, open, figure), figures(scenario, "tuned", open, figure)))
	}
	by(1.3, "single", "memory", false, cpuOf, "CPU")
	by(1.55, "single", "redis", false, cpuOf, "CPU")
	s.report.atMost(2, " ×", "single, redis: Redis' CPU ÷ that of redis-benchmark",
		ratios(figures("single", "redis", false, storeOf), s.incrby))
	by(1.5, "multi", "memory", false, cpuOf, "CPU")
	by(2.2, "multi", "redis", false, cpuOf, "CPU")
	by(1.1, "unmatched", "memory", false, cpuOf, "CPU")
	by(1.1, "unmatched", "redis", false, cpuOf, "CPU")
	for _, store := range []string{"memory", "redis"} {
		s.report.atMost(1.2, " ×", fmt.Sprintf("overlimit, %s+cache: CPU ÷ unmatched", store),
			ratios(figures("overlimit", store+"+cache", false, cpuOf), figures("unmatched", store, false, cpuOf)))
	}
	by(1.1, "single", "memory", true, cpuOf, "CPU")
	by(1.3, "single", "memory", true, p99Of, "p99")
	by(1.5, "single", "redis", true, cpuOf, "CPU")
	by(4, "single", "redis", true, p99Of, "p99")
}

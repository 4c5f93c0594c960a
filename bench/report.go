//go:build linux

package main

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// report writes the measurements, and collects the figures to compare with budgets.
type report struct {
	out     io.Writer
	budgets []budget
}

// budget is one row of the table of budgets: what was measured, and its budget.
type budget struct {
	what     string
	measured spread
	unit     string
	limit    float64
	atLeast  bool // limit is the least permitted value instead of the greatest
	note     string
}

func (r *report) linef(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }

// atMost adds a budget: the median of values must not exceed limit. It leaves out the NaN that stand for refused runs,
// and adds nothing if all runs were refused.
func (r *report) atMost(limit float64, unit, what string, values []float64, note ...string) {
	r.add(values, budget{what: what, unit: unit, limit: limit, note: strings.Join(note, " ")})
}

func (r *report) add(values []float64, b budget) {
	runs := len(values)
	if values = slices.DeleteFunc(slices.Clone(values), math.IsNaN); len(values) > 0 {
		if len(values) < runs {
			b.note += fmt.Sprintf(" (%d of %d runs)", len(values), runs)
		}
		b.measured = spreadOf(values)
		r.budgets = append(r.budgets, b)
	}
}

// table prints rows as a table, after an empty line. The first row has the names of the columns; if it is the only one,
// nothing is printed.
func (r *report) table(rows [][]string) {
	if len(rows) < 2 {
		return
	}
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
	r.linef("")
	for row := range strings.Lines(text.String()) {
		r.linef("%s", strings.TrimRight(row, " \n"))
	}
}

// printBudgets prints the table of the collected budgets and forgets them.
func (r *report) printBudgets(title string) {
	rows := [][]string{{title, "median", "min", "max", "budget", "", ""}}
	for _, b := range r.budgets {
		sign, by := "≤ ", b.measured.median/b.limit-1 // the share of the limit by which it is missed
		if b.atLeast {
			sign, by = "≥ ", 1-b.measured.median/b.limit
		}
		verdict := "met"
		if by > 0 {
			verdict = fmt.Sprintf("MISSED by %.0f %%", 100*by)
		}
		rows = append(rows, []string{
			b.what, b.measured.format(b.measured.median) + b.unit, b.measured.format(b.measured.low),
			b.measured.format(b.measured.high), sign + fmt.Sprint(b.limit) + b.unit, verdict, b.note,
		})
	}
	r.table(rows)
	r.budgets = nil
}

// format formats a figure of a spread. The number of decimals depends on the median, so that all figures of a spread
// have equally many: none if the median is at least 1000, one if it is at least 100, otherwise two.
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

// header prints what the machine is like, without which results cannot be compared.
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

// program prints which build of a daemon is measured.
func (r *report) program(daemon, path string) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%w (make build makes it)", err)
	}
	r.linef("\n%-10s %s, %s", daemon, info.Main.Version, info.GoVersion)
	return nil
}

// ratelimitHeader prints which versions of ratelimit and its stores are measured, and how.
func (s *suite) ratelimitHeader(context.Context) error {
	if err := s.report.program("ratelimit", s.testbed.daemon); err != nil {
		return err
	}
	s.report.linef("statistics statsd over TCP to a sink in this program, the default, unless the settings say otherwise")
	s.report.linef("settings   %s", strings.Join(append(s.testbed.extra, "grpc-timeout="+cmp.Or(s.timeout, "none")), " "))
	s.report.linef("rounds     %d of %v each; closed loop: 4 connections × 64 streams; open loop: Poisson, %.0f "+
		"calls a second on 4 connections", s.rounds, s.time, s.rate)
	return nil
}

// printBinary compares the size of a program file, and the number of modules in it, with budgets.
func (r *report) printBinary(program, title string, megabytes, modules float64) error {
	file, err := os.Stat(program)
	if err != nil {
		return err
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	r.atMost(megabytes, " MB", "binary", []float64{float64(file.Size()) / 1e6})
	r.atMost(modules, "", "modules linked", []float64{float64(len(info.Deps))})
	r.printBudgets(title)
	return nil
}

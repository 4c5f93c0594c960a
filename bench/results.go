//go:build linux

package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strings"
)

// results has the samples of all rows of a daemon's table, round by round.
type results struct {
	targets map[string]*target
	lines   []line // in the order in which they were measured first
	samples map[line][]sample
	refused []string // messages about runs that measured something other than intended
}

func newResults() results {
	return results{targets: map[string]*target{}, samples: map[line][]sample{}}
}

// add adds the sample of a row in one round. A run with an error is reported; the other runs are kept, because one bad
// run among a hundred should not cost all.
func (r *results) add(round int, l line, measured sample, err error) {
	if err != nil {
		r.refused = append(r.refused, fmt.Sprintf("round %d, %s: %v", round+1, l.row(), err))
		measured = none
	}
	if r.samples[l] == nil {
		r.lines = append(r.lines, l)
	}
	r.samples[l] = append(r.samples[l], measured)
}

// target returns the process that a row measures; nil if there is none. A yardstick may have one process for each
// scenario, which always sends the answer for that scenario.
func (r *results) target(l line) *target {
	if t := r.targets[l.target]; t != nil {
		return t
	}
	return r.targets[l.target+" "+l.scenario]
}

// measureLines measures the rows that -only selects and whose target has a process, each of them once.
func (s *suite) measureLines(ctx context.Context, round int, daemon string, lines []line,
	measure func(context.Context, int, line) (sample, error)) error {
	for _, l := range lines {
		if !s.wants(daemon, l) || s.target(l) == nil || l.via == viaEnvoy && s.target(l).envoy == nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		measured, err := measure(ctx, round, l)
		s.add(round, l, measured, err)
	}
	return nil
}

// row returns the name of a row, which is unique.
func (l line) row() string { return l.scenario + l.loop() + ", " + l.target }

// loop describes how the requests of a row are made; it is empty for this program's own client in a closed loop.
func (l line) loop() (how string) {
	if l.open {
		how = ", open loop"
	}
	if l.rate > 0 {
		how += fmt.Sprintf(" at %.0f/s", l.rate)
	}
	return how + map[via]string{
		viaGRPCGo: ", grpc-go's client", viaEnvoy: ", behind Envoy", viaTap: ", one listener to /tap",
		viaTop: ", /recent and /top on", viaFlood: ", in a flood of sign-ins",
	}[l.via]
}

// printTable prints the figures of all rows, without those of earlier programs. It leaves out figures that are 0 in
// every round.
func (s *suite) printTable(commandsColumn string) {
	figures := []figure{cpu, store, p99, rate, commands, wal, p50, longest}
	rows := [][]string{{"scenario, median [min–max]", "loop", "target"}}
	for _, f := range figures {
		rows[0] = append(rows[0], f.column)
	}
	rows[0][7] = commandsColumn
	for _, l := range s.lines {
		if strings.HasSuffix(l.target, beforeSuffix) || strings.HasSuffix(l.target, againSuffix) {
			continue
		}
		row := []string{l.scenario, cmp.Or(strings.TrimPrefix(l.loop(), ", "), "closed"), l.target}
		for i, f := range figures {
			measured, text := spreadOf(s.of(l, f)), ""
			switch {
			case measured.high > 0 && i < 4:
				text = measured.String()
			case measured.high > 0:
				text = measured.format(measured.median)
			}
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	s.report.table(rows)
	for _, why := range s.refused {
		s.report.linef("no figures of %s", why)
	}
}

// ratioBudget is a budget for the ratio of a row's figure to that of its twin in the same round, or to that of the
// tuned yardstick if it has no twin. The limit is the greatest permitted ratio; for a rate, the smallest.
type ratioBudget struct {
	limit      float64
	figure     figure
	line, twin line
}

// judge compares the ratios of all budgets, round by round, with their limits.
func (s *suite) judge(all []ratioBudget) {
	for _, b := range all {
		yardstick, by := b.twin, b.twin.scenario
		if b.twin == (line{}) {
			yardstick, by = b.line, "tuned"
			yardstick.target = "tuned"
			// Compare with another scenario: the yardstick answers OVER_LIMIT as fast as OK.
			if b.line.scenario == "overlimit" {
				yardstick.scenario, by = "unmatched", "tuned, unmatched"
			}
		}
		s.report.add(ratios(s.of(b.line, b.figure), s.of(yardstick, b.figure)), budget{
			what: b.line.row() + ": " + b.figure.name + " ÷ " + by, unit: " ×", limit: b.limit,
			atLeast: b.figure.column == rate.column,
		})
	}
}

// edition is one build of both daemons. All editions are measured in the same rounds, in turns.
type edition struct {
	suffix          string // end of the names of its targets
	ratelimit, auth string // paths of its programs
}

// With -against, the earlier programs run twice. The difference between the two processes of the same program is the
// noise of a row.
const (
	beforeSuffix = "-before"
	againSuffix  = "-again"
)

// editions returns the programs to measure and, with -against, the earlier programs.
func (l *testbed) editions() []edition {
	all := []edition{{"", l.daemon, l.authDaemon}}
	if l.against != "" {
		ratelimit, auth := filepath.Join(l.against, "ratelimit"), filepath.Join(l.against, "auth")
		all = append(all, edition{beforeSuffix, ratelimit, auth}, edition{againSuffix, ratelimit, auth})
	}
	return all
}

// smallest is the least difference, as a share, that counts as a difference even on a quiet machine.
const smallest = .05

// comparison has the values of one figure of one row, round by round, for the present program and twice for the earlier
// one. A larger value is worse.
type comparison struct {
	row, figure        string
	now, before, again []float64
}

// comparisonTable prints all rows that have figures of both programs, and counts the rows that have become worse. A row
// has become worse if its median ratio is beyond the noise. The noise is half the distance between the extreme ratios
// of two processes of the same program, about twice the standard error of a median of five rounds.
func (r *report) comparisonTable(title string, all []comparison) {
	rows := [][]string{{title, "", "before", "now", "now ÷ before", "again ÷ before", "noise", ""}}
	worse := 0
	for _, c := range all {
		values := ratios(c.now, c.before)
		if len(values) == 0 {
			continue
		}
		by, apart := spreadOf(values), spreadOf(ratios(c.again, c.before))
		noise, verdict := (apart.high-apart.low)/2, ""
		if by.median > 1+max(smallest, noise) {
			verdict = "WORSE"
			worse++
		}
		before, now := spreadOf(c.before), spreadOf(c.now)
		rows = append(rows, []string{
			c.row, c.figure, before.format(before.median), now.format(now.median), by.String(), apart.String(),
			fmt.Sprintf("±%.0f %%", 100*noise), verdict,
		})
	}
	r.table(rows)
	if len(rows) > 1 {
		r.linef("%d of %d figures are worse by more than %.0f %% and the row's noise", worse, len(rows)-1, 100*smallest)
	}
}

// inverse returns a function that divides a million by a figure. It is for figures of which more is better: more of the
// quotient is worse.
func inverse(figure func(sample) float64) func(sample) float64 {
	return func(s sample) float64 {
		if v := figure(s); v > 0 {
			return 1e6 / v
		}
		return math.NaN()
	}
}

// withEditions adds after each row the same row for the earlier programs. Yardsticks have no earlier programs, so their
// additional rows are not measured. The order of the programs rotates from round to round, because a measurement
// affects caches and disks for the next. Odd rounds of ratelimit go backwards, so that six rounds have each order once.
func (l *testbed) withEditions(g group, round int) (all group) {
	editions := l.editions()
	for _, of := range g {
		for i := range editions {
			twin := of
			twin.target += editions[(round+i)%len(editions)].suffix
			all = append(all, twin)
		}
	}
	return all
}

// compareEditions prints the table that compares a daemon with its earlier program.
func (s *suite) compareEditions(daemon string) {
	var all []comparison
	for _, l := range s.lines {
		before, again := l, l
		before.target, again.target = l.target+beforeSuffix, l.target+againSuffix
		figures := []figure{cpu, store, commands, wal, {"µs by rate", "", inverse(rate.of)}}
		if l.open {
			figures = []figure{cpu, store, commands, wal, p50, p99}
		}
		for _, f := range figures {
			all = append(all, comparison{l.row(), f.column, s.of(l, f), s.of(before, f), s.of(again, f)})
		}
	}
	s.report.comparisonTable(daemon+", against "+s.testbed.against, all)
}

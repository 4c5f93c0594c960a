//go:build linux

package main

import (
	"fmt"
	"math"
	"path/filepath"
)

// edition is one build of the daemons in the same interleaved rounds.
type edition struct {
	suffix          string // ends the names of its targets
	ratelimit, auth string // the programs
}

// With -against, the earlier programs run twice: the difference between two processes of the same program is a row's
// noise.
const (
	beforeSuffix = "-before"
	againSuffix  = "-again"
)

// editions returns the programs under measurement and, with -against, the earlier ones.
func (l *testbed) editions() []edition {
	all := []edition{{"", l.daemon, l.authDaemon}}
	if l.against != "" {
		ratelimit, auth := filepath.Join(l.against, "ratelimit"), filepath.Join(l.against, "auth")
		all = append(all, edition{beforeSuffix, ratelimit, auth}, edition{againSuffix, ratelimit, auth})
	}
	return all
}

// smallest is the least difference that counts, however quiet the machine was.
const smallest = .05

// comparison is one figure of one row, round by round; larger is worse.
type comparison struct {
	row, figure        string
	now, before, again []float64
}

// noise returns half the distance between the extreme ratios of two processes of the same program: about twice the
// standard error of a median of five rounds.
func (c comparison) noise() float64 {
	apart := spreadOf(ratios(c.again, c.before))
	return (apart.high - apart.low) / 2
}

// worse reports whether the median ratio is beyond the noise.
func (c comparison) worse() bool {
	return spreadOf(ratios(c.now, c.before)).median > 1+max(smallest, c.noise())
}

// comparisonTable prints all rows that have figures of both programs and counts those that got worse.
func (r *report) comparisonTable(title string, all []comparison) {
	rows := [][]string{{title, "", "before", "now", "now ÷ before", "again ÷ before", "noise", ""}}
	worse := 0
	for _, c := range all {
		by := ratios(c.now, c.before)
		if len(by) == 0 {
			continue
		}
		verdict := ""
		if c.worse() {
			verdict = "WORSE"
			worse++
		}
		before, now := spreadOf(c.before), spreadOf(c.now)
		rows = append(rows, []string{
			c.row, c.figure, before.format(before.median), now.format(now.median), spreadOf(by).String(),
			spreadOf(ratios(c.again, c.before)).String(), fmt.Sprintf("±%.0f %%", 100*c.noise()), verdict,
		})
	}
	if len(rows) == 1 {
		return
	}
	r.linef("")
	r.table(rows)
	r.linef("%d of %d figures are worse by more than %.0f %% and the row's noise", worse, len(rows)-1, 100*smallest)
}

// inverse turns a figure of which more is better into one of which more is worse.
func inverse(figure func(sample) float64) func(sample) float64 {
	return func(s sample) float64 {
		if v := figure(s); v > 0 {
			return 1e6 / v
		}
		return math.NaN()
	}
}

// rotated returns the order of the editions in a round: each is first, second and last equally often, since the
// measurement before affects caches and disks.
func (l *testbed) rotated(round int) []edition {
	all := l.editions()
	first := round % len(all)
	return append(all[first:len(all):len(all)], all[:first]...)
}

// withEditions adds, next to a line, the same line for the earlier programs. There are no such processes for
// yardsticks.
func (l *testbed) withEditions(g group, round int) (all group) {
	for _, of := range g {
		for _, e := range l.rotated(round) {
			twin := of
			twin.target += e.suffix
			all = append(all, twin)
		}
	}
	return all
}

// compareEditions prints a daemon next to its earlier program.
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

//go:build linux

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// results collects the samples of a daemon's lines, round by round.
type results struct {
	targets map[string]*target
	lines   []line // in the order in which they were first measured
	samples map[line][]sample
	refused []string // runs that measured something else than intended
}

func newResults() results {
	return results{targets: map[string]*target{}, samples: map[line][]sample{}}
}

// add adds a line's sample of a round. One bad run among a hundred is reported, and the other runs are kept.
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

// target returns the process for a line, nil without one. A yardstick may have a process for each answer.
func (r *results) target(l line) *target {
	if t := r.targets[l.target]; t != nil {
		return t
	}
	return r.targets[l.target+" "+l.scenario]
}

// measureGroups measures each wanted line that has a process once, for each edition of the daemon.
func (s *suite) measureGroups(ctx context.Context, round int, daemon string, groups []group,
	measure func(context.Context, int, line) (sample, error)) error {
	for _, l := range s.testbed.withEditions(slices.Concat(groups...), round) {
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

// of returns one figure of each of a line's samples.
func (r *results) of(l line, figure func(sample) float64) []float64 { return of(r.samples[l], figure) }

// row returns a line's name, which is unique.
func (l line) row() string { return l.scenario + l.loop() + ", " + l.target }

// loop returns how a line's requests are made, unless by this program's client in a closed loop.
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

// printTable writes the figures of all lines of the present programs. A figure that is 0 in every round is left out.
func (s *suite) printTable(commands string) {
	rows := [][]string{{"scenario", "loop", "target", "CPU µs", "store µs", "p99 µs", "a second", commands, "WAL bytes",
		"p50 µs", "max µs"}}
	for _, l := range s.lines {
		if strings.HasSuffix(l.target, beforeSuffix) || strings.HasSuffix(l.target, againSuffix) {
			continue
		}
		row := []string{l.scenario, "closed", l.target}
		if l.loop() != "" {
			row[1] = l.loop()[2:]
		}
		for i, figure := range []func(sample) float64{cpuOf, storeOf, p99Of, rateOf, commandsOf, walOf, p50Of, maxOf} {
			measured, text := spreadOf(s.of(l, figure)), ""
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
	if len(rows) > 1 {
		s.report.linef("\nmedian [min–max] of the rounds")
		s.report.table(rows)
	}
	for _, why := range s.refused {
		s.report.linef("no figures of %s", why)
	}
}

// ratioBudget is the largest, or smallest, permitted ratio of a target's value to its twin's in the same round, or to
// the tuned yardstick's if it has no twin.
type ratioBudget struct {
	line   line
	name   string
	figure func(sample) float64
	limit  float64
	least  bool
	twin   line
}

// judge compares ratios between targets of the same round with their budgets.
func (s *suite) judge(all []ratioBudget) {
	for _, b := range all {
		yardstick, by := b.twin, b.twin.scenario
		if b.twin == (line{}) {
			yardstick, by = b.line, "tuned"
			yardstick.target = "tuned"
			if b.line.scenario == "overlimit" { // the tuned server answers a refusal as fast as any other answer
				yardstick.scenario, by = "unmatched", "tuned, unmatched"
			}
		}
		s.report.add(ratios(s.of(b.line, b.figure), s.of(yardstick, b.figure)), budget{
			what: b.line.row() + ": " + b.name + " ÷ " + by, unit: " ×", limit: b.limit, atLeast: b.least,
		})
	}
}

//go:build linux

package main

import (
	"fmt"
	"math"
	"path/filepath"
)

// edition is one build of the daemons in the same interleaved rounds.
type edition struct {
	suffix          string // of its targets' names
	ratelimit, auth string // the programs
}

// With -against, the earlier programs run twice: the difference between two processes of one program is the noise of a
// row.
const (
	beforeSuffix = "-before"
	againSuffix  = "-again"
)

// editions are the programs under measurement and, with -against, the earlier ones.
func (l *testbed) editions() []edition {
	all := []edition{{"", l.daemon, l.authDaemon}}
	if l.against != "" {
		ratelimit, auth := filepath.Join(l.against, "ratelimit"), filepath.Join(l.against, "auth")
		all = append(all, edition{beforeSuffix, ratelimit, auth}, edition{againSuffix, ratelimit, auth})
	}
	return all
}

// smallest is the least difference that counts as one, however quiet the machine was.
const smallest = .05

// comparison is one figure of one row, round by round; larger is worse.
type comparison struct {
	row, figure        string
	now, before, again []float64
}

// noise is half the distance between the extreme ratios of two processes of the same program: about twice
// the standard error of a median of five rounds.
func (c comparison) noise() float64 {
	apart := spreadOf(ratios(c.again, c.before))
	return (apart.high - apart.low) / 2
}

// worse says whether the median ratio is beyond the noise.
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

// inverse makes a figure of which more is better one of which more is worse.
func inverse(figure func(sample) float64) func(sample) float64 {
	return func(s sample) float64 {
		if v := figure(s); v > 0 {
			return 1e6 / v
		}
		return math.NaN()
	}
}

// rotated is the order of the editions in a round: each is first, second and last equally often, since what is
// measured before leaves a cache and a disk behind.
func (l *testbed) rotated(round int) []edition {
	all := l.editions()
	first := round % len(all)
	return append(all[first:len(all):len(all)], all[:first]...)
}

// withEditions adds, next to a line, the same line for the earlier programs; yardsticks have none.
func (s *suite) withEditions(g group, round int) (all group) {
	for _, l := range g {
		for _, e := range s.testbed.rotated(round) {
			if e.suffix == "" || !isYardstick(l.target) {
				twin := l
				twin.target += e.suffix
				all = append(all, twin)
			}
		}
	}
	return all
}

func isYardstick(target string) bool { return target == "plain" || target == "tuned" }

// compareEditions prints the rate limit daemon next to its earlier program.
func (s *suite) compareEditions() {
	if s.testbed.against == "" {
		return
	}
	var all []comparison
	for _, g := range groups() {
		for _, l := range g {
			add := func(name string, figure func(sample) float64) {
				of := func(suffix string) []float64 {
					twin := l
					twin.target += suffix
					return of(s.samples[twin], figure)
				}
				all = append(all, comparison{l.row(), name, of(""), of(beforeSuffix), of(againSuffix)})
			}
			add("CPU µs", cpuOf)
			if t := s.target(l); t != nil && len(t.stores) > 0 {
				add("store µs", storeOf)
				add("commands", commandsOf)
			}
			if l.open {
				add("p50 µs", p50Of)
				add("p99 µs", p99Of)
			} else {
				add("µs/call by rate", inverse(rateOf))
			}
		}
	}
	s.report.comparisonTable("ratelimit, against "+s.testbed.against, all)
}

// row is a line's name, unlike that of every other.
func (l line) row() string { return l.scenario + l.loop() + ", " + l.target }

// loop says how a line's calls come, where they are not those of our own client in a closed loop.
func (l line) loop() (how string) {
	if l.open {
		how = ", open loop"
	}
	if l.rate > 0 {
		how += fmt.Sprintf(" at %.0f/s", l.rate)
	}
	switch l.via {
	case viaGRPCGo:
		how += ", grpc-go's client"
	case viaEnvoy:
		how += ", behind Envoy"
	case viaTap:
		how += ", one listener to /tap"
	case viaTop:
		how += ", /recent and /top on"
	}
	return how
}

// withEditions does the same for auth.
func (s *authSuite) withEditions(g []authLine, round int) (all []authLine) {
	for _, l := range g {
		for _, e := range s.testbed.rotated(round) {
			if e.suffix == "" || s.crowd[l.target] != nil { // a yardstick has no accounts
				all = append(all, authLine{l.scenario, l.target + e.suffix})
			}
		}
	}
	return all
}

// compareEditions prints the auth daemon next to its earlier program.
func (s *authSuite) compareEditions() {
	if s.testbed.against == "" {
		return
	}
	var all []comparison
	for _, g := range authGroups() {
		for _, l := range g {
			add := func(name string, figure func(sample) float64) {
				of := func(suffix string) []float64 {
					return of(s.samples[authLine{l.scenario, l.target + suffix}], figure)
				}
				all = append(all, comparison{l.scenario + ", " + l.target, name, of(""), of(beforeSuffix),
					of(againSuffix)})
			}
			add("server µs", cpuOf)
			if spreadOf(of(s.samples[l], storeOf)).median > 5 { // below: its background processes
				add("PostgreSQL µs", storeOf)
				add("WAL bytes", walOf)
			}
			add("µs/request by rate", inverse(rateOf))
			if now, ok := s.trips[""][l.scenario]; ok && l.target == "HS256" {
				before := []float64{s.trips[beforeSuffix][l.scenario]}
				all = append(all, comparison{l.scenario, "round trips", []float64{now}, before, before})
			}
		}
	}
	s.report.comparisonTable("auth, against "+s.testbed.against, all)
}

//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"
)

// authSuite is the part of the suite that measures auth. Its results are separate from those of ratelimit.
type authSuite struct {
	suite
	db *database
	// crowd maps a daemon's name to the accounts that the load uses, and toSignOut to the accounts that sign out next.
	crowd        map[string][]account
	toSignOut    map[string]*[]account
	passkeys     passkeys
	large        bool // use a large database, too: only if -only names it
	millionScans int64
}

// These are the rows of the results table for yardsticks, whose scenarios and targets are not those of daemons.
var (
	bareLine   = line{scenario: "handler", target: "handler"}
	selectLine = line{scenario: "select", target: "select"}
	updateLine = line{scenario: "update", target: "update"}
	hashLine   = line{scenario: "hash:4", target: "hash:4"}
	rs256Line  = line{scenario: "sign:RS256", target: "sign:RS256"}
	es256Line  = line{scenario: "sign:ES256", target: "sign:ES256"}
)

// hs returns the row for a scenario on the daemon HS256, on which most scenarios are measured.
func hs(scenario string) line { return line{scenario: scenario, target: "HS256"} }

// authGroups returns the groups, which are measured one after the other in an order that rotates from round to round.
// The order within a group stays, because accounts have to sign up before they sign out.
func authGroups() []group {
	return []group{
		{bareLine, hs("health"), hs("settings"), {scenario: "jwks", target: "RS256"}},
		append(group{selectLine}, closed("user", "HS256", "RS256", "million")...),
		{updateLine, hs("refresh"), millionLine("refresh")},
		append(group{rs256Line}, closed("refresh", "RS256")...),
		append(group{es256Line}, closed("refresh", "ES256")...),
		closed("refresh", "default"),
		{hashLine, hs("password"), millionLine("password")},
		{hs("signup"), hs("logout")},
		{optionsLine, passkeyLine, passwordLine},
	}
}

// authScenarios are the names of auth's scenarios for -only.
var authScenarios = []string{"health", "settings", "jwks", "user", "refresh", "password", "signup", "logout", "passkey",
	"alike", "flood", "million"}

// authDaemons are the auth daemons that run during all rounds: name, settings, and number of accounts. "default" has
// the settings of a first start, except that sign-ups need not be confirmed.
var authDaemons = []struct {
	name     string
	settings []string
	accounts int
}{
	{"HS256", cheapHash("HS256"), 2_000},
	{"RS256", cheapHash("RS256"), 500},
	{"ES256", cheapHash("ES256"), 500},
	{"default", nil, 64},
}

// run measures everything about auth and prints the results.
func (s *authSuite) run(ctx context.Context) (err error) {
	fmt.Fprintln(os.Stderr, "auth: starting")
	if s.db, err = startDatabase(ctx, s.testbed); err != nil {
		return err
	}
	return inOrder(ctx, s.header, s.start, s.measureRounds, s.otherBudgets, s.stop)
}

// measureRounds measures, in several rounds, what -only selects, and prints the results.
func (s *authSuite) measureRounds(ctx context.Context) error {
	for round := range s.rounds {
		fmt.Fprintf(os.Stderr, "auth: round %d of %d\n", round+1, s.rounds)
		if err := s.round(ctx, round); err != nil {
			return err
		}
	}
	for _, e := range s.testbed.editions() {
		if err := s.countTrips(ctx, e); err != nil {
			return err
		}
	}
	s.printTable("round trips")
	s.compare()
	s.compareEditions("auth")
	return nil
}

// start starts the yardsticks and the daemons, and signs accounts up.
func (s *authSuite) start(ctx context.Context) error {
	s.crowd, s.toSignOut = map[string][]account{}, map[string]*[]account{}
	yardsticks, err := s.db.createYardstick(ctx)
	if err != nil {
		return err
	}
	for _, kind := range []string{"handler", "select", "update", "hash:4", "hash:10", "sign:RS256", "sign:ES256"} {
		if s.targets[kind], err = s.testbed.yardstick(ctx, kind, yardsticks); err != nil {
			return err
		}
	}
	for _, d := range authDaemons {
		for _, e := range s.testbed.editions() {
			if err := s.startDaemon(ctx, e.auth, d.name+e.suffix, d.accounts, d.settings); err != nil {
				return err
			}
		}
	}
	return inOrder(ctx, s.startPasskeys, s.startMillion, s.startEnumeration)
}

// startDaemon starts a daemon on a database of its own and signs accounts up.
func (s *authSuite) startDaemon(ctx context.Context, program, name string, accounts int, settings []string) error {
	url, err := s.db.create(ctx, name)
	if err != nil {
		return err
	}
	t, err := s.testbed.auth(ctx, program, authDaemon{name: name, database: url, settings: settings})
	if err != nil {
		return err
	}
	s.targets[name] = t
	if s.crowd[name], err = signUpAccounts(t, "crowd", accounts); err != nil {
		return fmt.Errorf("%w\n%s", err, s.testbed.logTail(t))
	}
	// the query plans were made when the tables were empty
	return execSQL(ctx, url, "vacuum analyze")
}

// round measures each row once.
func (s *authSuite) round(ctx context.Context, round int) error {
	// Write everything to disk now, so that no checkpoint happens during a measurement.
	if _, err := s.db.conn.Exec(ctx, "checkpoint"); err != nil {
		return err
	}
	groups := authGroups()
	if round%2 == 1 {
		slices.Reverse(groups)
	}
	lines := s.testbed.withEditions(slices.Concat(groups...), round)
	if err := s.measureLines(ctx, round, "auth", lines, s.measure); err != nil {
		return err
	}
	if s.asked("auth", "alike") {
		s.measureEnumeration(round)
	}
	if s.asked("auth", "flood") {
		return s.measureFlood(ctx, round)
	}
	return nil
}

// paths has the scenarios that request the same path again and again.
var paths = map[string]string{"health": "/health", "settings": "/settings", "jwks": "/.well-known/jwks.json"}

// load returns the load for a row: the requests to send, and to which target.
func (s *authSuite) load(l line, round int) load {
	load := load{addr: s.targets[l.target].addr, conns: authConns, warm: 200 * time.Millisecond, run: s.time}
	what := l.scenario
	if path := paths[what]; path != "" {
		what = path
	} else if what == l.target {
		what = "/yardstick"
	}
	switch what {
	case "signup":
		s.toSignOut[l.target] = &[]account{}
		load.run = 2 * s.time // longer, so that enough accounts can sign out afterwards
	case "options":
		load.traffic = s.passkeys.asking()
		return load
	case "passkey":
		load.traffic = s.passkeys.signingIn()
		return load
	case "logout":
		toSignOut := *s.toSignOut[l.target]
		load.traffic = signingOut(authConns, toSignOut)
		load.warm, load.warmCalls, load.run = 0, len(toSignOut)/10, time.Minute
		return load
	}
	load.traffic = requests(what, authConns, s.crowd[l.target], fmt.Sprintf("round%d", round), s.toSignOut[l.target])
	return load
}

// measure sends the load for a row, and reads what the target's process and PostgreSQL use meanwhile.
func (s *authSuite) measure(ctx context.Context, round int, l line) (sample, error) {
	pid := s.targets[l.target].process.PID()
	before, err := s.wholeReads(ctx, l)
	if err != nil {
		return none, err
	}
	measured, err := s.load(l, round).measure(func() (reading, error) {
		u, err := readFamily(pid) // includes the child process in which the daemon hashes passwords
		if err != nil {
			return reading{}, err
		}
		m, err := s.db.read(ctx)
		m.own = u.cpu
		return m, err
	})
	if err != nil {
		return none, err
	}
	if measured.store <= 5 { // so little is used by PostgreSQL's background processes
		measured.store, measured.wal = 0, 0
	}
	after, err := s.wholeReads(ctx, l)
	s.millionScans += after - before
	return measured, err
}

//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"
)

// authSuite is the part of the measurement that is about auth.
type authSuite struct {
	rounds  int
	time    time.Duration // of each measurement, without warm-up
	whole   bool          // start, memory and binary too
	wanted  func(scenario string) bool
	testbed *testbed
	report  *report

	db      *database
	targets map[string]*target
	// crowd has the accounts of the load by daemon; toSignOut those that sign out next, by daemon.
	crowd       map[string][]account
	toSignOut   map[string]*[]account
	samples     map[authLine][]sample
	refused     []string
	flood       []floodRound
	enumeration map[string][]enumerationRound

	large        bool // fill a large database too: only when -only names it
	million      map[string][]millionRound
	millionScans int64

	trips map[string]map[string]float64 // round trips to PostgreSQL for each request, by edition and scenario
}

// authLine names one line of the table: a scenario and its target.
type authLine struct{ scenario, target string }

// The yardsticks are scenarios and targets of their own.
var (
	bareLine   = authLine{"handler", "handler"}
	selectLine = authLine{"select", "select"}
	updateLine = authLine{"update", "update"}
	hashLine   = authLine{"hash:4", "hash:4"}
	rs256Line  = authLine{"sign:RS256", "sign:RS256"}
	es256Line  = authLine{"sign:ES256", "sign:ES256"}
)

// authGroups are measured one after the other; within a round their order turns, the order within one
// stays, because those who sign out have signed up before.
func authGroups() [][]authLine {
	return [][]authLine{
		{bareLine, {"health", "HS256"}, {"settings", "HS256"}, {"jwks", "RS256"}},
		{selectLine, {"user", "HS256"}, {"user", "RS256"}},
		{updateLine, {"refresh", "HS256"}},
		{rs256Line, {"refresh", "RS256"}},
		{es256Line, {"refresh", "ES256"}},
		{{"refresh", "default"}},
		{hashLine, {"password", "HS256"}},
		{{"signup", "HS256"}, {"logout", "HS256"}},
	}
}

// authScenarios are what -only may name.
var authScenarios = []string{"health", "settings", "jwks", "user", "refresh", "password", "signup", "logout", "alike",
	"flood", "million"}

// needs are the yardsticks that a scenario is compared with.
var needs = map[string][]string{
	"handler":    {"health", "settings", "jwks", "password", "refresh"},
	"select":     {"user"},
	"update":     {"refresh", "signup", "logout"},
	"hash:4":     {"password"},
	"sign:RS256": {"refresh"},
	"sign:ES256": {"refresh"},
	// Only accounts that have signed up can sign out.
	"signup": {"logout"},
}

// asked reports whether a line is to be measured.
func (s *authSuite) asked(l authLine) bool {
	return s.wanted(l.scenario) || slices.ContainsFunc(needs[l.scenario], s.wanted)
}

// authDaemons are the daemons by name, with their settings and how many accounts each has. "default" has
// the settings of a first start but for the limits that every sign-up shares.
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

// run measures everything about auth and prints it.
func (s *authSuite) run(ctx context.Context) (err error) {
	fmt.Fprintln(os.Stderr, "auth: starting")
	if s.db, err = startDatabase(ctx); err != nil {
		return err
	}
	defer s.db.close()
	if err := s.header(ctx); err != nil {
		return err
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	for round := range s.rounds {
		fmt.Fprintf(os.Stderr, "auth: round %d of %d\n", round+1, s.rounds)
		if err := s.round(ctx, round); err != nil {
			return err
		}
	}
	for _, e := range s.testbed.editions() {
		if s.trips[e.suffix], err = s.countTrips(ctx, e); err != nil {
			return err
		}
	}
	s.tables()
	s.compareEditions()
	if s.whole {
		if err := s.otherBudgets(ctx); err != nil {
			return err
		}
	}
	// They end before their database does.
	return s.stop()
}

func (s *authSuite) stop() error {
	for _, t := range s.targets {
		if err := s.testbed.stop(t); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	return nil
}

// start brings up the yardsticks and the daemons, and signs their accounts up.
func (s *authSuite) start(ctx context.Context) error {
	s.targets, s.crowd, s.toSignOut = map[string]*target{}, map[string][]account{}, map[string]*[]account{}
	s.samples, s.trips, s.enumeration = map[authLine][]sample{}, map[string]map[string]float64{},
		map[string][]enumerationRound{}
	s.million = map[string][]millionRound{}
	yardsticks, err := s.db.createYardstick(ctx)
	if err != nil {
		return err
	}
	for _, kind := range []string{"handler", "select", "update", "hash:4", "hash:10", "sign:RS256", "sign:ES256"} {
		if s.targets[kind], err = s.testbed.httpYardstick(kind, yardsticks); err != nil {
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
	if s.large {
		if err := s.startMillion(ctx); err != nil {
			return err
		}
	}
	return s.startEnumeration(ctx)
}

// startDaemon starts one on a database of its own, where it signs accounts up.
func (s *authSuite) startDaemon(ctx context.Context, program, name string, accounts int, settings []string) error {
	url, err := s.db.create(ctx, name)
	if err != nil {
		return err
	}
	t, err := s.testbed.authOf(program, name, url, settings...)
	if err != nil {
		return err
	}
	s.targets[name] = t
	if err := s.testbed.awaitHTTP(ctx, t, "/health", ""); err != nil {
		return err
	}
	if s.crowd[name], err = signUpAccounts(t, "crowd", accounts); err != nil {
		return fmt.Errorf("%w\n%s", err, s.testbed.logTail(t))
	}
	// Plans were made for empty tables.
	return execSQL(ctx, url, "vacuum analyze")
}

// round measures each line once.
func (s *authSuite) round(ctx context.Context, round int) error {
	if err := s.db.checkpoint(ctx); err != nil {
		return err
	}
	groups := authGroups()
	if round%2 == 1 {
		slices.Reverse(groups)
	}
	for _, g := range groups {
		for _, l := range s.withEditions(g, round) {
			if err := ctx.Err(); err != nil {
				return err
			}
			if !s.asked(l) {
				continue
			}
			measured, err := s.measure(ctx, l, round)
			if err != nil {
				// One bad run is reported, not paid for with all the others.
				s.refused = append(s.refused, fmt.Sprintf("round %d, %s: %v", round+1, l.scenario, err))
				measured = none
			}
			s.samples[l] = append(s.samples[l], measured)
		}
	}
	if s.wanted("alike") {
		s.measureEnumeration(round)
	}
	if s.wanted("flood") {
		if err := s.measureFlood(ctx, round); err != nil {
			return err
		}
	}
	if s.large {
		return s.measureMillion(ctx, round)
	}
	return nil
}

// load returns the requests to a line's target.
func (s *authSuite) load(l authLine, round int) load {
	load := load{addr: s.targets[l.target].addr, conns: authConns, warm: 200 * time.Millisecond, run: s.time}
	crowd := s.crowd[l.target]
	switch l.scenario {
	case "health":
		load.traffic = getting("/health")
	case "settings":
		load.traffic = getting("/settings")
	case "jwks":
		load.traffic = getting("/.well-known/jwks.json")
	case "user":
		load.traffic = asUser(crowd)
	case "refresh":
		load.traffic = refreshing(crowd)
	case "password":
		load.traffic = signingIn(authConns, crowd)
	case "signup":
		s.toSignOut[l.target] = &[]account{}
		load.traffic = signingUp(fmt.Sprintf("round%d", round), s.toSignOut[l.target])
		load.run = 2 * s.time // for enough who sign out afterwards
	case "logout":
		toSignOut := *s.toSignOut[l.target]
		load.traffic = signingOut(authConns, toSignOut)
		load.warm, load.warmCalls, load.run = 0, len(toSignOut)/10, time.Minute
	default: // a yardstick
		load.traffic = getting("/yardstick")
	}
	return load
}

// measure runs a line's load and reads what its process and PostgreSQL used meanwhile.
func (s *authSuite) measure(ctx context.Context, l authLine, round int) (sample, error) {
	pid := s.targets[l.target].process.PID()
	var own []time.Duration
	var store []meter
	load := s.load(l, round)
	load.mark = func() error {
		u, err := readFamily(pid) // the daemon hashes in a child
		if err != nil {
			return err
		}
		m, err := s.db.meter(ctx)
		own, store = append(own, u.cpu), append(store, m)
		return err
	}
	r, err := load.drive()
	if err != nil {
		return none, err
	}
	if r.failed*100 > r.ok {
		return none, fmt.Errorf("%d as wanted, %d not: %s", r.ok, r.failed, r.refusal)
	}
	answered := float64(r.answered())
	return sample{
		cpu:   float64(own[1]-own[0]) / 1e3 / answered,
		store: float64(store[1].cpu-store[0].cpu) / 1e3 / answered,
		wal:   float64(store[1].wal-store[0].wal) / answered,
		rate:  r.perSecond(), p50: r.latency.quantile(.5), p99: r.latency.quantile(.99), max: r.latency.max,
	}, nil
}

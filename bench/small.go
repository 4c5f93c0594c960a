//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"gatehouse/shared/localserver"
)

const (
	smallMemory = 64 << 20
	smallCores  = 0.25
)

// small runs each daemon in a control group of 64 MiB and a quarter of a CPU, with its store outside the group. It
// returns an error if the kernel kills a process, a request fails or an answer is lost; other figures are compared with
// budgets.
func (s *suite) small(ctx context.Context) error {
	steady := 10 * time.Minute
	if s.short {
		steady = 15 * time.Second
	}
	s.report.linef("small: %v of steady load, %v of five times as much", steady, steady/10)
	redis, err := startServer(ctx, s.testbed, localserver.Redis, localserver.RedisOptions{})
	if err != nil {
		return err
	}
	rules := ruleText(10_000, 1)
	for _, c := range []smallCase{
		s.smallRatelimit(ctx, daemon{"small memory", rules, nil, nil}, 1000, steady),
		s.smallRatelimit(ctx, daemon{"small redis", rules, []*localserver.Server{redis}, nil}, 500, steady),
	} {
		if err := s.runSmall(ctx, c); err != nil {
			return err
		}
	}
	if err := s.smallAuth(ctx, steady); err != nil {
		return err
	}
	s.report.printBudgets("small nodes: 64 MiB, a quarter of a CPU")
	return nil
}

// smallCase describes a daemon to run in the control group, and its loads. The loads of one phase run at the same time.
type smallCase struct {
	name                 string
	start                func() (*target, error)
	ready, memory, idle  float64 // budgets: seconds until the first answer; when idle, MiB, and percent of a core
	steady, flood, again []smallLoad
	reload               func(*target) error // called while the loads of again run
}

// smallLoad is a load in which no request may fail. Only in a flood may requests fail, since the daemon need not handle
// all.
type smallLoad struct {
	name  string
	load  load
	most  float64 // budget for p99 in ms; 0 means none
	flood bool
}

func (s *suite) smallRatelimit(ctx context.Context, d daemon, rate float64, steady time.Duration) smallCase {
	// There are 100,000 keys in use. Calls have no timeout, so that a lost answer shows as a failed call.
	calls := grpcTraffic{scenario: scenario{request: "(account,acc-#)", keys: 100_000}, streams: 64}
	at := func(rate float64, run time.Duration) load {
		return load{traffic: calls, conns: 4, rate: rate, warm: time.Second, run: run}
	}
	return smallCase{
		name: d.name, ready: 1, memory: 26, idle: 0.5,
		start:  func() (*target, error) { return s.testbed.ratelimit(ctx, s.testbed.daemon, "", d) },
		steady: []smallLoad{{name: "steady", load: at(rate, steady), most: 20}},
		flood:  []smallLoad{{name: "five times as much", load: at(5*rate, steady/10), flood: true}},
		again:  []smallLoad{{name: "steady again, with a reload of 10,000 rules", load: at(rate, 5*time.Second)}},
		reload: func(t *target) error {
			return errors.Join(os.WriteFile(t.rules, ruleText(10_000, 2), 0o644), t.process.Signal(syscall.SIGHUP))
		},
	}
}

// smallAuth starts an auth daemon outside the control group, which fills the database, and then measures a second
// daemon, inside the group, on the same database.
func (s *suite) smallAuth(ctx context.Context, steady time.Duration) error {
	db, err := startDatabase(ctx, s.testbed)
	if err != nil {
		return err
	}
	url, err := db.create(ctx, "small")
	if err != nil {
		return err
	}
	start := func(name string) (*target, error) {
		return s.testbed.auth(ctx, s.testbed.authDaemon, authDaemon{name: name, database: url,
			settings: []string{"AUTH_JWT_ALGORITHM=ES256", "AUTH_PASSWORD_HASH=bcrypt:10"}})
	}
	first, err := start("small fill")
	if err != nil {
		return err
	}
	// A session may be refreshed 60 times at once, and then once a second. Therefore there are many accounts: in an
	// open loop the first connections make most of the requests, each for its own share of the accounts.
	refreshes := int(20 * steady.Seconds())
	accounts, err := signUpAccounts(first, "small", 128+max(128, refreshes/24))
	if err := errors.Join(err, s.testbed.stop(first)); err != nil {
		return err
	}
	at := func(t traffic, rate float64, run time.Duration) load {
		return load{traffic: t, conns: authConns, rate: rate, run: run}
	}
	half := accounts[:128] // no other load refreshes the sessions of these accounts
	signIns := signingIn(64, half)
	signIns.judge = func(_, status int, _ []byte) bool { return status == 200 || status == 503 }
	return s.runSmall(ctx, smallCase{
		name: "small auth", ready: 2, memory: 30, idle: 1,
		start: func() (*target, error) { return start("small auth") },
		steady: []smallLoad{
			{name: "GET /user", load: at(asUser(half), 100, steady), most: 100},
			{name: "refresh", load: at(refreshing(accounts[128:]), 20, steady), most: 100},
			{name: "sign-in", load: at(signingIn(authConns, half), 0.5, steady), most: 1500},
		},
		flood: []smallLoad{
			// These clients sign in without pause; most requests are refused, with 503.
			{name: "64 sign-ins at once", load: load{traffic: signIns, conns: 64, run: steady / 10}},
			{name: "GET /user meanwhile", load: at(asUser(half), 100, steady/10), most: 500},
		},
		again:  []smallLoad{{name: "GET /user again, with SIGHUP", load: at(asUser(half), 100, 5*time.Second)}},
		reload: func(t *target) error { return t.process.Signal(syscall.SIGHUP) },
	})
}

// runSmall measures a daemon in a control group of its own.
func (s *suite) runSmall(ctx context.Context, c smallCase) error {
	g, err := newControlGroup("gatehouse-"+strings.ReplaceAll(c.name, " ", "-"), smallMemory, smallCores)
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	s.testbed.group = g
	err = s.smallPhases(ctx, c, g)
	s.testbed.group = nil
	if err != nil { // the daemon's processes are still in the group
		err = fmt.Errorf("%s: %w", c.name, err)
		for _, t := range slices.Clone(s.testbed.started) {
			err = errors.Join(err, s.testbed.stop(t))
		}
	}
	return errors.Join(err, g.close())
}

// smallPhases starts a daemon in a group, measures it in all phases and stops it.
func (s *suite) smallPhases(ctx context.Context, c smallCase, g *controlGroup) error {
	began := time.Now()
	t, err := c.start()
	if err != nil {
		return err
	}
	s.report.atMost(c.ready, " s", c.name+", start to ready", []float64{time.Since(began).Seconds()})
	if err := s.smallIdle(c, t, g); err != nil {
		return err
	}
	for _, phase := range [][]smallLoad{c.steady, c.flood} {
		if err := s.smallPhase(ctx, t, g, phase); err != nil {
			return err
		}
	}
	time.Sleep(5 * time.Second) // after the flood, the daemon has this time until it must be steady again
	reloaded := make(chan error, 1)
	time.AfterFunc(2*time.Second, func() { reloaded <- c.reload(t) })
	err = s.smallPhase(ctx, t, g, c.again)
	return errors.Join(err, <-reloaded, s.testbed.stop(t))
}

// smallIdle compares what an idle daemon uses with its budgets.
func (s *suite) smallIdle(c smallCase, t *target, g *controlGroup) error {
	time.Sleep(2 * time.Second)
	before, err := readFamily(t.process.PID())
	if err != nil {
		return err
	}
	const long = 3 * time.Second
	time.Sleep(long)
	after, err := readFamily(t.process.PID())
	if err != nil {
		return err
	}
	used, err := g.used()
	s.report.atMost(c.memory, " MiB", t.name+", idle memory of the group", []float64{float64(used) / mib})
	s.report.atMost(c.idle, " %", t.name+", idle CPU of a core",
		[]float64{100 * float64(after.cpu-before.cpu) / float64(long)})
	return err
}

// smallPhase runs the loads of a phase at the same time, and compares the results with their budgets.
func (s *suite) smallPhase(ctx context.Context, t *target, g *controlGroup, loads []smallLoad) error {
	results, errs := make([]*result, len(loads)), make([]error, len(loads))
	var running sync.WaitGroup
	for i, l := range loads {
		l.load.addr, l.load.stop = t.addr, ctx.Done()
		running.Go(func() { results[i], errs[i] = l.load.drive() })
	}
	running.Wait()
	_, err := g.used()
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	for i, l := range loads {
		r, name := results[i], t.name+", "+l.name
		if r.failed > 0 && !l.flood {
			return fmt.Errorf("%s: %d requests failed: %s", name, r.failed, r.refusal)
		}
		p99 := milliseconds(r.latency.quantile(.99))
		if l.most > 0 {
			s.report.atMost(l.most, " ms", name+", p99", []float64{p99})
		}
		s.report.linef("%s: %.0f/s, p50 %.1f ms, p99 %.1f ms, slowest %.0f ms, %d refused or late %s", name, r.perSecond(),
			milliseconds(r.latency.quantile(.5)), p99, milliseconds(r.latency.quantile(1)), r.failed, r.refusal)
	}
	return nil
}

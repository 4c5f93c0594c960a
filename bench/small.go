//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"gatehouse/shared/localserver"
)

const (
	smallMemory = 64 << 20
	smallCores  = 0.25
)

// small runs both daemons in a control group of 64 MiB and a quarter of a CPU, with stores outside. Kills, failures and
// lost requests are errors; the other figures are compared with budgets.
func (s *suite) small(ctx context.Context) error {
	steady := 10 * time.Minute
	if s.short {
		steady = 15 * time.Second
	}
	s.report.linef("small: %v of steady load, %v of five times as much", steady, steady/10)
	redis, err := localserver.Redis(ctx, localserver.RedisOptions{})
	if err != nil {
		return err
	}
	defer redis.Close()
	for _, d := range []struct {
		daemon
		rate float64
	}{
		{daemon{"small memory", ruleText(10_000, 1), nil, nil}, 1000},
		{daemon{"small redis", ruleText(10_000, 1), []*localserver.Server{redis}, nil}, 500},
	} {
		if err := s.smallRatelimit(ctx, d.daemon, d.rate, steady); err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
	}
	if err := s.smallAuth(ctx, steady); err != nil {
		return fmt.Errorf("small auth: %w", err)
	}
	s.report.printBudgets("small nodes: 64 MiB, a quarter of a CPU")
	return nil
}

// inGroup runs use with a control group in which everything starts meanwhile.
func (s *suite) inGroup(name string, use func(*controlGroup) error) error {
	g, err := newControlGroup("gatehouse-"+name, smallMemory, smallCores)
	if err != nil {
		return err
	}
	s.testbed.group = g
	err = use(g)
	s.testbed.group = nil
	if err != nil { // the processes are still in the group
		for _, t := range slices.Clone(s.testbed.started) {
			err = errors.Join(err, s.testbed.stop(t))
		}
	}
	return errors.Join(err, g.close())
}

func (s *suite) smallRatelimit(ctx context.Context, d daemon, rate float64, steady time.Duration) error {
	return s.inGroup("ratelimit", func(g *controlGroup) error {
		began := time.Now()
		t, err := s.testbed.ratelimit(ctx, s.testbed.daemon, "", d)
		if err != nil {
			return err
		}
		s.report.atMost(1, " s", d.name+", start to ready", []float64{time.Since(began).Seconds()})
		if err := s.smallIdle(t, g, 26, 0.5); err != nil {
			return err
		}
		// 100,000 live keys; a caller waits as long as it takes, so that a lost request shows as failed.
		calls := grpcTraffic{scenario: scenario{request: "(account,acc-#)", keys: 100_000}, streams: 64}
		to := load{addr: t.addr, traffic: calls, conns: 4, rate: rate, warm: time.Second, run: steady,
			stop: ctx.Done()}
		if err := s.smallLoad(to, g, d.name+", steady", 20); err != nil {
			return err
		}
		over := to
		over.rate, over.run = 5*rate, steady/10
		if err := s.smallFlood(over, g, d.name); err != nil {
			return err
		}
		time.Sleep(5 * time.Second) // the budget: steady again by then
		var reloaded error
		again := to
		again.run = 5 * time.Second
		var wg sync.WaitGroup
		wg.Go(func() {
			time.Sleep(2 * time.Second)
			reloaded = errors.Join(os.WriteFile(t.rules, ruleText(10_000, 2), 0o644), t.process.Signal(syscall.SIGHUP))
		})
		err = s.smallLoad(again, g, d.name+", steady again, with a reload of 10,000 rules", 0)
		wg.Wait()
		return errors.Join(err, reloaded, s.testbed.stop(t))
	})
}

// smallIdle compares what an idle daemon uses with budgets.
func (s *suite) smallIdle(t *target, g *controlGroup, memory, percent float64) error {
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
	used, _, err := g.used()
	s.report.atMost(memory, " MiB", t.name+", idle memory of the group", []float64{float64(used) / mib})
	s.report.atMost(percent, " %", t.name+", idle CPU of a core", []float64{100 * float64(after.cpu-before.cpu) / float64(long)})
	return err
}

// smallLoad runs a load in which no request may fail. most is the budget of p99 in milliseconds; 0 only shows it.
func (s *suite) smallLoad(l load, g *controlGroup, name string, most float64) error {
	r, err := l.drive()
	if err != nil {
		return err
	}
	if err := g.alive(name); err != nil {
		return err
	}
	if r.failed > 0 {
		return fmt.Errorf("%s: %d requests failed: %s", name, r.failed, r.refusal)
	}
	p99 := milliseconds(r.latency.quantile(.99))
	if most > 0 {
		s.report.atMost(most, " ms", name+", p99", []float64{p99})
	}
	s.report.linef("%s: %.0f/s, p50 %.1f ms, p99 %.1f ms, slowest %.0f ms", name, r.perSecond(),
		milliseconds(r.latency.quantile(.5)), p99, milliseconds(r.latency.max))
	return nil
}

// smallFlood runs a load that the daemon must survive, but need not handle completely.
func (s *suite) smallFlood(l load, g *controlGroup, name string) error {
	r, err := l.drive()
	if err != nil {
		return err
	}
	s.report.linef("%s, five times as much: %.0f/s answered, %d refused or late (%s)", name, r.perSecond(), r.failed,
		r.refusal)
	return g.alive(name)
}

// alive returns an error if the kernel has killed a process of the group.
func (g *controlGroup) alive(name string) error {
	used, kills, err := g.used()
	if err == nil && kills > 0 {
		err = fmt.Errorf("%s: the kernel killed %d processes for want of memory, %d MiB are in use", name, kills, used>>20)
	}
	return err
}

func (s *suite) smallAuth(ctx context.Context, steady time.Duration) error {
	db, err := startDatabase(ctx)
	if err != nil {
		return err
	}
	defer db.close()
	url, err := db.create(ctx, "small")
	if err != nil {
		return err
	}
	settings := []string{"AUTH_JWT_ALGORITHM=ES256", "AUTH_PASSWORD_HASH=bcrypt:10"}
	first, err := s.testbed.readyAuth(ctx, s.testbed.authDaemon, "small fill", url, settings...) // migrates, outside
	if err != nil {
		return err
	}
	accounts, err := signUpAccounts(first, "small", 256)
	if err := errors.Join(err, s.testbed.stop(first)); err != nil {
		return err
	}
	return s.inGroup("auth", func(g *controlGroup) error {
		began := time.Now()
		t, err := s.testbed.readyAuth(ctx, s.testbed.authDaemon, "small auth", url, settings...)
		if err != nil {
			return err
		}
		s.report.atMost(2, " s", "small auth, start to ready", []float64{time.Since(began).Seconds()})
		if err := s.smallIdle(t, g, 30, 1); err != nil {
			return err
		}
		l := func(tr traffic, rate float64, run time.Duration) load {
			return load{addr: t.addr, traffic: tr, conns: authConns, rate: rate, run: run, stop: ctx.Done()}
		}
		half := accounts[:128] // no other load refreshes the sessions of these accounts
		if err := together(
			func() error { return s.smallLoad(l(asUser(half), 100, steady), g, "small auth, GET /user", 100) },
			func() error {
				return s.smallLoad(l(refreshing(accounts[128:]), 20, steady), g, "small auth, refresh", 100)
			},
			func() error {
				return s.smallLoad(l(signingIn(authConns, half), 0.5, steady), g, "small auth, sign-in", 1500)
			},
		); err != nil {
			return err
		}
		signIns := signingIn(64, half) // 64 at once, without pause; most are refused with a code
		signIns.judge = func(_, status int, _ []byte) bool { return status == 200 || status == 503 }
		flood := l(signIns, 0, steady/10)
		flood.conns = 64
		if err := together(
			func() error { return s.smallLoad(flood, g, "small auth, 64 sign-ins at once", 0) },
			func() error {
				return s.smallLoad(l(asUser(half), 100, steady/10), g, "small auth, GET /user meanwhile", 500)
			},
		); err != nil {
			return err
		}
		time.Sleep(5 * time.Second)
		err = t.process.Signal(syscall.SIGHUP)
		again := s.smallLoad(l(asUser(half), 100, 5*time.Second), g, "small auth, GET /user again, with SIGHUP", 0)
		return errors.Join(err, again, s.testbed.stop(t))
	})
}

// together runs functions at the same time.
func together(all ...func() error) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, f := range all {
		wg.Go(func() { errs[i] = f() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

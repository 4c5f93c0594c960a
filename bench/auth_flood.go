//go:build linux

package main

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

const (
	floodClients = 64  // sign in without pause
	userRate     = 100 // GET /user a second meanwhile
)

// floodRound is GET /user without and with a concurrent flood of sign-ins.
type floodRound struct {
	quiet, flooded sample
	// signIns are what the daemon did a second, hashes what the cores allow: a bare handler that only
	// compares a password, two at a time for each core, so that they end one after the other.
	signIns, hashes float64
}

// measureFlood measures the daemon with its default settings: bcrypt at cost 10, as many hashing threads
// as cores.
func (s *authSuite) measureFlood(ctx context.Context, round int) error {
	t, crowd := s.targets["default"], s.crowd["default"]
	users := load{
		addr: t.addr, traffic: asUser(crowd), conns: authConns, rate: userRate,
		warm: 300 * time.Millisecond, run: 4 * s.time,
	}
	failed := func(err error) error {
		s.refused = append(s.refused, fmt.Sprintf("round %d, flood: %v", round+1, err))
		return ctx.Err()
	}
	quiet, err := users.drive()
	if err != nil {
		return failed(err)
	}
	hashes, err := load{
		addr: s.targets["hash:10"].addr, traffic: getting("/yardstick"), conns: 2 * runtime.NumCPU(),
		warm: 300 * time.Millisecond, run: 2 * s.time,
	}.drive()
	if err != nil {
		return failed(err)
	}

	type ended struct {
		r   *result
		err error
	}
	signIns := make(chan ended, 1)
	stop := make(chan struct{})
	go func() {
		r, err := load{
			addr: t.addr, traffic: signingIn(floodClients, crowd), conns: floodClients,
			warm: 300 * time.Millisecond, run: time.Minute, stop: stop,
		}.drive()
		signIns <- ended{r, err}
	}()
	users.warm = time.Second // until the queue of the hashing threads is full
	users.traffic = asUser(crowd)
	flooded, err := users.drive()
	close(stop)
	signed := <-signIns
	if err == nil {
		err = signed.err
	}
	if err == nil && (flooded.failed > 0 || signed.r.failed*20 > signed.r.ok) {
		err = fmt.Errorf("%d of %d users and %d of %d sign-ins were refused: %s%s", flooded.failed,
			flooded.ok+flooded.failed, signed.r.failed, signed.r.ok+signed.r.failed, flooded.refusal, signed.r.refusal)
	}
	if err != nil {
		return failed(err)
	}
	figures := func(r *result) sample {
		return sample{rate: r.perSecond(), p50: r.latency.quantile(.5), p99: r.latency.quantile(.99),
			max: r.latency.max}
	}
	s.flood = append(s.flood, floodRound{figures(quiet), figures(flooded), signed.r.perSecond(), hashes.perSecond()})
	return nil
}

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

// The lines of a flood: GET /user without and with it, the sign-ins that the daemon does, and the hashes that the cores
// allow: a bare handler that only compares a password, two at a time for each core, so that they end one after the
// other.
var (
	quietLine   = line{scenario: "user", target: "default", open: true, rate: userRate}
	floodedLine = line{scenario: "user", target: "default", open: true, rate: userRate, via: viaFlood}
	signInLine  = line{scenario: "password", target: "default", via: viaFlood}
	hashesLine  = line{scenario: "hash:10", target: "hash:10"}
)

// measureFlood measures the daemon with its default settings: bcrypt at cost 10, as many hashing threads
// as cores.
func (s *authSuite) measureFlood(ctx context.Context, round int) error {
	quiet, hashes, flooded, signed, err := s.flood()
	if err != nil {
		quiet, hashes, flooded, signed = &result{}, &result{}, &result{}, &result{}
	} else if flooded.failed > 0 || signed.failed*20 > signed.ok {
		err = fmt.Errorf("%d of %d users and %d of %d sign-ins were refused: %s%s", flooded.failed,
			flooded.ok+flooded.failed, signed.failed, signed.ok+signed.failed, flooded.refusal, signed.refusal)
	}
	for i, r := range []*result{quiet, flooded, signed, hashes} {
		s.add(round, group{quietLine, floodedLine, signInLine, hashesLine}[i], r.sample(), err)
	}
	return ctx.Err()
}

func (s *authSuite) flood() (quiet, hashes, flooded, signed *result, err error) {
	t, crowd := s.targets["default"], s.crowd["default"]
	users := load{
		addr: t.addr, traffic: asUser(crowd), conns: authConns, rate: userRate,
		warm: 300 * time.Millisecond, run: 4 * s.time,
	}
	if quiet, err = users.drive(); err != nil {
		return
	}
	if hashes, err = (load{
		addr: s.targets["hash:10"].addr, traffic: getting("/yardstick"), conns: 2 * runtime.NumCPU(),
		warm: 300 * time.Millisecond, run: 2 * s.time,
	}).drive(); err != nil {
		return
	}
	ended, stop := make(chan error, 1), make(chan struct{})
	go func() {
		var err error
		signed, err = load{
			addr: t.addr, traffic: signingIn(floodClients, crowd), conns: floodClients,
			warm: 300 * time.Millisecond, run: time.Minute, stop: stop,
		}.drive()
		ended <- err
	}()
	users.warm = time.Second // until the queue of the hashing threads is full
	users.traffic = asUser(crowd)
	flooded, err = users.drive()
	close(stop)
	if failed := <-ended; err == nil {
		err = failed
	}
	return
}

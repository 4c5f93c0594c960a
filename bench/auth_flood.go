//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
)

const (
	floodClients = 64  // sign in without pause
	userRate     = 100 // GET /user a second meanwhile
)

// The lines of a flood: GET /user without and with the flood, the sign-ins that the daemon completes, and the hashes
// that the cores allow: a bare handler that only compares a password, with two requests at a time for each core, so
// that they end one after the other.
var (
	quietLine   = line{scenario: "user", target: "default", open: true, rate: userRate}
	floodedLine = line{scenario: "user", target: "default", open: true, rate: userRate, via: viaFlood}
	signInLine  = line{scenario: "password", target: "default", via: viaFlood}
	hashesLine  = line{scenario: "hash:10", target: "hash:10"}
)

// measureFlood measures the daemon with its default settings: bcrypt at cost 10, as many hashing threads
// as cores.
func (s *authSuite) measureFlood(ctx context.Context, round int) error {
	lines := []line{quietLine, floodedLine, signInLine, hashesLine}
	got, err := s.flood()
	if err == nil {
		if flooded, signed := got[1], got[2]; flooded.failed > 0 || signed.failed*20 > signed.ok {
			err = fmt.Errorf("%d of %d users and %d of %d sign-ins were refused: %s%s", flooded.failed,
				flooded.ok+flooded.failed, signed.failed, signed.ok+signed.failed, flooded.refusal, signed.refusal)
		}
	}
	for i, l := range lines {
		measured := none
		if err == nil {
			measured = got[i].sample()
		}
		s.add(round, l, measured, err)
	}
	return ctx.Err()
}

// flood returns the results of its four lines.
func (s *authSuite) flood() (got [4]*result, err error) {
	t, crowd := s.targets["default"], s.crowd["default"]
	users := load{
		addr: t.addr, traffic: asUser(crowd), conns: authConns, rate: userRate,
		warm: 300 * time.Millisecond, run: 4 * s.time,
	}
	if got[0], err = users.drive(); err != nil {
		return got, err
	}
	if got[3], err = (load{
		addr: s.targets["hash:10"].addr, traffic: getting("/yardstick"), conns: 2 * runtime.NumCPU(),
		warm: 300 * time.Millisecond, run: 2 * s.time,
	}).drive(); err != nil {
		return got, err
	}
	endFlood := load{
		addr: t.addr, traffic: signingIn(floodClients, crowd), conns: floodClients, warm: 300 * time.Millisecond,
	}.background()
	users.warm = time.Second // until the queue of the hashing threads is full
	users.traffic = asUser(crowd)
	got[1], err = users.drive()
	var failed error
	got[2], failed = endFlood()
	return got, errors.Join(err, failed)
}

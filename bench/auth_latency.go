//go:build linux

package main

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

const (
	floodClients = 64  // connections that sign in without pause
	userRate     = 100 // GET /user requests a second during the flood of sign-ins
)

// These are the rows of the table for a flood of sign-ins: GET /user without and during the flood, the sign-ins that
// the daemon completes, and the password hashes that the cores can compute. The hashes are measured with a bare handler
// that only compares a password. It gets two requests at a time for each core, so that every core always has one to
// work on.
var (
	quietLine   = line{scenario: "user", target: "default", open: true, rate: userRate}
	floodedLine = line{scenario: "user", target: "default", open: true, rate: userRate, via: viaFlood}
	signInLine  = line{scenario: "password", target: "default", via: viaFlood}
	hashesLine  = line{scenario: "hash:10", target: "hash:10"}
)

// measureFlood measures how a flood of sign-ins affects other requests. The daemon has its default settings: bcrypt at
// cost 10, and as many hashing threads as cores.
func (s *authSuite) measureFlood(ctx context.Context, round int) error {
	t, crowd := s.targets["default"], s.crowd["default"]
	users := load{
		addr: t.addr, traffic: asUser(crowd), conns: authConns, rate: userRate,
		warm: 300 * time.Millisecond, run: 4 * s.time,
	}
	quiet, err := users.driveClean()
	s.add(round, quietLine, quiet.sample(), err)
	hashes, err := load{
		addr: s.targets["hash:10"].addr, traffic: getting("/yardstick"), conns: 2 * runtime.NumCPU(),
		warm: 300 * time.Millisecond, run: 2 * s.time,
	}.driveClean()
	s.add(round, hashesLine, hashes.sample(), err)
	endFlood := load{
		addr: t.addr, traffic: signingIn(floodClients, crowd), conns: floodClients, warm: 300 * time.Millisecond,
	}.background()
	users.warm = time.Second // until the queue for the hashing threads is full
	users.traffic = asUser(crowd)
	flooded, err := users.driveClean()
	s.add(round, floodedLine, flooded.sample(), err)
	signed, err := endFlood()
	if err == nil && signed.failed*20 > signed.ok {
		err = fmt.Errorf("%d of %d sign-ins were refused: %s", signed.failed, signed.ok+signed.failed, signed.refusal)
	}
	s.add(round, signInLine, signed.sample(), err)
	return ctx.Err()
}

// enumerationProbe is a request whose answer must not reveal whether an address has an account, not even by the time it
// takes.
type enumerationProbe struct {
	name, path string
	body       string // %[1]s is the address, %[2]s a password that no account has
	status     int
}

var enumerationProbes = []enumerationProbe{
	{"refused sign-in", "/token?grant_type=password", `{"email":%[1]q,"password":%[2]q}`, 400},
	{"sign-up, to be confirmed", "/signup", `{"email":%[1]q,"password":%[2]q}`, 200},
	{"recovery", "/recover", `{"email":%[1]q}`, 200},
}

const (
	enumerationCalls = 300 // measured calls in each round, for known and for unknown addresses each
	enumerationWarm  = 30
)

// sides returns the two rows of a probe: for addresses with an account, and for addresses without.
func (p enumerationProbe) sides() group { return closed(p.name, "known address", "unknown address") }

// startEnumeration starts a daemon that requires new addresses to be confirmed by mail, on the database of the daemon
// HS256. Its mails go to the mailbox for development, and there is no limit on mails to one address.
func (s *authSuite) startEnumeration(ctx context.Context) (err error) {
	settings := append(cheapHash("HS256"),
		"AUTH_MAILER_AUTOCONFIRM=false", "AUTH_API_EXTERNAL_URL=http://127.0.0.1:9", "AUTH_SITE_URL=http://127.0.0.1:9",
		"AUTH_DEV_MAILBOX=true", "AUTH_DEV_MAILBOX_PORT=0", "AUTH_RATE_LIMIT_EMAIL_SENT=1000000",
	)
	s.targets["mailing"], err = s.testbed.auth(ctx, s.testbed.authDaemon,
		authDaemon{name: "mailing", database: s.db.server.PostgresURL("HS256"), settings: settings})
	return err
}

// measureEnumeration sends each probe for known and for unknown addresses at the same time, over one connection each.
// It uses each address once for each probe, in as many rounds as there are accounts for.
func (s *authSuite) measureEnumeration(round int) {
	known := s.crowd["HS256"]
	known = known[round*(enumerationCalls+enumerationWarm)%(len(known)-enumerationCalls-enumerationWarm):]
	for n, a := range enumerationProbes {
		var took [2]latencies
		var asked [2]int
		l := load{
			addr: s.targets["mailing"].addr, conns: 2, warmCalls: 2 * enumerationWarm, run: time.Minute,
			each: func(a answer) { took[a.conn] = append(took[a.conn], a.latency) },
			traffic: httpTraffic{
				next: func(b []byte, conn int) ([]byte, bool) {
					i := asked[conn]
					if i == enumerationCalls+enumerationWarm {
						return nil, false
					}
					asked[conn]++
					// an unknown address, as long as the known ones
					address := fmt.Sprintf("new%02d-%07d@bench.example", n, round*100_000+i)
					if conn == 0 {
						address = known[i].email
					}
					return appendRequest(b, "POST", a.path, "", fmt.Appendf(nil, a.body, address, "no "+benchPassword)),
						true
				},
				judge: answered(a.status),
			},
		}
		_, err := l.driveClean()
		for i, side := range a.sides() {
			s.add(round, side, sample{p50: took[i].quantile(.5), p99: took[i].quantile(.99), max: took[i].quantile(1)}, err)
		}
	}
}

// compareEnumeration compares, for each probe, the median time for known addresses with that for unknown ones.
func (s *authSuite) compareEnumeration() {
	for _, a := range enumerationProbes {
		known, unknown := spreadOf(s.of(a.sides()[0], p50)).median, spreadOf(s.of(a.sides()[1], p50)).median
		if known > 0 && unknown > 0 {
			s.report.atMost(1.05, " ×", a.name+": known and unknown address, the longer ÷ the shorter",
				[]float64{max(known, unknown) / min(known, unknown)}, "of the medians above")
		}
	}
}

//go:build linux

package main

import (
	"context"
	_ "embed"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/crypto/bcrypt"
)

// The large database: each user has the rows of a sign-up by e-mail address.
const (
	millionUsers    = 1_000_000
	millionSessions = 3 // of each user
	millionCrowd    = 2_000
)

//go:embed million.sql
var millionRows string

// millionScenarios run on a database that has only the accounts of the load, and on the large one.
var millionScenarios = []string{"user", "refresh", "password"}

func millionLine(scenario string) line { return line{scenario: scenario, target: "million"} }

// startMillion fills a database, starts a daemon on it, and signs in as many users as the load needs.
func (s *authSuite) startMillion(ctx context.Context) error {
	const name = "million"
	t, url, err := s.startDaemon(ctx, s.testbed.authDaemon, name, cheapHash("HS256"))
	if err != nil {
		return err
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(benchPassword), bcrypt.MinCost)
	if err != nil {
		return err
	}
	began := time.Now()
	rows := strings.NewReplacer("{hash}", string(hash), "{users}", strconv.Itoa(millionUsers), "{sessions}",
		strconv.Itoa(millionSessions)).Replace(millionRows)
	if err := execSQL(ctx, url, rows, "vacuum analyze"); err != nil {
		return err
	}
	s.report.linef("\nmillion: %d users with %d sessions each, filled in %v", millionUsers, millionSessions,
		time.Since(began).Round(time.Second))

	crowd := make([]account, millionCrowd)
	for i := range crowd {
		crowd[i].email = fmt.Sprintf("million-%07d@bench.example", 1+rand.IntN(millionUsers))
	}
	s.crowd[name] = crowd
	signIn := keeping(crowd, true, passwordPath, appendSignIn)
	l := load{addr: t.addr, traffic: signIn, conns: authConns, run: 5 * time.Minute}
	if _, err := l.driveClean(); err != nil {
		return fmt.Errorf("%s: sign %d accounts in: %w\n%s", t.name, len(crowd), err, s.testbed.logTail(t))
	}
	return nil
}

// wholeReads returns how often one of the large tables has been read completely, for a line of the large database.
func (s *authSuite) wholeReads(ctx context.Context, l line) (n int64, err error) {
	if l.target != "million" {
		return 0, nil
	}
	time.Sleep(1500 * time.Millisecond) // a backend reports its statistics at most once a second
	conn, err := pgx.Connect(ctx, s.db.server.PostgresURL("million"))
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx,
		"select sum(seq_scan)::bigint from pg_stat_user_tables where relname in ('users', 'identities', 'sessions')").
		Scan(&n)
	return n, err
}

//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/crypto/bcrypt"
)

// The large database: what each user has is what a sign-up by e-mail address leaves.
const (
	millionUsers    = 1_000_000
	millionSessions = 3 // of each
	millionCrowd    = 2_000
)

// millionScenarios run on a database that is empty but for the accounts of the load, and on the large one.
var millionScenarios = []string{"user", "refresh", "password"}

// millionRound is a scenario's p50 and p99 on both in one round.
type millionRound struct{ small, large sample }

// startMillion fills a database, starts a daemon on it, and signs in as many of its users.
func (s *authSuite) startMillion(ctx context.Context) error {
	const name = "million"
	url, err := s.db.create(ctx, name)
	if err != nil {
		return err
	}
	t, err := s.testbed.auth(name, url, cheapHash("HS256")...)
	if err != nil {
		return err
	}
	s.targets[name] = t
	if err := s.testbed.awaitHTTP(ctx, t, "/health", ""); err != nil {
		return err
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(benchPassword), bcrypt.MinCost)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := execSQL(ctx, url,
		"set synchronous_commit = off",
		"set session_replication_role = replica", // no look-up of each session's user
		"set statement_timeout = '5min'",
		fmt.Sprintf(`insert into users (id, aud, role, email, password_hash, app_metadata, user_metadata, created_at, updated_at, last_sign_in_at, email_confirmed_at)
			select gen_random_uuid(), 'authenticated', 'authenticated', 'million-' || lpad(n::text, 7, '0') || '@bench.example', '%s',
				'{"provider": "email", "providers": ["email"]}', '{"email_verified": true, "phone_verified": false}', at, at, at, at
			from generate_series(1, %d) n, lateral (select now() - (random() * 1000) * interval '1 day' + n * interval '0 s' as at) a`, hash, millionUsers),
		`insert into identities (id, user_id, provider, provider_id, email, identity_data, created_at, updated_at, last_sign_in_at)
			select gen_random_uuid(), id, 'email', id::text, email, jsonb_build_object('sub', id, 'email', email), created_at, created_at, created_at from users`,
		fmt.Sprintf(`insert into sessions (id, user_id, created_at, secret_hash, refreshed_at, user_agent, ip, amr)
			select gen_random_uuid(), id, created_at, sha256(id::text::bytea), created_at, 'gatehouse-bench', '127.0.0.1', '[{"method": "password", "timestamp": 1795277919}]'
			from users, generate_series(1, %d)`, millionSessions),
		"vacuum analyze",
	); err != nil {
		return err
	}
	s.report.linef("\nmillion: %d users with %d sessions each, filled in %v", millionUsers, millionSessions,
		time.Since(began).Round(time.Second))

	crowd := make([]account, millionCrowd)
	for i := range crowd {
		crowd[i].email = fmt.Sprintf("million-%07d@bench.example", 1+rand.IntN(millionUsers))
	}
	if s.crowd[name], err = signInAccounts(t, crowd); err != nil {
		return fmt.Errorf("%w\n%s", err, s.testbed.logTail(t))
	}
	return nil
}

// signInAccounts signs accounts in, each once, and keeps their tokens.
func signInAccounts(t *target, accounts []account) ([]account, error) {
	signIn, kept := signingIn(authConns, accounts), make([]account, 0, len(accounts))
	judge := signIn.judge
	signIn.judge = func(conn, status int, answer []byte) bool {
		a := account{email: field(answer, "email")}
		if !judge(conn, status, answer) || !a.take(answer) {
			return false
		}
		kept = append(kept, a)
		return true
	}
	r, err := load{addr: t.addr, traffic: signIn, conns: authConns, run: 5 * time.Minute, calls: len(accounts)}.drive()
	if err == nil && r.failed > 0 {
		err = fmt.Errorf("%d sign-ins failed: %s", r.failed, r.refusal)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: sign %d accounts in: %w", t.name, len(accounts), err)
	}
	return kept, nil
}

// measureMillion asks both databases one after the other, which first in turns.
func (s *authSuite) measureMillion(ctx context.Context, round int) error {
	before, err := s.wholeReads(ctx)
	if err != nil {
		return err
	}
	for _, scenario := range millionScenarios {
		var m millionRound
		for i := range 2 {
			target, to := "HS256", &m.small
			if (i+round)%2 == 1 {
				target, to = "million", &m.large
			}
			l := s.load(authLine{scenario, target}, round)
			l.run *= 2
			r, err := l.drive()
			if err == nil && r.failed*100 > r.ok {
				err = fmt.Errorf("%d as wanted, %d not: %s", r.ok, r.failed, r.refusal)
			}
			if err != nil {
				s.refused = append(s.refused, fmt.Sprintf("round %d, million, %s of %s: %v", round+1, scenario,
					target, err))
				m = millionRound{none, none}
				break
			}
			*to = sample{rate: r.perSecond(), p50: r.latency.quantile(.5), p99: r.latency.quantile(.99),
				max: r.latency.max}
		}
		s.million[scenario] = append(s.million[scenario], m)
	}
	after, err := s.wholeReads(ctx)
	s.millionScans += after - before
	return err
}

// wholeReads is how often one of the large tables has been read from end to end.
func (s *authSuite) wholeReads(ctx context.Context) (n int64, err error) {
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

// millionTable compares both databases.
func (s *authSuite) millionTable() {
	if len(s.million) == 0 {
		return
	}
	rows := [][]string{{"1M users, 3M sessions", "database", "requests/s", "p50 µs", "p99 µs"}}
	line := func(scenario, database string, rounds []sample) {
		rows = append(rows, []string{scenario, database, spreadOf(of(rounds, rateOf)).String(),
			spreadOf(of(rounds, p50Of)).String(), spreadOf(of(rounds, p99Of)).String()})
	}
	for _, scenario := range millionScenarios {
		var small, large []sample
		for _, m := range s.million[scenario] {
			small, large = append(small, m.small), append(large, m.large)
		}
		line(scenario, "small", small)
		line(scenario, "large", large)
		s.report.atMost(1.2, " ×", scenario+" with 1M users: p50 ÷ small database",
			ratios(of(large, p50Of), of(small, p50Of)))
	}
	s.report.linef("")
	s.report.table(rows)
	s.report.atMost(0, "", "whole reads of users, identities, sessions meanwhile", []float64{float64(s.millionScans)})
}

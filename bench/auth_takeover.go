//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/crypto/bcrypt"
)

// takeoverSchema makes the replaced service's tables.
const takeoverSchema = "auth/internal/former/formertest/newest.sql"

// takeoverCase is one takeover: rows there, and what the first and the last run may take.
type takeoverCase struct {
	name        string
	users       int
	revoked     int // refresh tokens of a session besides the live one
	encrypted   bool
	first, last time.Duration
}

// takeoverCases are measured where -only names them. Of each user one identity and one session; half of the sessions of
// each version, and a factor for every tenth.
var takeoverCases = []takeoverCase{
	{"takeover", 200_000, 0, false, time.Minute, 5 * time.Second},
	{"takeover-tokens", 200_000, 20, false, 75 * time.Second, 10 * time.Second},
	{"takeover-encrypted", 200_000, 0, true, 75 * time.Second, 5 * time.Second},
	{"takeover-million", 1_000_000, 0, false, 6 * time.Minute, 20 * time.Second},
}

// takeoverMemory is what the command may hold, MiB, whatever the size.
const takeoverMemory = 128

func (s *suite) takeovers(ctx context.Context) error {
	db, err := startDatabase(ctx)
	if err != nil {
		return err
	}
	defer db.close()
	rates := map[string]float64{}
	for _, c := range takeoverCases {
		if s.wanted("takeovers", c.name) {
			if rates[c.name], err = s.takeover(ctx, db, c); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	if small, large := rates["takeover"], rates["takeover-million"]; small > 0 && large > 0 {
		s.report.atLeast(0.75, "×", "takeover, rows per second at a million against 200,000", []float64{large / small})
	}
	s.report.printBudgets("takeovers")
	return nil
}

// takeover fills the tables there, copies them ahead, changes one in a hundred, and closes the takeover. It returns the
// users that the first run carried in a second.
func (s *suite) takeover(ctx context.Context, db *database, c takeoverCase) (float64, error) {
	fmt.Fprintln(os.Stderr, c.name)
	url, err := db.create(ctx, strings.ReplaceAll(c.name, "-", "_"))
	if err != nil {
		return 0, err
	}
	if err := fillTakeover(ctx, url, c); err != nil {
		return 0, err
	}
	run := func(args ...string) (time.Duration, float64, error) { return s.timed(ctx, db, url, c.name, args...) }
	if _, _, err := run("migrate"); err != nil {
		return 0, err
	}
	first, firstPeak, err := run("takeover", "-ahead")
	if err != nil {
		return 0, err
	}
	if err := execSQL(ctx, url, "set statement_timeout = '10min'",
		fmt.Sprintf("update auth.users set raw_user_meta_data = '{\"changed\": true}' where id in (select id from "+
			"auth.users limit %d)", c.users/100),
		fmt.Sprintf("update auth.sessions set refreshed_at = now() where id in (select id from auth.sessions limit %d)",
			c.users/100),
		fmt.Sprintf(
			"update auth.identities set updated_at = now() where id in (select id from auth.identities limit %d)",
			c.users/100),
	); err != nil {
		return 0, err
	}
	last, lastPeak, err := run("takeover")
	if err != nil {
		return 0, err
	}
	s.report.atMost(c.first.Seconds(), " s", c.name+", first run", []float64{first.Seconds()})
	s.report.atMost(c.last.Seconds(), " s", c.name+", last run, 1 % changed", []float64{last.Seconds()})
	s.report.atMost(takeoverMemory, " MiB", c.name+", peak RSS", []float64{max(firstPeak, lastPeak)})
	return float64(c.users) / first.Seconds(), nil
}

// timed runs auth with the arguments, on the database at url, and reports what that took; peak is its memory in MiB.
func (s *suite) timed(ctx context.Context, db *database, url, name string, args ...string) (
	took time.Duration, peak float64, err error,
) {
	before, err := db.meter(ctx)
	if err != nil {
		return 0, 0, err
	}
	program, err := filepath.Abs(s.testbed.authDaemon)
	if err != nil {
		return 0, 0, err
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = s.testbed.dir
	cmd.Env = []string{"DATABASE_URL=" + url, "AUTH_DB_DRIVER=postgres", "AUTH_SITE_URL=http://localhost:3000",
		"AUTH_API_EXTERNAL_URL=http://localhost:9999", "AUTH_JWT_SECRET=0123456789abcdef0123456789abcdef",
		"AUTH_DEV_MAILBOX=true", "AUTH_SECURITY_DB_ENCRYPTION_DECRYPTION_KEYS=" + takeoverKeyName + ":" +
			base64.RawURLEncoding.EncodeToString(takeoverKey)}
	began := time.Now()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	// Its resource usage would hold the memory of this program, which it had before it became the other one.
	ended, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		for {
			if n, err := peakRSS(cmd.Process.Pid); err == nil {
				peak = max(peak, float64(n)/mib)
			}
			select {
			case <-ended:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	err = cmd.Wait()
	close(ended)
	<-watched
	if err != nil {
		return 0, 0, fmt.Errorf("auth %s: %w\n%s", strings.Join(args, " "), err, out.Bytes())
	}
	took = time.Since(began)
	after, err := db.meter(ctx)
	if err != nil {
		return 0, 0, err
	}
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	s.report.linef("%s: auth %s took %v, %v of CPU and %v of PostgreSQL's", name, strings.Join(args, " "),
		took.Round(time.Millisecond), cpu.Round(time.Millisecond), (after.cpu - before.cpu).Round(time.Millisecond))
	return took, peak, nil
}

const takeoverKeyName = "k1"

var takeoverKey = []byte("0123456789abcdef0123456789abcdef")

// encryptColumn is what the replaced service stores of a text with encryption on.
func encryptColumn(plain, id string) string {
	key, err := hkdf.Key(sha256.New, takeoverKey, nil, id, 32)
	if err != nil {
		panic(err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	nonce := make([]byte, aead.NonceSize())
	rand.Read(nonce)
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf(`{"key_id":"%s","alg":"aes-gcm-hkdf","data":"%s","nonce":"%s"}`, takeoverKeyName,
		b64(aead.Seal(nil, nonce, []byte(plain), nil)), b64(nonce))
}

// fillTakeover makes the tables there and their rows.
func fillTakeover(ctx context.Context, url string, c takeoverCase) error {
	schema, err := os.ReadFile(filepath.FromSlash(takeoverSchema))
	if err != nil {
		return err
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(benchPassword), bcrypt.MinCost)
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, sql := range append([]string{string(schema), "set synchronous_commit = off",
		"set session_replication_role = replica"},
		fmt.Sprintf(`insert into auth.users (id, instance_id, aud, role, email, encrypted_password, email_confirmed_at, last_sign_in_at,
				raw_app_meta_data, raw_user_meta_data, created_at, updated_at)
			select gen_random_uuid(), '00000000-0000-0000-0000-000000000000', 'authenticated', 'authenticated', 'user-' || n || '@bench.example', '%s',
				now(), now(), '{"provider": "email", "providers": ["email"]}', jsonb_build_object('email', 'user-' || n || '@bench.example', 'email_verified', true),
				now() - n * interval '1 s', now()
			from generate_series(1, %d) n`, hash, c.users),
		`insert into auth.identities (id, provider_id, user_id, identity_data, provider, last_sign_in_at, created_at, updated_at)
			select gen_random_uuid(), id, id, jsonb_build_object('sub', id, 'email', email, 'email_verified', true), 'email', now(), now(), now() from auth.users`,
		`insert into auth.sessions (id, user_id, created_at, updated_at, refreshed_at, aal, user_agent, ip, refresh_token_hmac_key, refresh_token_counter)
			select gen_random_uuid(), id, now(), now(), now(), 'aal1', 'Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36', '192.0.2.7',
				case when n % 2 = 0 then translate(rtrim(encode(sha256(id::text::bytea), 'base64'), '='), '+/', '-_') end, case when n % 2 = 0 then n % 300 end
			from (select id, row_number() over () n from auth.users) u`,
		`insert into auth.mfa_amr_claims (id, session_id, created_at, updated_at, authentication_method)
			select gen_random_uuid(), id, now(), now(), 'password' from auth.sessions`,
		fmt.Sprintf(`insert into auth.refresh_tokens (token, user_id, revoked, created_at, updated_at, session_id)
			select substr(md5(id::text || n), 1, 20) || n || 'x', user_id, true, now(), now(), id from auth.sessions, generate_series(1, %d) n`, c.revoked),
		`insert into auth.refresh_tokens (token, user_id, revoked, created_at, updated_at, session_id)
			select substr(md5(id::text || 'live'), 1, 12), user_id, false, now(), now(), id from auth.sessions where refresh_token_hmac_key is null
			on conflict do nothing`,
		`insert into auth.mfa_factors (id, user_id, friendly_name, factor_type, status, created_at, updated_at, secret)
			select gen_random_uuid(), id, 'app', 'totp', 'verified', now(), now(), 'JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP'
			from (select id, row_number() over () n from auth.users) u where n % 10 = 0`) {
		if _, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
	}
	if c.encrypted {
		for table, column := range map[string]string{"users": "encrypted_password", "mfa_factors": "secret",
			"sessions": "refresh_token_hmac_key"} {
			if err := encryptAll(ctx, conn, table, column); err != nil {
				return err
			}
		}
	}
	_, err = conn.Exec(ctx, "vacuum analyze")
	return err
}

// encryptAll rewrites a column with what the replaced service stores when encryption is on.
func encryptAll(ctx context.Context, conn *pgx.Conn, table, column string) error {
	rows, err := conn.Query(ctx, fmt.Sprintf("select id::text, %[2]s from auth.%[1]s where %[2]s is not null", table,
		column))
	if err != nil {
		return err
	}
	var list [][]any
	var id, plain string
	if _, err := pgx.ForEachRow(rows, []any{&id, &plain}, func() error {
		list = append(list, []any{id, encryptColumn(plain, id)})
		return nil
	}); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "create temporary table sealed (id text, content text)"); err != nil {
		return err
	}
	if _, err := conn.CopyFrom(
		ctx, pgx.Identifier{"sealed"}, []string{"id", "content"}, pgx.CopyFromRows(list)); err != nil {
		return err
	}
	for _, sql := range []string{
		fmt.Sprintf("update auth.%s t set %s = s.content from sealed s where t.id = s.id::uuid", table, column),
		"drop table sealed",
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// takeoverNames are what -only may name.
func takeoverNames() (names []string) {
	for _, c := range takeoverCases {
		names = append(names, c.name)
	}
	return names
}

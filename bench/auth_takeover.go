//go:build linux

package main

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// takeoverSchema is a file with the tables of supabase/auth, which the takeover copies.
const takeoverSchema = "auth/internal/former/formertest/newest.sql"

//go:embed takeover.sql
var takeoverRows string

// takeoverCase describes one takeover: the rows of the source, and how long the first and the last run may take.
type takeoverCase struct {
	name        string
	users       int
	revoked     int // number of used refresh tokens that each session has in addition to the valid one
	encrypted   bool
	first, last time.Duration
}

// takeoverCases are measured only if -only names them. Each user has one identity and one session, and every tenth user
// has a factor. supabase/auth has two versions of refresh tokens; half of the sessions have the first version and half
// the second.
var takeoverCases = []takeoverCase{
	{"takeover", 200_000, 0, false, time.Minute, 5 * time.Second},
	{"takeover-tokens", 200_000, 20, false, 75 * time.Second, 10 * time.Second},
	{"takeover-encrypted", 200_000, 0, true, 75 * time.Second, 5 * time.Second},
	{"takeover-million", 1_000_000, 0, false, 6 * time.Minute, 20 * time.Second},
}

// takeoverMemory is the memory, in MiB, that the takeover may use, however many rows there are.
const takeoverMemory = 128

func (s *suite) takeovers(ctx context.Context) error {
	db, err := startDatabase(ctx, s.testbed)
	if err != nil {
		return err
	}
	rates := map[string]float64{}
	for _, c := range takeoverCases {
		if s.asked("takeovers", c.name) {
			if rates[c.name], err = s.takeover(ctx, db, c); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	if small, large := rates["takeover"], rates["takeover-million"]; small > 0 && large > 0 {
		s.report.add([]float64{large / small}, budget{what: "takeover, rows per second at a million against 200,000",
			unit: "×", limit: 0.75, atLeast: true})
	}
	s.report.printBudgets("takeovers")
	return nil
}

// takeover fills the source's tables, copies them in a first run, changes one row in a hundred, and completes the
// takeover in a last run. It returns how many users a second the first run has copied.
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
	change := func(table, to string) string {
		return fmt.Sprintf("update auth.%[1]s set %[2]s where id in (select id from auth.%[1]s limit %[3]d)", table, to,
			c.users/100)
	}
	if err := execSQL(ctx, url, "set statement_timeout = '10min'",
		change("users", `raw_user_meta_data = '{"changed": true}'`), change("sessions", "refreshed_at = now()"),
		change("identities", "updated_at = now()")); err != nil {
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

// timed runs the auth program with the given arguments, on the database at url. It returns the time it took, and its
// peak memory in MiB.
func (s *suite) timed(ctx context.Context, db *database, url, name string, args ...string) (
	took time.Duration, peak float64, err error,
) {
	before, err := db.read(ctx)
	if err != nil {
		return 0, 0, err
	}
	cmd := command(s.testbed.authDaemon, args...)
	cmd.Env = append(authSettings(url), "AUTH_SECURITY_DB_ENCRYPTION_DECRYPTION_KEYS="+takeoverKeyName+":"+
		base64.RawURLEncoding.EncodeToString(takeoverKey))
	began, t := time.Now(), &target{name: name + " " + strings.Join(args, " ")}
	if err := s.testbed.begin(t, cmd); err != nil {
		return 0, 0, err
	}
	// Read the memory while it runs: at the end of a child, the kernel reports the peak with the memory that this
	// program had when it forked the child.
	for ended := false; !ended; {
		if u, err := readUsage(t.process.PID()); err == nil {
			peak = max(peak, float64(u.peak)/mib)
		}
		select {
		case <-t.process.Ended():
			ended = true
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	took = time.Since(began)
	if err := s.testbed.stop(t); err != nil {
		return 0, 0, err
	}
	after, err := db.read(ctx)
	if err != nil {
		return 0, 0, err
	}
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	s.report.linef("%s: auth %s took %v, %v of CPU and %v of PostgreSQL's", name, strings.Join(args, " "),
		took.Round(time.Millisecond), cpu.Round(time.Millisecond), (after.store - before.store).Round(time.Millisecond))
	return took, peak, nil
}

const takeoverKeyName = "k1"

var takeoverKey = []byte("0123456789abcdef0123456789abcdef")

// encryptColumn returns a text in the form in which supabase/auth stores it if encryption is on.
func encryptColumn(plain, id string) string {
	key, err := hkdf.Key(sha256.New, takeoverKey, nil, id, 32)
	block, refused := aes.NewCipher(key)
	if err = errors.Join(err, refused); err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	sealed, b64 := aead.Seal(nil, nil, []byte(plain), nil), base64.StdEncoding.EncodeToString // sealed begins with the nonce
	return fmt.Sprintf(`{"key_id":"%s","alg":"aes-gcm-hkdf","data":"%s","nonce":"%s"}`, takeoverKeyName,
		b64(sealed[12:]), b64(sealed[:12]))
}

// fillTakeover creates and fills the source's tables.
func fillTakeover(ctx context.Context, url string, c takeoverCase) error {
	schema, err := os.ReadFile(filepath.FromSlash(takeoverSchema))
	if err != nil {
		return err
	}
	rows, err := fillIn(takeoverRows, "{users}", strconv.Itoa(c.users), "{revoked}", strconv.Itoa(c.revoked))
	if err != nil {
		return err
	}
	if err := execSQL(ctx, url, string(schema)+rows); err != nil {
		return err
	}
	if c.encrypted {
		for table, column := range map[string]string{"users": "encrypted_password", "mfa_factors": "secret",
			"sessions": "refresh_token_hmac_key"} {
			if err := encryptAll(ctx, url, table, column); err != nil {
				return err
			}
		}
	}
	return execSQL(ctx, url, "vacuum analyze")
}

// encryptAll rewrites a column of a table in the form in which supabase/auth stores it if encryption is on.
func encryptAll(ctx context.Context, url, table, column string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, fmt.Sprintf("select id::text, %[2]s from auth.%[1]s where %[2]s is not null", table,
		column))
	if err != nil {
		return err
	}
	var ids, contents []string
	var id, plain string
	if _, err := pgx.ForEachRow(rows, []any{&id, &plain}, func() error {
		ids, contents = append(ids, id), append(contents, encryptColumn(plain, id))
		return nil
	}); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, fmt.Sprintf("update auth.%s t set %s = s.content from unnest($1::uuid[], $2::text[]) "+
		"s (id, content) where t.id = s.id", table, column), ids, contents)
	return err
}

// takeoverNames returns the names by which -only selects the takeovers.
func takeoverNames() (names []string) {
	for _, c := range takeoverCases {
		names = append(names, c.name)
	}
	return names
}

//go:build linux

package main

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/crypto/bcrypt"
)

const (
	yardstickRows = 10_000
	// yardstickAnswer is as long as the answer to GET /health.
	yardstickAnswer = `{"version":"0.0.0","name":"Yardstick","description":"answers the same few words to everybody, at once"}`
	// yardstickTable has the columns that refreshing a session reads and writes, and room on its pages for the new
	// version of a row.
	yardstickTable = `create table yardstick (
		id integer primary key, counter bigint not null, at timestamptz not null, agent text not null, ip text not null
	) with (fillfactor = 70)`
)

// httpYardstick returns an HTTP server that does one thing for each request: nothing ("handler"), one prepared SELECT,
// one UPDATE … RETURNING, one bcrypt comparison, or one signature.
func httpYardstick(ctx context.Context, kind, database string) (serve func(net.Listener) error, stop func(), err error) {
	work, err := yardstickWork(ctx, kind, database)
	if err != nil {
		return nil, nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /yardstick", working(work))
	server := &http.Server{Handler: mux}
	return server.Serve, func() { server.Close() }, nil
}

// yardstickWork returns the work of a kind.
func yardstickWork(ctx context.Context, kind, database string) (func(context.Context) error, error) {
	switch kind, detail, _ := strings.Cut(kind, ":"); kind {
	case "handler":
		return func(context.Context) error { return nil }, nil
	case "select", "update":
		config, err := pgxpool.ParseConfig(database)
		if err != nil {
			return nil, err
		}
		config.MaxConns = authPool // as many as the compared daemon has
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if kind == "select" {
			return func(ctx context.Context) error {
				var counter int64
				var at time.Time
				var agent, ip string
				return pool.QueryRow(ctx, `select counter, at, agent, ip from yardstick where id = $1`,
					mathrand.IntN(yardstickRows)).Scan(&counter, &at, &agent, &ip)
			}, err
		}
		return func(ctx context.Context) error {
			var counter int64
			return pool.QueryRow(ctx, `update yardstick set counter = counter + 1, at = $2 where id = $1 returning counter`,
				mathrand.IntN(yardstickRows), time.Now()).Scan(&counter)
		}, err
	case "hash":
		cost, err := strconv.Atoi(detail)
		if err != nil {
			return nil, fmt.Errorf("cost of %q: %w", kind, err)
		}
		hash, err := bcrypt.GenerateFromPassword([]byte(benchPassword), cost)
		return func(context.Context) error { return bcrypt.CompareHashAndPassword(hash, []byte(benchPassword)) }, err
	case "sign":
		return signer(detail)
	}
	return nil, fmt.Errorf("no kind %q", kind)
}

// working answers when work is done.
func working(work func(context.Context) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := work(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, yardstickAnswer)
	})
}

// signer returns work that signs as a token with the algorithm is signed.
func signer(algorithm string) (func(context.Context) error, error) {
	digest := sha256.Sum256([]byte(yardstickAnswer))
	var key crypto.Signer
	var err error
	switch algorithm {
	case "RS256":
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	case "ES256":
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	default:
		err = fmt.Errorf("no algorithm %q", algorithm)
	}
	return func(context.Context) error {
		_, err := key.Sign(rand.Reader, digest[:], crypto.SHA256)
		return err
	}, err
}

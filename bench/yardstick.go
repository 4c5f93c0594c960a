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
	"flag"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/crypto/bcrypt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// runYardstick runs a server that decides nothing. It shows the CPU time that any server in Go needs for the protocol
// or, depending on the flag -kind, for one thing that a daemon has to do for a request. It writes its address as a line
// to out, and serves until ctx ends.
func runYardstick(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("yardstick", flag.ContinueOnError)
	kind := flags.String("kind", "tuned single", "gRPC: plain or tuned with the constant answer to the scenario single, "+
		"multi or unmatched; HTTP: handler, select, update, hash:COST, sign:RS256 or sign:ES256")
	database := flags.String("database", "", "`URL` of a PostgreSQL database with the yardstick's table (select, update)")
	listen := flags.String("listen", "127.0.0.1:0", "`address`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	listener, err := net.Listen("tcp4", *listen)
	if err != nil {
		return fmt.Errorf("yardstick: %w", err)
	}
	defer listener.Close()
	var serve func(net.Listener) error
	var stop func()
	if server, answer, grpc := strings.Cut(*kind, " "); grpc {
		serve, stop, err = grpcYardstick(server, answer)
	} else {
		serve, stop, err = httpYardstick(ctx, *kind, *database)
	}
	if err != nil {
		return fmt.Errorf("yardstick: %w", err)
	}
	fmt.Fprintln(out, listener.Addr())
	defer context.AfterFunc(ctx, stop)()
	if err := serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("yardstick: %w", err)
	}
	return nil
}

// grpcYardstick returns a rate limit service that always gives the same answer.
func grpcYardstick(kind, answer string) (serve func(net.Listener) error, stop func(), err error) {
	create, response := grpcServers[kind], answers[answer]
	if create == nil || response == nil {
		return nil, nil, fmt.Errorf("no kind %q or no answer for the scenario %q", kind, answer)
	}
	server := create(response)
	return server.Serve, server.Stop, nil
}

// grpcServers has two servers of grpc-go: "plain" is the server in its documentation, and "tuned" is the fastest that
// could be made with it.
var grpcServers = map[string]func(*ratelimitv3.RateLimitResponse) *grpc.Server{
	"plain": plainServer, "tuned": tunedServer,
}

// answers are the daemon's answers to the requests of the scenarios, so that daemon and yardstick send as many bytes.
var answers = map[string]*ratelimitv3.RateLimitResponse{
	"single": {OverallCode: okCode, Statuses: []*ratelimitv3.RateLimitResponse_DescriptorStatus{limited}},
	"multi": {OverallCode: okCode, Statuses: []*ratelimitv3.RateLimitResponse_DescriptorStatus{limited, limited,
		limited, limited}},
	"unmatched": {OverallCode: okCode, Statuses: []*ratelimitv3.RateLimitResponse_DescriptorStatus{{Code: okCode}}},
}

const okCode = ratelimitv3.RateLimitResponse_OK

var limited = &ratelimitv3.RateLimitResponse_DescriptorStatus{
	Code: okCode,
	CurrentLimit: &ratelimitv3.RateLimitResponse_RateLimit{
		RequestsPerUnit: 4_000_000_000, Unit: ratelimitv3.RateLimitResponse_RateLimit_DAY,
	},
	LimitRemaining:     3_999_999_990,
	DurationUntilReset: durationpb.New(11 * time.Hour),
}

type plain struct {
	ratelimitv3.UnimplementedRateLimitServiceServer
	answer *ratelimitv3.RateLimitResponse
}

func (p plain) ShouldRateLimit(context.Context, *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	return p.answer, nil
}

func plainServer(answer *ratelimitv3.RateLimitResponse) *grpc.Server {
	server := grpc.NewServer()
	ratelimitv3.RegisterRateLimitServiceServer(server, plain{answer: answer})
	return server
}

// ready is a codec that reads nothing and always writes the same bytes.
type ready struct{ bytes mem.BufferSlice }

func (ready) Name() string                           { return "proto" }
func (ready) Unmarshal(mem.BufferSlice, any) error   { return nil }
func (r ready) Marshal(any) (mem.BufferSlice, error) { return r.bytes, nil }

// tunedServer returns a grpc-go server that does not parse requests, and sends an answer that was encoded in advance.
func tunedServer(answer *ratelimitv3.RateLimitResponse) *grpc.Server {
	// Do not collect garbage below 128 MiB, which the program never reaches, because it allocates next to nothing.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(128 << 20)
	bytes, err := proto.Marshal(answer)
	if err != nil {
		panic(err) // cannot fail: the message is a constant of this file
	}
	server := grpc.NewServer(
		grpc.ForceServerCodecV2(ready{bytes: mem.BufferSlice{mem.SliceBuffer(bytes)}}),
		grpc.NumStreamWorkers(512),
		grpc.ReadBufferSize(64<<10), grpc.WriteBufferSize(64<<10),
		grpc.StaticConnWindowSize(1<<20), grpc.StaticStreamWindowSize(64<<10),
	)
	var request, response struct{}
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: ratelimitv3.RateLimitService_ServiceDesc.ServiceName,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "ShouldRateLimit",
			Handler: func(_ any, _ context.Context, decode func(any) error,
				_ grpc.UnaryServerInterceptor) (any, error) {
				return &response, decode(&request)
			},
		}},
	}, nil)
	return server
}

const (
	yardstickRows = 10_000
	// yardstickAnswer is as long as the answer to GET /health.
	yardstickAnswer = `{"version":"0.0.0","name":"Yardstick","description":"answers the same few words to everybody, at once"}`
	// yardstickTable has the columns that refreshing a session reads and writes, and free space on its pages for the
	// new versions of rows.
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
	mux.HandleFunc("GET /yardstick", func(w http.ResponseWriter, r *http.Request) {
		if err := work(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, yardstickAnswer)
	})
	server := &http.Server{Handler: mux}
	return server.Serve, func() { server.Close() }, nil
}

// yardstickWork returns the function that does the work of a kind of yardstick.
func yardstickWork(ctx context.Context, kind, database string) (func(context.Context) error, error) {
	switch kind, detail, _ := strings.Cut(kind, ":"); kind {
	case "handler":
		return func(context.Context) error { return nil }, nil
	case "select", "update":
		config, err := pgxpool.ParseConfig(database)
		if err != nil {
			return nil, err
		}
		config.MaxConns = authPool // the same number as the daemon to compare with
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

// signer returns a function that signs a digest as the daemon signs a token with the algorithm.
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

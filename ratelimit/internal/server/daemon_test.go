package server

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"gatehouse/ratelimit/internal/counter/memory"
	"gatehouse/ratelimit/internal/h2grpc"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/must"
)

var discard = slog.New(slog.DiscardHandler)

// exampleNow is the clock of all examples: 2023-11-14T22:13:20Z, 40 seconds before a minute's end.
const exampleNow = 1700000000

// rig is the daemon's inside behind real listeners, with a clock that a test sets.
type rig struct {
	service *service.Service
	stats   *stats.Registry
	health  *Health
	client  pb.RateLimitServiceClient
	conn    *grpc.ClientConn
	http    *httptest.Server
}

// native is whether rigs have the native server.
var native = true

// onNative are the tests to which the gRPC server does not matter: HTTP, commands of operators, random cases. Of the
// stores two tell the servers apart, the one in process, which answers at once, and Redis, which native waits for
// without a goroutine.
const onNative = "TestCounters|TestDebug|TestGuard|TestJSON|Random|TestTap_(refusals|stalled)|" +
	"/(sentinel|cluster|" + perSecond + "|memcached)"

// TestMain runs the tests of this package on the native server, then on grpc-go without onNative.
func TestMain(m *testing.M) {
	status := m.Run()
	if flag.Lookup("test.fuzz").Value.String()+flag.Lookup("test.bench").Value.String() == "" {
		native = false
		skip := flag.Lookup("test.skip").Value
		if err := skip.Set(strings.Trim(skip.String()+"|"+onNative, "|")); err != nil {
			panic(err)
		}
		status = max(status, m.Run())
	}
	os.Exit(status)
}

// newRig serves rules (YAML files, the part after "domain: d" if they don't name one) over gRPC and HTTP.
func newRig(t testing.TB, o service.Options, lo limits.Options, files ...string) *rig {
	t.Helper()
	return newRigOn(t, native, o, lo, files...)
}

// newRigOn is newRig on the native server, or on grpc-go.
func newRigOn(t testing.TB, native bool, o service.Options, lo limits.Options, files ...string) *rig {
	t.Helper()
	r := &rig{stats: stats.NewRegistry(stats.Options{}), health: NewHealth()}
	if o.Store == nil {
		o.Store = memory.New(memory.Options{})
	}
	if o.Clock == nil {
		o.Clock = func() time.Time { return time.Unix(exampleNow, 0) }
	}
	if o.Caps == (service.Caps{}) {
		o.Caps = service.Caps{Descriptors: 256, Entries: 64, TextBytes: 64 << 10}
	}
	o.Stats = r.stats
	r.service = service.New(o)
	r.health.Set(Running, true)
	if files != nil {
		r.load(t, lo, files...)
	}

	g := NewFront(GRPCOptions{Native: native, GRPCSettings: GRPCSettings{MaxStreams: 1024, MinPing: 5 * time.Second,
		Reflection: true}, Service: r.service, Health: r.health, Stats: r.stats, Log: discard})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // at once
		g.Shutdown(ctx)
		// A test may end before Serve has begun.
		if err := <-served; err != nil && !errors.Is(err, h2grpc.ErrServerClosed) &&
			!errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	r.http = httptest.NewServer(NewHTTP(HTTPOptions{Service: r.service, Health: r.health, Stats: r.stats, Log: discard,
		HTTPSettings: HTTPSettings{BodyBytes: 1 << 20}}))
	t.Cleanup(r.http.Close)
	r.conn, err = grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must.Succeed(t, err)
	t.Cleanup(func() { r.conn.Close() })
	r.client = pb.NewRateLimitServiceClient(r.conn)
	return r
}

func (r *rig) load(t testing.TB, lo limits.Options, files ...string) {
	t.Helper()
	if lo.NearRatio == 0 {
		lo.NearRatio = 0.8
	}
	lo.Stats = r.stats
	var set []rulefile.File
	for i, text := range files {
		if !strings.Contains(text, "domain:") {
			text = "domain: d\ndescriptors:\n" + text
		}
		set = append(set, rulefile.File{Name: "rules" + string(rune('0'+i)) + ".yaml", Text: []byte(text)})
	}
	rules, _, err := rulefile.Load(context.Background(), set, lo)
	must.Succeed(t, err)
	r.service.SetRules(rules)
	r.stats.Retain(rules.StatsHandles())
}

func (r *rig) ask(t testing.TB, req *pb.RateLimitRequest) *pb.RateLimitResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	resp, err := r.client.ShouldRateLimit(ctx, req)
	must.Succeed(t, err)
	return resp
}

// counters is every non-zero statistic whose name begins with prefix, by the rest of its name.
func (r *rig) counters(prefix string) map[string]int64 {
	m := map[string]int64{}
	r.stats.Each(func(name string, kind stats.Kind, value int64) {
		if rest, ok := strings.CutPrefix(name, prefix); ok && value != 0 && kind == stats.KindCounter {
			m[rest] = value
		}
	})
	return m
}

// req makes a request of its short form: "(k,v)(j,w)|(k,x)" are two descriptors.
func req(domain, descriptors string) *pb.RateLimitRequest {
	r := &pb.RateLimitRequest{Domain: domain}
	for d := range strings.SplitSeq(descriptors, "|") {
		out := &ratelimitpb.RateLimitDescriptor{}
		for e := range strings.SplitSeq(strings.Trim(d, "()"), ")(") {
			key, value, _ := strings.Cut(e, ",")
			out.Entries = append(out.Entries, &ratelimitpb.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		r.Descriptors = append(r.Descriptors, out)
	}
	return r
}

package cli

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"gatehouse/shared/certs/certtest"
	"gatehouse/shared/must"
)

// asked is a server of the protocol that records the last request.
type asked struct {
	pb.UnimplementedRateLimitServiceServer
	request *pb.RateLimitRequest
}

func (a *asked) ShouldRateLimit(_ context.Context, r *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	a.request = r
	return &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OVER_LIMIT,
			Statuses: []*pb.RateLimitResponse_DescriptorStatus{
				{Code: pb.RateLimitResponse_OVER_LIMIT, LimitRemaining: 7}}},
		nil
}

// TestClient_request: which request flags make, in their order, and which of them the client
// prints where it is called as the replaced one.
func TestClient_request(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	server, got := grpc.NewServer(), new(asked)
	pb.RegisterRateLimitServiceServer(server, got)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	address := listener.Addr().String()

	run := func(args ...string) (status int, stdout, stderr string) {
		var out, errs strings.Builder
		status = (Program{}).run(t.Context(),
			append([]string{"ratelimit_client", "-dial_string", address, "-domain", "d"},
				args...), nil, &out, &errs)
		return status, out.String(), errs.String()
	}
	alone := func(args ...string) string {
		var out strings.Builder
		(Program{}).run(t.Context(), append([]string{"ratelimit", "client", "-dial_string", address, "-domain", "d"},
			args...), nil, &out, &out)
		return out.String()
	}
	const answer = `{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT","limitRemaining":7}]}` + "\n"
	f := func(want, flags string, args ...string) {
		t.Helper()
		status, out, errs := run(args...)
		if status != exitOK || errs != "" {
			t.Errorf("%q: exit status %d: %s", args, status, errs)
			return
		}
		request := new(pb.RateLimitRequest)
		must.Succeed(t, protojson.Unmarshal([]byte(want), request))
		if d := cmp.Diff(proto.Message(request), proto.Message(got.request), protocmp.Transform()); d != "" {
			t.Errorf("%q: want (-), got (+):\n%s", args, d)
		}
		flags = strings.ReplaceAll(flags, "ADDRESS", address)
		if shown, response, ok := strings.Cut(out, "response: "); !ok || shown != flags || response == "" {
			t.Errorf("%q prints\n%s\nwant\n%s", args, out, flags)
		}
		if out := alone(args...); !strings.HasPrefix(out, "response: ") {
			t.Errorf("%q prints more than the answer:\n%s", args, out)
		}
		status, out, errs = run(append([]string{"-format", "json"}, args...)...)
		if status != exitOK || out != answer || errs != "" {
			t.Errorf("%q as JSON: exit status %d, %s%s", args, status, out, errs)
		}
	}
	const rest = `Flag: --dial_string="ADDRESS"
Flag: --domain="d"
Flag: --grpc-cert-file=""
Flag: --grpc-key-file=""
Flag: --grpc-server-ca-file=""
Flag: --grpc-use-tls="false"
`
	f(`{"domain":"d","hitsAddend":1,"descriptors":[{"entries":[{"key":"k","value":"v"}]}]}`,
		`Flag: --descriptors="[ <key=k, value=v> ] "`+"\n"+rest, "-descriptors", "k=v")
	f(`{"domain":"d","hitsAddend":3,"descriptors":[{"entries":[{"key":"k","value":"v"}],"limit":{"requestsPerUnit":10,"unit":"MINUTE"}},`+
		`{"entries":[{"key":"k","value":"w"}],"hitsAddend":"0"},{"entries":[{"key":"k","value":"x"}],"hitsAddend":"9223372036854775807","isNegativeHits":true}]}`,
		`Flag: --descriptors="[ <key=k, value=v> ] [ <key=k, value=w> ] [ <key=k, value=x> ] "`+"\n"+
			strings.Replace(rest, "Flag: --grpc-use-tls=\"false\"\n", "Flag: --grpc-use-tls=\"false\"\n"+
				"Flag: --hits=\"3 0 9223372036854775807\"\nFlag: --limit=\"10/minute\"\nFlag: --refund=\"true\"\n", 1),
		"-hits", "3", "-descriptors", "k=v", "-limit", "10/minute", "-descriptors", "k=w", "-hits", "0", "-descriptors",
		"k=x", "-refund", "-hits", "9223372036854775807")
	f(`{"domain":"d","hitsAddend":1,"descriptors":[{"entries":[{"key":"k","value":"a,b=c"}],"hitsAddend":"2"},{"entries":[{"key":"k","value":"v"}]}]}`,
		`Flag: --descriptor_json="{\"entries\":[{\"key\":\"k\",\"value\":\"a,b=c\"}]}"`+"\n"+
			`Flag: --descriptors="[ <key=k, value=v> ] "`+"\n"+rest+"Flag: --hits=\"2\"\n",
		"-descriptor_json", `{"entries":[{"key":"k","value":"a,b=c"}]}`, "-hits", "2", "-descriptors", "k=v")

	g := func(want string, args ...string) {
		t.Helper()
		got.request = nil
		if status, out, errs := run(args...); status != exitUsage || out != "" || got.request != nil ||
			!strings.Contains(errs, want) {
			t.Errorf("%q: exit status %d, %q, %q; no %q", args, status, out, errs, want)
		}
	}
	g("from 1 to 4294967295", "-hits", "0", "-descriptors", "k=v")
	g("from 1 to 4294967295", "-hits", "4294967296", "-descriptors", "k=v")
	g("from 0 to 9223372036854775807", "-descriptors", "k=v", "-hits", "9223372036854775808")
	g("from 0 to 9223372036854775807", "-descriptors", "k=v", "-hits", "-1")
	g("there is none", "-refund", "-descriptors", "k=v")
	g("there is none", "-limit", "1/day", "-descriptors", "k=v")
	g("such as 10/minute", "-descriptors", "k=v", "-limit", "10/fortnight")
	g("no descriptor, such as", "-descriptor_json", "{")
	g("a descriptor without entries", "-descriptor_json", "{}")
	g("want true or false", "-descriptors", "k=v", "-refund=maybe")
	g(`-format is "xml"; allowed are text and json`, "-descriptors", "k=v", "-format", "xml")

	server.Stop()
	if status, out, errs := run("-descriptors", "k=v", "-format", "json"); status != exitFailed || out != "" ||
		!strings.Contains(errs, "request error: ") {
		t.Errorf("without a daemon: exit status %d, %q, %q", status, out, errs)
	}
}

// TestClient_tlsPort: who forgets -grpc-use-tls is told.
func TestClient_tlsPort(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	certificate := certtest.NewCA(t, "ca", time.Hour).IssueServer("localhost").TLS(t)
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&certificate)))
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	var out, errs strings.Builder
	status := (Program{}).run(t.Context(), []string{"ratelimit", "client", "-dial_string", listener.Addr().String(),
		"-domain", "d", "-descriptors", "k=v"}, nil, &out, &errs)
	if status != exitFailed || !strings.Contains(errs.String(), "-grpc-use-tls") {
		t.Errorf("exit status %d, %q, %q", status, out.String(), errs.String())
	}
}

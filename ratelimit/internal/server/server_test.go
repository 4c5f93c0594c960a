package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/memory"
	"gatehouse/ratelimit/internal/decide"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/shared/must"
)

// faulty is the in-process store until do is set.
type faulty struct {
	*memory.Store
	do    func(context.Context) error
	reset func() error // of Reset alone
}

func (f *faulty) Add(ctx context.Context, r *counter.Request) error {
	if f.do != nil {
		return f.do(ctx)
	}
	return f.Store.Add(ctx, r)
}

func (f *faulty) Peek(ctx context.Context, h *counter.Hit) error {
	if f.do != nil {
		return f.do(ctx)
	}
	return f.Store.Peek(ctx, h)
}

func (f *faulty) Reset(ctx context.Context, h *counter.Hit) error {
	if f.reset != nil {
		return f.reset()
	}
	return f.Store.Reset(ctx, h)
}

func newFaulty() *faulty { return &faulty{Store: memory.New(memory.Options{})} }

func (r *rig) post(t testing.TB, method, path, body string) (*http.Response, string) {
	t.Helper()
	return r.postWith(t, method, path, body, http.Header{})
}

func (r *rig) postWith(t testing.TB, method, path, body string, header http.Header) (*http.Response, string) {
	t.Helper()
	in, err := http.NewRequestWithContext(t.Context(), method, r.http.URL+path, strings.NewReader(body))
	must.Succeed(t, err)
	in.Header = header
	resp, err := r.http.Client().Do(in)
	must.Succeed(t, err)
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	must.Succeed(t, err)
	return resp, string(out)
}

// asJSON parses text so that white space, which the library varies on purpose, does not matter.
func asJSON(t testing.TB, text string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return v
}

func TestJSON(t *testing.T) {
	t.Parallel()
	r := newRig(t, service.Options{Headers: &decide.HeaderNames{Limit: "RateLimit-Limit",
		Remaining: "RateLimit-Remaining",
		Reset:     "RateLimit-Reset"}}, limits.Options{},
		short(`
- {key: k, @2/m}
- {key: zero, @0/m}
- {key: aeons, rate_limit: {requests_per_unit: 2, unit: year, unit_multiplier: 4294967295}}
- {key: named, rate_limit: {requests_per_unit: 3, unit: minute, name: shop}}
- {key: u, rate_limit: {unlimited: true}}`))
	f := func(body string, status int, want string) {
		t.Helper()
		resp, got := r.post(t, "POST", "/json", body)
		if resp.StatusCode != status || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("status %d, type %q; want %d and JSON", resp.StatusCode, resp.Header.Get("Content-Type"), status)
		}
		if d := cmp.Diff(asJSON(t, want), asJSON(t, got)); d != "" {
			t.Errorf("want (-), got (+):\n%s", d)
		}
	}
	descriptor := func(key string) string {
		return `{"domain": "d", "descriptors": [{"entries": [{"key": "` + key + `", "value": "v"}]}]}`
	}
	f(descriptor("named"), 200, `{"overallCode": "OK",
		"statuses": [{"code": "OK", "currentLimit": {"name": "shop", "requestsPerUnit": 3, "unit": "MINUTE"}, "limitRemaining": 2, "durationUntilReset": "40s"}],
		"responseHeadersToAdd": [{"key": "RateLimit-Limit", "value": "3"}, {"key": "RateLimit-Remaining", "value": "2"}, {"key": "RateLimit-Reset", "value": "40"}]}`)
	f(descriptor("nothing"), 200, `{"overallCode": "OK", "statuses": [{"code": "OK"}]}`)
	f(descriptor("u"), 200, `{"overallCode": "OK", "statuses": [{"code": "OK", "limitRemaining": 4294967295}]}`)
	f(descriptor("zero"), 429, `{"overallCode": "OVER_LIMIT",
		"statuses": [{"code": "OVER_LIMIT", "currentLimit": {"unit": "MINUTE"}, "durationUntilReset": "40s"}],
		"responseHeadersToAdd": [{"key": "RateLimit-Limit", "value": "0"}, {"key": "RateLimit-Remaining", "value": "0"}, {"key": "RateLimit-Reset", "value": "40"}]}`)
	// The longest window of all ends when no Duration can say.
	f(descriptor("aeons"), 200,
		`{"overallCode": "OK", "statuses": [{"code": "OK", "currentLimit": {"requestsPerUnit": 2, "unit": "YEAR"}, "limitRemaining": 1, "durationUntilReset": "315576000000s"}],
		"responseHeadersToAdd": [{"key": "RateLimit-Limit", "value": "2"}, {"key": "RateLimit-Remaining", "value": "1"}, {"key": "RateLimit-Reset", "value": "315576000000"}]}`)
	// Both spellings of names, numbers as text, null for absent, the newest field.
	f(`{"domain": "d", "hits_addend": 2, "descriptors": [{"entries": [{"key": "k", "value": "v"}], "hitsAddend": "1", "limit": null, "is_negative_hits": false}]}`,
		200, `{"overallCode": "OK", "statuses": [{"code": "OK", "currentLimit": {"requestsPerUnit": 2, "unit": "MINUTE"}, "limitRemaining": 1, "durationUntilReset": "40s"}],
		"responseHeadersToAdd": [{"key": "RateLimit-Limit", "value": "2"}, {"key": "RateLimit-Remaining", "value": "1"}, {"key": "RateLimit-Reset", "value": "40"}]}`)
	f(`{"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "v"}], "isNegativeHits": true}]}`,
		200, `{"overallCode": "OK", "statuses": [{"code": "OK", "currentLimit": {"requestsPerUnit": 2, "unit": "MINUTE"}, "limitRemaining": 2, "durationUntilReset": "40s"}],
		"responseHeadersToAdd": [{"key": "RateLimit-Limit", "value": "2"}, {"key": "RateLimit-Remaining", "value": "2"}, {"key": "RateLimit-Reset", "value": "40"}]}`)
}

// Retry-After and the headers of the draft are fields of the HTTP answer too; those of LIMIT_*_HEADER are not.
func TestJSON_headers(t *testing.T) {
	t.Parallel()
	f := func(o service.Options, body string, want http.Header) {
		t.Helper()
		o.RetryAfter = true
		r := newRig(t, o, limits.Options{}, short(`[{key: k, @2/m}, {key: zero, @0/m}]`))
		resp, _ := r.post(t, "POST", "/json",
			`{"domain": "d", "descriptors": [{"entries": [{"key": "`+body+`", "value": "v"}]}]}`)
		for _, name := range []string{"Date", "Content-Length", "Content-Type"} {
			resp.Header.Del(name)
		}
		if d := cmp.Diff(want, resp.Header); d != "" {
			t.Errorf("want (-), got (+):\n%s", d)
		}
	}
	draft := service.Options{DraftHeaders: true}
	legacy := service.Options{Headers: &decide.HeaderNames{Limit: "A", Remaining: "B", Reset: "C"}}
	f(draft, "k", http.Header{"Ratelimit-Policy": {`"2-per-minute";q=2;w=60`},
		"Ratelimit": {`"2-per-minute";r=1;t=40`}})
	f(draft, "zero", http.Header{"Ratelimit-Policy": {`"0-per-minute";q=0;w=60`},
		"Ratelimit":   {`"0-per-minute";r=0;t=40`},
		"Retry-After": {"40"}})
	f(draft, "nothing", http.Header{})
	f(legacy, "k", http.Header{})
	f(legacy, "zero", http.Header{"Retry-After": {"40"}})
}

func TestJSON_refusals(t *testing.T) {
	t.Parallel()
	r := newRig(t, service.Options{}, limits.Options{}, short(`[{key: k, @2/m}]`))
	f := func(method, body string, status int, code, part string) {
		t.Helper()
		resp, got := r.post(t, method, "/json", body)
		if resp.StatusCode != status {
			t.Errorf("%s %.60s: status %d, want %d", method, body, resp.StatusCode, status)
		}
		if code == "" {
			return
		}
		var reason struct{ Code, Message string }
		if err := json.Unmarshal([]byte(got), &reason); err != nil || reason.Code != code ||
			!strings.Contains(reason.Message, part) {
			t.Errorf("%s %.60s: body %q, want code %s and %q", method, body, got, code, part)
		}
	}
	f("POST", ``, 400, "INVALID_ARGUMENT", `the body is empty; want {"domain"`)
	f("POST", " \n", 400, "INVALID_ARGUMENT", "the body is empty")
	f("POST", `{`, 400, "INVALID_ARGUMENT", "the body is no RateLimitRequest: unexpected EOF")
	f("POST", `{"domain": "d", "surprise": 1}`, 400, "INVALID_ARGUMENT", "surprise")
	f("POST", `{"domain": "d", "domain": "e"}`, 400, "INVALID_ARGUMENT", "domain")
	f("POST", `{"domain": "d"} trailing`, 400, "INVALID_ARGUMENT", "")
	f("POST", `{"descriptors": [{}]}`, 400, "INVALID_ARGUMENT", "rate limit domain must not be empty")
	f("POST", `{"domain": "d"}`, 400, "INVALID_ARGUMENT", "rate limit descriptor list must not be empty")
	f("POST", `{"domain": "d", "descriptors": [{"limit": {"unit": "FORTNIGHT"}}]}`, 400, "INVALID_ARGUMENT",
		"FORTNIGHT")
	f("POST", `{"domain": "d", "descriptors": [{"limit": {"requestsPerUnit": 1}}]}`, 400, "INVALID_ARGUMENT",
		"limit has unit 0")
	f("POST", `{"domain": "`+strings.Repeat("x", 1<<20)+`"}`, 413, "RESOURCE_EXHAUSTED", "1048576")
	f("GET", ``, 405, "UNIMPLEMENTED", "/json takes POST, not GET")
	f("PUT", `{}`, 405, "UNIMPLEMENTED", "/json takes POST, not PUT")
	if resp, _ := r.post(t, "GET", "/json", ""); resp.Header.Get("Allow") != "POST" {
		t.Errorf("Allow: %q", resp.Header.Get("Allow"))
	}
	for path, why := range map[string]string{"/json/": "a trailing slash",
		"/debug/pprof/": "profiles on the public port",
		"/":             "nothing"} {
		resp, body := r.post(t, "POST", path, "{}")
		if resp.StatusCode != 404 || body != `{"code":"NOT_FOUND","message":"there are /json and /healthcheck here"}`+
			"\n" {
			t.Errorf("%s (%s) answers %d %q", path, why, resp.StatusCode, body)
		}
	}
	if got := r.counters("ratelimit_server.json.total_requests"); got[""] != 11 {
		t.Errorf("%v requests counted, want 11", got)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	store := newFaulty()
	r := newRig(t, service.Options{Store: store}, limits.Options{}, short(`[{key: k, @2/m}]`))
	f := func(in *pb.RateLimitRequest, code codes.Code, msg string, httpStatus int) {
		t.Helper()
		_, err := r.client.ShouldRateLimit(t.Context(), in)
		if status.Code(err) != code || status.Convert(err).Message() != msg {
			t.Errorf("gRPC: %v, want %s %q", err, code, msg)
		}
		body, _ := json.Marshal(map[string]any{"domain": in.Domain,
			"descriptors": []any{map[string]any{"entries": []any{map[string]string{"key": "k", "value": "v"}}}}})
		if len(in.Descriptors) == 0 {
			body = []byte(`{"domain": "` + in.Domain + `"}`)
		}
		if resp, _ := r.post(t, "POST", "/json", string(body)); resp.StatusCode != httpStatus {
			t.Errorf("HTTP: %d, want %d", resp.StatusCode, httpStatus)
		}
	}
	f(req("", "(k,v)"), codes.InvalidArgument, "rate limit domain must not be empty", 400)
	f(&pb.RateLimitRequest{Domain: "d"}, codes.InvalidArgument, "rate limit descriptor list must not be empty", 400)
	secret := "dial tcp 10.1.2.3:6379"
	store.do = func(context.Context) error { return fmt.Errorf("%s: %w", secret, counter.ErrUnavailable) }
	f(req("d", "(k,v)"), codes.Unavailable, "rate limit store is unavailable", 503)
	store.do = func(context.Context) error { return fmt.Errorf("%s: %w", secret, counter.ErrTimeout) }
	f(req("d", "(k,v)"), codes.DeadlineExceeded, "rate limit store did not answer in time", 503)
	store.do = func(context.Context) error { panic("a bug") }
	f(req("d", "(k,v)"), codes.Internal, "internal error", 500)
	store.do = nil
	if got := r.ask(t, req("d", "(k,v)")); got.OverallCode != pb.RateLimitResponse_OK {
		t.Errorf("after a panic: %v", got)
	}
	if got := r.counters("ratelimit.service.call.should_rate_limit."); got["panic"] != 2 ||
		got["redis_error"] != 4 || got["service_error"] != 4 {
		t.Errorf("statistics %v", got)
	}
}

func TestErrors_withoutRules(t *testing.T) {
	t.Parallel()
	r := newRig(t, service.Options{}, limits.Options{})
	_, err := r.client.ShouldRateLimit(t.Context(), req("d", "(k,v)"))
	if status.Code(err) != codes.Unavailable || status.Convert(err).Message() != "no rate limit configuration loaded" {
		t.Errorf("%v", err)
	}
	if resp, _ := r.post(t, "POST", "/json", `{"domain": "d", "descriptors": [{}]}`); resp.StatusCode != 400 {
		t.Errorf("HTTP %d", resp.StatusCode)
	}
}

// A message in many HTTP/2 frames, and one that is no protobuf.
func TestWire(t *testing.T) {
	t.Parallel()
	r := newRig(t, service.Options{}, limits.Options{}, short(`[{key: k, @2/m}]`))
	long := strings.Repeat("x", 60<<10)
	in := req("d", "(k,"+long+")|(k,"+long+"y)|(k,v)")
	for range 3 {
		r.ask(t, in)
	}
	if got := describe(r.ask(t, in)); !cmp.Equal(got,
		[]string{"OVER_LIMIT", "OVER_LIMIT 0/2 MINUTE 40s", "OVER_LIMIT 0/2 MINUTE 40s", "OVER_LIMIT 0/2 MINUTE 40s"}) {
		t.Error(got)
	}
	var out rawMessage
	err := r.conn.Invoke(t.Context(), "/"+serviceName+"/ShouldRateLimit", rawMessage("\xff\xff"), &out,
		grpc.ForceCodec(rawCodec{}))
	if status.Code(err) != codes.Internal {
		t.Errorf("malformed protobuf: %v, want INTERNAL", err)
	}
	err = r.conn.Invoke(t.Context(), "/"+serviceName+"/ShouldRateLimit", rawMessage(make([]byte, 5<<20)), &out,
		grpc.ForceCodec(rawCodec{}))
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("5 MiB: %v, want RESOURCE_EXHAUSTED", err)
	}
}

type rawMessage []byte

type rawCodec struct{}

func (rawCodec) Name() string                  { return "proto" }
func (rawCodec) Marshal(v any) ([]byte, error) { return v.(rawMessage), nil }
func (rawCodec) Unmarshal(b []byte, v any) error {
	*v.(*rawMessage) = append(rawMessage(nil), b...)
	return nil
}

// Concurrent calls share pooled exchanges; each must get its own answer.
func TestConcurrentCalls_ownAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t, service.Options{}, limits.Options{}, short(`[{key: k, @1000000/m}]`), "domain: other\n")
	errs := make(chan error)
	const callers = 16
	for i := range callers {
		go func() {
			errs <- func() error {
				for n := range 200 {
					in := req("d", fmt.Sprintf("(k,caller%d)", i))
					for range i {
						in.Descriptors = append(in.Descriptors, req("d", "(none,x)").Descriptors...)
					}
					got, err := r.client.ShouldRateLimit(context.Background(), in)
					if err != nil {
						return err
					}
					if len(got.Statuses) != i+1 || got.Statuses[0].LimitRemaining != uint32(1000000-n-1) {
						return fmt.Errorf("caller %d, call %d: %v", i, n, got)
					}
				}
				return nil
			}()
		}()
	}
	for range callers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	r := newRig(t, service.Options{}, limits.Options{}, short(`[{key: k, @2/m}]`))
	client := healthpb.NewHealthClient(r.conn)
	expect := func(want healthpb.HealthCheckResponse_ServingStatus, httpStatus int, body string) {
		t.Helper()
		for _, name := range []string{"", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"} {
			got, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
			if err != nil || got.Status != want {
				t.Errorf("%q: %v %v, want %v", name, got, err, want)
			}
		}
		resp, got := r.post(t, "GET", "/healthcheck", "")
		if resp.StatusCode != httpStatus || got != body {
			t.Errorf("/healthcheck: %d %q, want %d %q", resp.StatusCode, got, httpStatus, body)
		}
	}
	expect(healthpb.HealthCheckResponse_SERVING, 200, "OK")
	r.health.Set(Rules, false)
	expect(healthpb.HealthCheckResponse_NOT_SERVING, 500, "")
	r.health.Set(Rules, true)
	expect(healthpb.HealthCheckResponse_SERVING, 200, "OK")
	r.health.Set(Running, false)
	expect(healthpb.HealthCheckResponse_NOT_SERVING, 500, "")
	if _, err := client.Check(t.Context(),
		&healthpb.HealthCheckRequest{Service: "nobody"}); status.Code(err) != codes.NotFound {
		t.Errorf("unknown service: %v", err)
	}
	if got := r.counters("ratelimit_server.Check.total_requests"); got[""] != 13 {
		t.Errorf("%v health checks counted, want 13", got)
	}
}

// A client that watches health must not hold up a graceful stop.
func TestHealth_watchEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, service.Options{}, limits.Options{}, short(`[{key: k, @2/m}]`))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	watch, err := healthpb.NewHealthClient(r.conn).Watch(ctx, &healthpb.HealthCheckRequest{})
	must.Succeed(t, err)
	if got, err := watch.Recv(); err != nil || got.Status != healthpb.HealthCheckResponse_SERVING {
		t.Fatal(got, err)
	}
	r.health.Set(Running, false)
	if got, err := watch.Recv(); err != nil || got.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Fatal(got, err)
	}
	r.health.EndStreams()
	if _, err := watch.Recv(); err == nil || errors.Is(err, io.EOF) || ctx.Err() != nil {
		t.Errorf("the stream ended with %v", err)
	}
}

// Nor must one that has a reflection stream open, whatever it waits for.
func TestReflection_ends(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, false, service.Options{}, limits.Options{}, short(`[{key: k, @2/m}]`))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	stream, err := reflectionpb.NewServerReflectionClient(r.conn).ServerReflectionInfo(ctx)
	must.Succeed(t, err)
	list := &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}
	must.Succeed(t, stream.Send(list))
	if got, err := stream.Recv(); err != nil || len(got.GetListServicesResponse().GetService()) == 0 {
		t.Fatal(got, err)
	}
	r.health.EndStreams()
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ended with %v", err)
	}
}

func TestReflection(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, false, service.Options{}, limits.Options{}, short(`[{key: k, @2/m}]`))
	stream, err := reflectionpb.NewServerReflectionClient(r.conn).ServerReflectionInfo(t.Context())
	must.Succeed(t, err)
	must.Succeed(t, stream.Send(
		&reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{
				FileContainingSymbol: serviceName}}))
	got, err := stream.Recv()
	if err != nil || len(got.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("%v %v, want the service's file", got, err)
	}
}

func TestDebug(t *testing.T) {
	t.Parallel()
	r := newRig(t, service.Options{}, limits.Options{})
	loader := service.NewLoader(r.service, limits.Options{Settings: limits.Settings{NearRatio: 0.8}}, discard,
		func(int) {})
	r.http.Close()
	r.http = httptest.NewServer(NewDebug(DebugOptions{Service: r.service, Loader: loader, Stats: r.stats, Log: discard,
		Version: "ratelimit v9"}))
	t.Cleanup(r.http.Close)
	get := func(path string, status int, parts ...string) string {
		t.Helper()
		resp, body := r.post(t, "GET", path, "")
		if resp.StatusCode != status {
			t.Errorf("%s: %d, want %d", path, resp.StatusCode, status)
		}
		for _, part := range parts {
			if !strings.Contains(body, part) {
				t.Errorf("%s: no %q in\n%s", path, part, body)
			}
		}
		return body
	}
	if body := get("/rlconfig", 200); body != "" {
		t.Errorf("/rlconfig before the first rules: %q", body)
	}
	get("/explain?domain=d&descriptor=k=v", 503, "no rate limit configuration loaded")
	must.Succeed(t, loader.Load(context.Background(), []rulefile.File{{Name: "shop.yaml",
		Text: []byte("domain: d\ndescriptors: " + short(`[{key: k, @2/m}]`))}}))
	if err := loader.Load(context.Background(),
		[]rulefile.File{{Name: "shop.yaml", Text: []byte("domian: d\n")}}); err == nil {
		t.Fatal("a bad set was taken")
	}
	r.ask(t, req("d", "(k,v)"))
	r.stats.Counter("huge").Add(1 << 63)

	if index := strings.Split(get("/", 200, "/debug/pprof/: ", "/debug/pprof/profile: ", "/debug/pprof/trace: ",
		"/explain: ", "/rlconfig: ", "/stats: "), "\n"); !slices.IsSorted(index[:len(index)-1]) {
		t.Errorf("the index is not sorted by path: %q", index)
	}
	for _, path := range []string{"/anything", "/stats/", "/xds", "/debug"} {
		get(path, 404, `"NOT_FOUND"`, "/ lists the pages")
	}
	method := func(method, path string, status int, allow string) {
		t.Helper()
		resp, body := r.post(t, method, path, "")
		if resp.StatusCode != status || resp.Header.Get("Allow") != allow || method == "HEAD" && body != "" {
			t.Errorf("%s %s: %d, Allow %q, %q; want %d and %q", method, path, resp.StatusCode,
				resp.Header.Get("Allow"), body, status, allow)
		}
	}
	for _, path := range []string{"/", "/explain?domain=d&descriptor=k=v", "/rlconfig", "/stats"} {
		method("HEAD", path, 200, "")
		for _, m := range []string{"POST", "PUT", "DELETE", "OPTIONS"} {
			method(m, path, 405, "GET, HEAD")
		}
	}
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile?seconds=1",
		"/debug/pprof/trace?seconds=0.01"} {
		method("DELETE", path, 405, "GET, HEAD, POST")
	}
	method("HEAD", "/debug/pprof/", 200, "")
	method("POST", "/debug/pprof/goroutine", 200, "")
	method("POST", "/anything", 404, "")
	get("/?format=json", 200, `"ratelimit v9"`, `"/stats"`)
	get("/rlconfig", 200, "# refused at 20", "and not in force:\n# shop.yaml:1:1: ",
		"\nd.k: unit=MINUTE requests_per_unit=2, shadow_mode: false, quota_mode: false\n")
	get("/rlconfig?format=json", 200, `"generation": 1`, `"shop.yaml"`, `"error": "`, `domian`, `"error_at": "`,
		`"loaded_at": "`, `"rules": [`)
	get("/stats", 200, "ratelimit.service.rate_limit.d.k.total_hits: 1\n", "ratelimit.service.config_load_error: 1\n",
		"ratelimit.service.config_rejected: 1\n", "ratelimit.service.rate_limit.d.k.over_limit: 0\n",
		"huge: 9223372036854775808\n")
	get("/stats?format=json", 200, `"ratelimit.service.rate_limit.d.k.total_hits": 1`, `"huge": 9223372036854775808`)
	get("/explain?domain=d&descriptor=k=v", 200, "counter now: 1 of 2, window ends in 40 s\n", "d_k_v_1699999980")
	get("/explain?domain=d&descriptor=k=v&format=json", 200, `"value": 1`, `"outcome": "limited"`)
	one := get("/explain?domain=d&descriptor=k=v", 200)
	get("/explain?domain=d&descriptor=k=v&descriptor=x=v", 200, one+"\ndomain      d\ndescriptor  (x, v)\n",
		"\n\nrequest\nleft        descriptor 1: 2 per MINUTE\n")
	get("/explain?domain=d&descriptor=k=v&descriptor=x=v&format=json", 200, "{\n  \"descriptors\": [\n    {\n",
		`"value": 1`, `"outcome": "no_match"`, "  ],\n  \"request\": {\n    \"left\": [\n      1\n    ]\n  }\n}\n")
	get("/explain?domain=d"+strings.Repeat("&descriptor=k=v", 257), 400, "257 descriptors, at most 256")
	get("/explain?domain=d&descriptor=k=v&descriptor=x", 400, "key=value")
	get("/explain?domain=d&descriptor=x=v", 200)
	get("/explain?domain=d&descriptor=x", 400, "key=value")
	get("/explain", 400, "domain is missing")
	get("/debug/pprof/", 200, "goroutine")
	get("/debug/pprof/heap?debug=1", 200, "heap profile")
	get("/debug/pprof/cmdline", 404)
	if got := r.counters("ratelimit.service.rate_limit.d.k.total"); got["_hits"] != 1 {
		t.Errorf("explaining counted: %v", got)
	}
}

// A unix socket serves the same.
func TestUnixSocket(t *testing.T) {
	t.Parallel()
	r := newRig(t, service.Options{}, limits.Options{}, short(`[{key: k, @2/m}]`))
	path := t.TempDir() + "/gate.sock"
	l, err := net.Listen("unix", path)
	must.Succeed(t, err)
	g := NewGRPC(GRPCOptions{Service: r.service, Health: NewHealth(), Stats: r.stats, Log: discard})
	go g.Serve(l)
	defer g.Stop()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must.Succeed(t, err)
	defer conn.Close()
	if _, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), req("d", "(k,v)")); err != nil {
		t.Error(err)
	}
	must.Succeed(t, must.ErrOf(reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())))
}

// FuzzJSON holds that no body makes the handler fail in any way but 200, 400 or 429.
func FuzzJSON(f *testing.F) {
	r := newRig(f, service.Options{}, limits.Options{},
		short(`[{key: k, @2/m}, {key: w, value: "a*", @1/m, share_threshold: true}]`))
	f.Add(`{"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "v"}]}]}`)
	f.Add(`{"domain": "d", "hitsAddend": 4294967295, "descriptors": [{"entries": [{"key": "w", "value": "ab"}], "hitsAddend": "9223372036854775807", "isNegativeHits": true}]}`)
	f.Add(`{"domain": "x", "descriptors": [{"limit": {"requestsPerUnit": 1, "unit": 7}, "entries": []}, {}]}`)
	f.Add(`[]`)
	h := NewHTTP(HTTPOptions{Service: r.service, Health: r.health, Stats: r.stats, Log: discard,
		HTTPSettings: HTTPSettings{BodyBytes: 1 << 16}})
	f.Fuzz(func(t *testing.T, body string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("POST", "/json", strings.NewReader(body)))
		switch w.Code {
		case 200, 429:
			var out pb.RateLimitResponse
			if err := protojson.Unmarshal(w.Body.Bytes(), &out); err != nil || len(out.Statuses) == 0 {
				t.Errorf("%d with %q: %v", w.Code, w.Body, err)
			}
		case 400, 413:
			var reason struct{ Code, Message string }
			if err := json.Unmarshal(w.Body.Bytes(), &reason); err != nil || reason.Code == "" || reason.Message == "" {
				t.Errorf("%d with %q: %v", w.Code, w.Body, err)
			}
		default:
			t.Errorf("%d with %q", w.Code, w.Body)
		}
	})
}

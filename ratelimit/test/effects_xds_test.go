package test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"gatehouse/ratelimit/internal/source/xds/xdstest"
	"gatehouse/shared/await"
	"gatehouse/shared/certs/certtest"
	"gatehouse/shared/must"
)

// follow are the settings of a daemon that takes its rules from there, with more after them. It tries
// again soon.
func follow(address string, more ...string) map[string]string {
	return with(map[string]string{
		"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": address,
		"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL": "20ms", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL": "20ms",
		"XDS_CLIENT_BACKOFF_MAX_INTERVAL": "50ms",
	}, "", more...)
}

// perYear is a resource of domain d that limits the key k.
func perYear(n uint32) *rlsconf.RateLimitConfig {
	return &rlsconf.RateLimitConfig{Name: "r", Domain: "d", Descriptors: []*rlsconf.RateLimitDescriptor{
		{Key: "k", RateLimit: &rlsconf.RateLimitPolicy{Unit: 6, RequestsPerUnit: n}},
	}}
}

// The life of rules from a control plane: the wait for the first set, an update, an error that changes nothing, the
// server's absence, SIGHUP, and none any more.
var _ = effect("CONFIG_TYPE", func(t *testing.T) {
	plane := xdstest.New(t)
	p := launch(t, `[{key: k, @1/y}]`, follow(plane.Addr)) // the file is not read
	p.log.await(t, `"xds: connected"`, nil)
	if strings.Contains(p.log.text(), `"ready"`) {
		t.Error("ready without rules")
	}
	plane.Set("1", perYear(3))
	var ready struct{ GRPC, HTTP, Debug string }
	p.log.await(t, `"ready"`, &ready)
	p.grpc, p.http, p.debug = ready.GRPC, ready.HTTP, ready.Debug
	c := p.dial(t)
	limit := func() uint32 { return decide1(t, c, "k", "v").Statuses[0].CurrentLimit.GetRequestsPerUnit() }
	if got := limit(); got != 3 {
		t.Errorf("limit %d, want 3", got)
	}
	plane.Set("2", perYear(4))
	await.True(t, "the update", func() bool { return limit() == 4 })

	bad := perYear(5)
	bad.Descriptors = append(bad.Descriptors, &rlsconf.RateLimitDescriptor{Key: "k"},
		&rlsconf.RateLimitDescriptor{Value: "v"})
	plane.Set("3", bad)
	const reason = `r: domain "d", descriptor k: this descriptor is already configured in r (descriptors[0])`
	await.True(t, "the refusal with both reasons", func() bool {
		said := plane.Requests()[len(plane.Requests())-1]
		return said.VersionInfo == "2" && strings.Contains(said.ErrorDetail.GetMessage(), reason) &&
			strings.Contains(said.ErrorDetail.GetMessage(), "descriptors[2] needs a key, such as key: remote_address")
	})
	if got := limit(); got != 4 {
		t.Errorf("after a refused set the limit is %d, want 4", got)
	}
	if _, body := get(t, p.debug+"/rlconfig"); !strings.Contains(body, "# "+reason) ||
		!strings.Contains(body, "d.k: unit=YEAR requests_per_unit=4,") {
		t.Errorf("/rlconfig: %s", body)
	}
	if _, body := get(t, p.debug+"/explain?domain=d&descriptor=k=v"); !strings.Contains(body,
		"k (r) decides: 4 per YEAR") {
		t.Errorf("/explain: %s", body)
	}
	var state struct {
		Connected     bool   `json:"connected"`
		Version       string `json:"version"`
		NackedVersion string `json:"nacked_version"`
	}
	if _, body := get(t, p.debug+"/xds?format=json"); json.Unmarshal([]byte(body), &state) != nil ||
		!state.Connected || state.Version != "2" || state.NackedVersion != "3" {
		t.Errorf("/xds: %s", body)
	}
	stats := func() map[string]int64 {
		var m map[string]int64
		_, body := get(t, p.debug+"/stats?format=json")
		json.Unmarshal([]byte(body), &m)
		return m
	}
	s := stats()
	if s["ratelimit.service.config_load_success"] != 2 || s["ratelimit.service.config_load_error"] != 1 ||
		s["ratelimit.service.config_rejected"] != 1 {
		t.Errorf("loads: %v", s)
	}

	plane.Kill()
	await.True(t, "the server is missed", func() bool { return stats()["ratelimit.xds.connected"] == 0 })
	if got := limit(); got != 4 {
		t.Errorf("without a server the limit is %d, want 4", got)
	}
	plane.Set("4", perYear(6))
	plane.Serve()
	await.True(t, "the set of the server that returned", func() bool { return limit() == 6 })
	if s := stats(); s["ratelimit.service.config_rejected"] != 0 {
		t.Errorf("still rejected: %v", s)
	}
	streams := len(plane.Streams())
	must.Succeed(t, p.Signal(syscall.SIGHUP))
	await.True(t, "SIGHUP begins another stream", func() bool { return len(plane.Streams()) > streams })

	plane.Set("5")
	await.True(t, "no limit any more", func() bool { return decide1(t, c, "k", "v").Statuses[0].CurrentLimit == nil })
	must.Succeed(t, p.Stop(time.Minute))
})

// Without a control plane a daemon waits and can be stopped, or serves without rules when configured to.
func TestXDS_withoutServer(t *testing.T) {
	t.Parallel()
	p := launch(t, "", follow("127.0.0.1:1"))
	p.log.await(t, "the control plane can't be reached", nil)
	must.Succeed(t, p.Stop(time.Minute))
	plane := xdstest.New(t)
	plane.Kill()
	p = start(t, "", follow(plane.Addr, "FORCE_START_WITHOUT_INITIAL_CONFIG", "true",
		"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true"))
	resp, err := http.Post("http://"+p.http+"/json", "application/json",
		strings.NewReader(`{"domain":"d","descriptors":[{}]}`))
	must.Succeed(t, err)
	resp.Body.Close()
	if code, _ := get(t, p.http+"/healthcheck"); resp.StatusCode != 400 || code != 500 {
		t.Errorf("without rules: /json %d, /healthcheck %d", resp.StatusCode, code)
	}
	p.log.await(t, "no rules yet: every decision is UNAVAILABLE until a first valid set is loaded", nil)
	awaiting := func() (gauge int64, page string) {
		_, page = get(t, p.debug+"/xds")
		return stat(t, p, "ratelimit.xds.awaiting_first_set"), page
	}
	if gauge, page := awaiting(); gauge != 1 || !strings.Contains(page, "nothing yet: every decision is UNAVAILABLE") {
		t.Errorf("without rules: awaiting_first_set %d, /xds:\n%s", gauge, page)
	}
	plane.Set("1", perYear(3))
	plane.Serve()
	await.True(t, "healthy with rules", func() bool { code, _ := get(t, p.http+"/healthcheck"); return code == 200 })
	await.True(t, "no longer awaiting", func() bool {
		gauge, page := awaiting()
		return gauge == 0 && !strings.Contains(page, "UNAVAILABLE")
	})
	plane.Set("2")
	await.True(t, "unhealthy without a domain",
		func() bool { code, _ := get(t, p.http+"/healthcheck"); return code == 500 })
}

// TestXDS_waitsForGoodRules: a refused first set does not end the wait.
func TestXDS_waitsForGoodRules(t *testing.T) {
	t.Parallel()
	plane := xdstest.New(t)
	plane.Set("1", &rlsconf.RateLimitConfig{Name: "r"})
	p := launch(t, "", follow(plane.Addr))
	p.log.await(t, "there are no rules yet", nil)
	await.True(t, "the refusal", func() bool { return len(plane.Requests()) > 1 })
	if said := plane.Requests()[1]; said.VersionInfo != "" ||
		said.ErrorDetail.GetCode() != int32(codes.InvalidArgument) ||
		said.ErrorDetail.GetMessage() != "r: domain is missing or empty; write the name that requests have, such as domain: shop" {
		t.Errorf("said %v", said)
	}
	if strings.Contains(p.log.text(), `"ready"`) {
		t.Error("ready without rules")
	}
	plane.Set("2", perYear(3))
	p.log.await(t, `"ready"`, nil)
}

// What grpc-go logs by itself comes as lines of the daemon's log: here, that a server refuses pings.
func TestXDS_grpcLog(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f := http2.NewFramer(conn, conn)
			f.WriteSettings()
			io.ReadFull(conn, make([]byte, len(http2.ClientPreface)))
			for { // until the first request is there
				if frame, err := f.ReadFrame(); err != nil || frame.Header().Type == http2.FrameData {
					break
				}
			}
			f.WriteGoAway(1, http2.ErrCodeEnhanceYourCalm, []byte("too_many_pings"))
			conn.Close()
		}
	}()
	p := launch(t, "", follow(l.Addr().String()))
	p.log.await(t, `"level":"warning","@message":"grpc: `, nil)
	p.log.await(t, "the server wants fewer pings", nil)
	must.Succeed(t, p.Stop(time.Minute))
	for line := range strings.Lines(p.log.text()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("not a line of the log: %s", line)
		}
	}
}

var _ = effect("CONFIG_GRPC_XDS_NODE_ID", func(t *testing.T) {
	plane := xdstest.New(t)
	launch(t, "", follow(plane.Addr, "CONFIG_GRPC_XDS_NODE_ID", "gate-7"))
	launch(t, "", follow(plane.Addr))
	ids := []string{plane.Request(0).Node.GetId(), plane.Request(1).Node.GetId()}
	if slices.Sort(ids); !slices.Equal(ids, []string{"default", "gate-7"}) {
		t.Errorf("ids %q", ids)
	}
})

var _ = effect("CONFIG_GRPC_XDS_NODE_METADATA", func(t *testing.T) {
	plane := xdstest.New(t)
	p := launch(t, "", follow(plane.Addr, "CONFIG_GRPC_XDS_NODE_METADATA", "zone=a=b, rack=7,odd"))
	fields := plane.Request(0).Node.GetMetadata().GetFields()
	if len(fields) != 2 || fields["zone"].GetStringValue() != "a=b" || fields["rack"].GetStringValue() != "7" {
		t.Errorf("metadata %v", fields)
	}
	p.log.await(t, `is no key=value and is left out`, nil)
})

var _ = effect("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", func(t *testing.T) {
	plane := xdstest.New(t)
	p := launch(t, "", follow(plane.Addr, "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
		"Authorization:Bearer a:b=,x-key:v", "LOG_LEVEL", "trace"))
	plane.Request(0)
	h := plane.Headers()[0]
	if !slices.Equal(h.Get("authorization"), []string{"Bearer a:b="}) || !slices.Equal(h.Get("x-key"), []string{"v"}) {
		t.Errorf("headers %v", h)
	}
	if strings.Contains(p.log.text(), "Bearer") {
		t.Error("the log holds a header's value")
	}
})

// pauses are the pauses that the daemon announced so far after what the message says, in order, and when
// it did, just before each.
func (p *process) pauses(after string) (all []time.Duration, at []time.Time) {
	s := bufio.NewScanner(strings.NewReader(p.log.text()))
	for s.Scan() {
		var line struct {
			At      time.Time `json:"@timestamp"`
			Message string    `json:"@message"`
			Again   string    `json:"again_in"`
		}
		if json.Unmarshal(s.Bytes(), &line) == nil && line.Again != "" && strings.Contains(line.Message, after) {
			if d, err := time.ParseDuration(line.Again); err == nil {
				all, at = append(all, d), append(at, line.At)
			}
		}
	}
	return all, at
}

// awaitPauses waits for n of them.
func (p *process) awaitPauses(t testing.TB, n int, after string) []time.Duration {
	t.Helper()
	var all []time.Duration
	await.True(t, "pauses", func() bool { all, _ = p.pauses(after); return len(all) >= n })
	return all[:n]
}

const streamBroke = "the stream broke"

const ms = time.Millisecond

// breakable is a control plane that ends every stream from when breakNow is called.
func breakable(t *testing.T) (plane *xdstest.Plane, breakNow func()) {
	broken, breakNow := context.WithCancel(t.Context())
	return xdstest.New(t,
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
			handler grpc.StreamHandler) error {
			done := make(chan error, 1)
			if broken.Err() == nil {
				go func() { done <- handler(srv, stream) }()
			}
			select {
			case err := <-done:
				return err
			case <-broken.Done():
				return status.Error(codes.Unavailable, "not now")
			}
		})), breakNow
}

// brokenLater is a daemon that has rules, and whose streams break from then on.
func brokenLater(t *testing.T, more ...string) *process {
	t.Helper()
	plane, breakNow := breakable(t)
	plane.Set("1", perYear(3))
	p := start(t, "", follow(plane.Addr, more...))
	plane.Request(1) // its ACK
	breakNow()
	return p
}

// No pause is longer than the maximum, jittered or not, so that those here are 10 to 20 ms, and differ.
var _ = effect("XDS_CLIENT_BACKOFF_JITTER", func(t *testing.T) {
	f := func(jitter string, differ bool) {
		p := brokenLater(t, "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "20ms", "XDS_CLIENT_BACKOFF_MAX_INTERVAL", "20ms",
			"XDS_CLIENT_BACKOFF_JITTER", jitter)
		got := p.awaitPauses(t, 40, streamBroke)
		if slices.Min(got) < 10*ms || slices.Max(got) > 20*ms || (slices.Min(got) != slices.Max(got)) != differ {
			t.Errorf("jitter %s: pauses %v", jitter, got)
		}
	}
	f("true", true)
	f("false", false)
})

var _ = effect("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", func(t *testing.T) {
	f := func(factor string, least time.Duration, differ bool) {
		p := brokenLater(t, "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "20ms", "XDS_CLIENT_BACKOFF_MAX_INTERVAL", "20ms",
			"XDS_CLIENT_BACKOFF_RANDOM_FACTOR", factor)
		got := p.awaitPauses(t, 40, streamBroke)
		if slices.Min(got) < least || slices.Max(got) > 20*ms || (slices.Min(got) != slices.Max(got)) != differ {
			t.Errorf("factor %s: pauses %v", factor, got)
		}
	}
	f("0.25", 15*ms, true)
	f("0", 20*ms, false)
})

// guarded is a control plane that speaks TLS only, with rules, and that wants client certificates of
// the authority if mutual.
func guarded(t *testing.T, l *lock, mutual bool, names ...string) *xdstest.Plane {
	c := &tls.Config{Certificates: []tls.Certificate{l.ca.Issue(names...).TLS(t)}}
	if mutual {
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, l.ca.Pool()
	}
	plane := xdstest.New(t, grpc.Creds(credentials.NewTLS(c)))
	plane.Set("1", perYear(3))
	return plane
}

var _ = effect("CONFIG_GRPC_XDS_SERVER_USE_TLS", func(t *testing.T) {
	l := newLock(t)
	plane := guarded(t, l, false, "127.0.0.1")
	p := launch(t, "", follow(plane.Addr))
	p.log.await(t, "the control plane can't be reached", nil)
	start(t, "", follow(plane.Addr, "CONFIG_GRPC_XDS_SERVER_USE_TLS", "true", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
		l.path("ca.crt")))
})

// The roots are followed: new ones are used from the next dial on.
var _ = effect("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", func(t *testing.T) {
	l := newLock(t)
	roots := certtest.WriteFile(t, l.path("roots.crt"), certtest.NewCA(t, "other", time.Hour).PEM)
	p := launch(t, "", follow(guarded(t, l, false, "127.0.0.1").Addr, "CONFIG_GRPC_XDS_SERVER_USE_TLS", "true",
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", roots))
	p.log.await(t, "certificate signed by unknown authority", nil)
	certtest.WriteFile(t, roots, l.ca.PEM)
	p.log.await(t, `"ready"`, nil)
})

var _ = effect("CONFIG_GRPC_XDS_SERVER_TLS_SAN", func(t *testing.T) {
	l := newLock(t)
	plane := guarded(t, l, false, "plane.test")
	env := func(san string) map[string]string {
		return follow(plane.Addr, "CONFIG_GRPC_XDS_SERVER_USE_TLS", "true", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
			l.path("ca.crt"), "CONFIG_GRPC_XDS_SERVER_TLS_SAN", san)
	}
	p := launch(t, "", env("")) // the address, which the certificate does not have
	p.log.await(t, "127.0.0.1 because it doesn't contain any IP SANs", nil)
	p = launch(t, "", env("other.test"))
	p.log.await(t, "certificate is valid for plane.test, not other.test", nil)
	start(t, "", env("plane.test"))
})

var _ = effect("CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY", func(t *testing.T) {
	l := newLock(t)
	plane := guarded(t, l, true, "127.0.0.1")
	more := []string{"CONFIG_GRPC_XDS_SERVER_USE_TLS", "true", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", l.path("ca.crt")}
	p := launch(t, "", follow(plane.Addr, more...))
	p.log.await(t, "certificate required", nil)
	p = start(t, "", follow(plane.Addr, append(more, "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", l.path("tls.crt"),
		"CONFIG_GRPC_XDS_CLIENT_TLS_KEY", l.path("tls.key"))...))
	if got := decide1(t, p.dial(t), "k", "v"); got.OverallCode != pb.RateLimitResponse_OK ||
		got.Statuses[0].CurrentLimit.GetRequestsPerUnit() != 3 {
		t.Errorf("%v", got)
	}
})

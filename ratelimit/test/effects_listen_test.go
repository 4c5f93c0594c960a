package test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

const anyLimit = `[{key: k, @1000/y}]`

// freePort is one on an address that nothing else here uses.
func freePort(t testing.TB, host string) string {
	t.Helper()
	l, err := net.Listen("tcp", host+":0")
	must.Succeed(t, err)
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

var _ = effect("HOST PORT GRPC_HOST GRPC_PORT DEBUG_HOST DEBUG_PORT", func(t *testing.T) {
	env := map[string]string{}
	for prefix, host := range map[string]string{"": "127.0.0.2", "GRPC_": "127.0.0.3", "DEBUG_": "127.0.0.4"} {
		env[prefix+"HOST"], env[prefix+"PORT"] = host, freePort(t, host)
	}
	p := start(t, anyLimit, env)
	for prefix, got := range map[string]string{"": p.http, "GRPC_": p.grpc, "DEBUG_": p.debug} {
		if want := env[prefix+"HOST"] + ":" + env[prefix+"PORT"]; got != want {
			t.Errorf("listens on %s, want %s", got, want)
		}
	}
	decide1(t, p.dial(t), "k", "v")
	p.post(t, oneDescriptor)
	p.rlconfig(t)
})

// Each listener is bound exclusively, and the error of a busy port names its settings. The debug
// port is one that the daemon can do without.
func TestListeners_busy(t *testing.T) {
	t.Parallel()
	uds := filepath.Join(t.TempDir(), "gate.sock")
	p, q := start(t, anyLimit, nil), start(t, anyLimit, map[string]string{"GRPC_UDS": uds})
	_, http, _ := net.SplitHostPort(p.http)
	_, grpc, _ := net.SplitHostPort(p.grpc)
	_, debug, _ := net.SplitHostPort(q.debug)
	const inUse = "address already in use: another program has this port, set another one"
	for env, want := range map[[2]string]string{
		{"PORT", http}:      "HOST, PORT: listen on " + p.http + ": bind: " + inUse,
		{"GRPC_PORT", grpc}: "GRPC_HOST, GRPC_PORT: listen on " + p.grpc + ": bind: " + inUse,
		{"GRPC_UDS", uds}:   "GRPC_UDS: listen on " + uds + ": another process listens there",
	} {
		second := launch(t, anyLimit, map[string]string{env[0]: env[1]})
		select {
		case <-second.Ended():
		case <-time.After(time.Minute):
			t.Fatalf("two daemons share one %s", env[0])
		}
		if !strings.Contains(second.log.text(), want) {
			t.Errorf("no %q in:\n%s", want, second.log.text())
		}
	}
	second := start(t, anyLimit, map[string]string{"DEBUG_PORT": debug})
	decide1(t, second.dial(t), "k", "v")
	if want := "there is no debug port: DEBUG_HOST, DEBUG_PORT: listen on " +
		q.debug + ": bind: " + inUse; !strings.Contains(second.log.text(), want) {
		t.Errorf("no %q in:\n%s", want, second.log.text())
	}
	must.Succeed(t, second.Stop(time.Minute))
}

// wire is a connection on which a test speaks HTTP/2 by hand.
type wire struct {
	net.Conn
	*http2.Framer
}

func (p *process) wire(t testing.TB) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", p.grpc)
	must.Succeed(t, err)
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	w := &wire{conn, http2.NewFramer(conn, conn)}
	must.Succeed(t, must.ErrOf(io.WriteString(conn, http2.ClientPreface)))
	must.Succeed(t, w.WriteSettings())
	return w
}

// until reads frames until one is of that kind; nil at the connection's end.
func (w *wire) until(t testing.TB, kind http2.FrameType, accept func(http2.Frame) bool) http2.Frame {
	t.Helper()
	for {
		f, err := w.ReadFrame()
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return nil
		}
		if err != nil {
			t.Fatalf("no frame %v: %v", kind, err)
		}
		if f.Header().Type == kind && accept(f) {
			return f
		}
	}
}

func any1(http2.Frame) bool { return true }

var _ = effect("GRPC_KEEPALIVE_TIME GRPC_KEEPALIVE_TIMEOUT", func(t *testing.T) {
	w := start(t, anyLimit, map[string]string{"GRPC_KEEPALIVE_TIME": "1s", "GRPC_KEEPALIVE_TIMEOUT": "1s"}).wire(t)
	ping := func(f http2.Frame) bool { return !f.(*http2.PingFrame).IsAck() }
	if w.until(t, http2.FramePing, ping) == nil {
		t.Fatal("the server hung up instead of asking")
	}
	if f := w.until(t, http2.FrameData, any1); f != nil { // no answer: it hangs up
		t.Errorf("%v", f)
	}
})

// Each server announces the limit; only the native one has statistics of what it refuses in HTTP/2.
var _ = effect("GRPC_SERVER GRPC_MAX_CONCURRENT_STREAMS", func(t *testing.T) {
	for server, native := range map[string]bool{"native": true, "grpc-go": false} {
		p := start(t, anyLimit, map[string]string{"GRPC_SERVER": server, "GRPC_MAX_CONCURRENT_STREAMS": "7"})
		settings := p.wire(t).until(t, http2.FrameSettings, any1)
		if n, ok := settings.(*http2.SettingsFrame).Value(http2.SettingMaxConcurrentStreams); !ok || n != 7 {
			t.Errorf("%s: SETTINGS_MAX_CONCURRENT_STREAMS is %d, want 7", server, n)
		}
		_, body := get(t, p.debug+"/stats")
		if got := strings.Contains(body, "ratelimit_server.http2.refused"); got != native {
			t.Errorf("%s: /stats has ratelimit_server.http2.refused: %v, want %v", server, got, native)
		}
		if code := decide1(t, p.dial(t), "k", "v").OverallCode; code != pb.RateLimitResponse_OK {
			t.Errorf("%s: %v", server, code)
		}
	}
})

var _ = effect("GRPC_REFLECTION", func(t *testing.T) {
	for value, want := range map[string]codes.Code{"true": codes.OK, "false": codes.Unimplemented} {
		p := start(t, anyLimit, map[string]string{"GRPC_REFLECTION": value, "GRPC_SERVER": "grpc-go"})
		conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
		must.Succeed(t, err)
		defer conn.Close()
		stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
		must.Succeed(t, err)
		stream.Send(&reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
		if _, err := stream.Recv(); status.Code(err) != want {
			t.Errorf("%s: %v, want %v", value, err, want)
		}
	}
})

var _ = effect("HTTP_MAX_BODY_BYTES", func(t *testing.T) {
	for most, want := range map[string]int{"50": 413, "1000": 200} {
		p := start(t, anyLimit, map[string]string{"HTTP_MAX_BODY_BYTES": most})
		if resp, body := p.post(t, oneDescriptor); resp.StatusCode != want {
			t.Errorf("%s: %d %s", most, resp.StatusCode, body)
		}
	}
})

// slowly sends parts of an HTTP request, with a pause after each, and gives what comes back until the
// connection ends.
func (p *process) slowly(t testing.TB, pause time.Duration, parts ...string) string {
	t.Helper()
	conn, err := net.Dial("tcp", p.http)
	must.Succeed(t, err)
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	for i, part := range parts {
		if i > 0 {
			time.Sleep(pause)
		}
		io.WriteString(conn, part) // an error shows in what comes back
	}
	b, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the connection does not end: %v; %q so far", err, b)
	}
	return string(b)
}

const (
	postHead = "POST /json HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "
	postBody = "\r\n\r\n"
)

var _ = effect("HTTP_READ_HEADER_TIMEOUT", func(t *testing.T) {
	p := start(t, anyLimit, map[string]string{"HTTP_READ_HEADER_TIMEOUT": "100ms"})
	if got := p.slowly(t, 0, "GET /healthcheck HTTP/1.1\r\nHo"); strings.Contains(got, "200 OK") {
		t.Errorf("half a header was answered: %q", got)
	}
})

var _ = effect("HTTP_READ_TIMEOUT", func(t *testing.T) {
	p := start(t, anyLimit, map[string]string{"HTTP_READ_TIMEOUT": "1s"})
	if got := p.slowly(t, 0, postHead+"100"+postBody+"{"); !strings.HasPrefix(got, "HTTP/1.1 400 ") ||
		!strings.Contains(got, "could not be read") {
		t.Errorf("half a body was answered with %q", got)
	}
})

// A body that takes longer than the write time-out gets no answer any more.
var _ = effect("HTTP_WRITE_TIMEOUT", func(t *testing.T) {
	whole := []string{postHead + "2" + postBody + "{", "}"}
	p := start(t, anyLimit, map[string]string{"HTTP_WRITE_TIMEOUT": "100ms", "HTTP_REQUEST_TIMEOUT": "50ms"})
	for pause := 300 * time.Millisecond; ; pause *= 2 { // a busy machine may see both parts at once
		got := p.slowly(t, pause, whole...)
		if got == "" {
			break
		}
		if pause > 4*time.Second {
			t.Errorf("with a short time-out: %q", got)
			break
		}
	}
	if got := start(t, anyLimit, nil).slowly(
		t, 300*time.Millisecond, whole...); !strings.HasPrefix(got, "HTTP/1.1 400 ") {
		t.Errorf("with the default: %q", got)
	}
})

var _ = effect("HTTP_IDLE_TIMEOUT", func(t *testing.T) {
	p := start(t, anyLimit, map[string]string{"HTTP_IDLE_TIMEOUT": "100ms"})
	// The connection is to be kept, and slowly reads until it ends.
	if got := p.slowly(t, 0, "GET /healthcheck HTTP/1.1\r\nHost: x\r\n\r\n"); !strings.HasPrefix(got,
		"HTTP/1.1 200 OK") ||
		strings.Contains(got, "Connection: close") {
		t.Errorf("%q", got)
	}
})

var _ = effect("MAX_DESCRIPTORS MAX_ENTRIES MAX_TEXT_BYTES", func(t *testing.T) {
	p := start(t, anyLimit, map[string]string{"MAX_DESCRIPTORS": "3", "MAX_ENTRIES": "1", "MAX_TEXT_BYTES": "2"})
	for body, want := range map[string]string{
		`{},{},{},{}`:                             "has 4 descriptors, at most 3 are allowed",
		`{"entries":[{"key":"k"},{"key":"k"}]}`:   "has 2 entries, at most 1 are allowed",
		`{"entries":[{"key":"k","value":"abc"}]}`: "a value of 3 bytes, at most 2 each are allowed",
	} {
		if resp, got := p.post(t, `{"domain":"d","descriptors":[`+body+`]}`); resp.StatusCode != 400 ||
			!strings.Contains(got, want) {
			t.Errorf("%s: %d %s", body, resp.StatusCode, got)
		}
	}
})

// After SIGTERM the daemon is unhealthy and serves on for as long as the delay is.
var _ = effect("DRAIN_DELAY", func(t *testing.T) {
	p := start(t, anyLimit, map[string]string{"DRAIN_DELAY": "1h"})
	c := p.dial(t)
	decide1(t, c, "k", "v")
	must.Succeed(t, p.Signal(syscall.SIGTERM))
	await.True(t, "unhealthy", func() bool { code, _ := get(t, p.http+"/healthcheck"); return code == 500 })
	for range 3 {
		decide1(t, c, "k", "v")
	}
	// A connection that is kept for the next request is given up with the answer.
	resp, err := http.Post("http://"+p.http+"/json", "application/json",
		strings.NewReader(`{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}`))
	if err != nil || resp.StatusCode != 200 || !resp.Close {
		t.Fatalf("%v %+v: want an answer that ends its connection", err, resp)
	}
	resp.Body.Close()
	must.Succeed(t, p.Signal(syscall.SIGKILL))
	<-p.Ended()
	p = start(t, anyLimit, map[string]string{"DRAIN_DELAY": "10ms"})
	must.Succeed(t, p.Stop(time.Minute))
})

// A call that does not end is cut when the time is up.
var _ = effect("DRAIN_TIMEOUT", func(t *testing.T) {
	p := start(t, anyLimit, map[string]string{"DRAIN_TIMEOUT": "200ms", "HTTP_READ_TIMEOUT": "1h"})
	conn, err := net.Dial("tcp", p.http)
	must.Succeed(t, err)
	defer conn.Close()
	io.WriteString(conn, strings.Replace(postHead, "Connection: close", "Expect: 100-continue", 1)+"100"+postBody)
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil ||
		!strings.Contains(line, "100 Continue") { // the handler reads
		t.Fatal(line, err)
	}
	must.Succeed(t, p.Signal(syscall.SIGTERM))
	p.log.await(t, "calls were cut", nil)
	must.Succeed(t, p.Stop(time.Minute))
})

// The collector's next goal says how much heap may lie about.
var _ = effect("HEAP_FLOOR_BYTES", func(t *testing.T) {
	goal := func(floor string) int64 {
		return stat(t, start(t, anyLimit, map[string]string{"HEAP_FLOOR_BYTES": floor}), "ratelimit.go.nextGC")
	}
	if with, without := goal("40000000"), goal("0"); with < 30_000_000 || without > 20_000_000 {
		t.Errorf("the next collection is at %d bytes with a floor of 40 MB and at %d without", with, without)
	}
})

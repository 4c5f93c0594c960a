package h2grpc_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"gatehouse/ratelimit/internal/h2grpc"
	"gatehouse/shared/must"
)

var goAwayPing = [8]byte{'g', 'o', ' ', 'a', 'w', 'a', 'y', 0}

// shutdown begins to end the server, and returns where its error will be.
func (r *rig) shutdown(t testing.TB, within time.Duration) <-chan error {
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		done <- r.front.Shutdown(ctx)
	}()
	return done
}

// TestDrain: two GOAWAYs. Streams that came before the second are served, later ones are not, and the connection ends
// with its last answer.
func TestDrain(t *testing.T) {
	t.Parallel()
	store := newSlowStore()
	r := newRig(t, func(o *rigOptions) { o.store = store })
	p := r.dial(t)
	p.call(1) // waits in the store
	p.headers(3, false, fields())
	p.sync(3)
	done := r.shutdown(t, patience)
	p.until("GOAWAY and a ping", func() bool { return len(p.goAway) == 1 && len(p.pings) == 1 })
	if g := p.goAway[0]; g.LastStreamID != 1<<31-1 || g.ErrCode != http2.ErrCodeNo || p.why[0] != "graceful_stop" ||
		p.pings[0] != goAwayPing {
		t.Fatalf("%+v %q %q", g, p.why, p.pings)
	}
	p.call(5) // was on its way
	p.sync(5)
	p.must(p.framer.WritePing(true, goAwayPing))
	p.until("the second GOAWAY", func() bool { return len(p.goAway) == 2 })
	if g := p.goAway[1]; g.LastStreamID != 5 || g.ErrCode != http2.ErrCodeNo {
		t.Fatalf("%+v", g)
	}
	p.call(7) // too late
	p.headers(9, false, fields())
	p.data(9, false, request()[:5])
	p.headers(9, true, fields())
	p.sync(7)
	close(store.gate)
	for _, id := range []uint32{1, 5} {
		if got := p.response(id); !got.ok() {
			t.Errorf("stream %d: %v", id, got)
		}
	}
	p.data(3, false, request()[:4])
	p.sync(3)
	p.data(3, true, request()[4:])
	if got := p.response(3); !got.ok() {
		t.Errorf("stream 3: %v", got)
	}
	if !p.eof() {
		t.Errorf("%v", p.err)
	}
	if p.responses[7] != nil || p.responses[9] != nil {
		t.Errorf("streams behind the second GOAWAY: %v, %v", p.responses[7], p.responses[9])
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := net.Dial(r.network, r.addr); err == nil {
		t.Error("the listener is open")
	}
}

// TestDrain_idle: a connection without calls ends when the ping is answered; one that was never greeted, too, and what
// reads nothing is cut when the time is over.
func TestDrain_idle(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.dial(t)
	done := r.shutdown(t, patience)
	p.until("a ping", func() bool { return len(p.pings) == 1 })
	p.must(p.framer.WritePing(true, p.pings[0]))
	if !p.eof() || len(p.goAway) != 2 {
		t.Errorf("%v %v", p.err, p.goAway)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}

	r = newRig(t, nil)
	p = r.dial(t)
	p.headers(1, false, fields())
	p.sync(1)
	if err := <-r.shutdown(t, 100*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if n := r.native().Conns(); n != 0 {
		t.Errorf("%d connections", n)
	}
}

// TestDrain_unanswered: a peer that doesn't answer the ping gets the second GOAWAY after a while all the same.
func TestDrain_unanswered(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.dial(t)
	done := r.shutdown(t, patience)
	p.until("a ping", func() bool { return len(p.pings) == 1 })
	r.native().TickAt(time.Now().Add(6 * time.Second))
	if !p.eof() || len(p.goAway) != 2 {
		t.Errorf("%v %v", p.err, p.goAway)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestAge: a connection that is old is drained, and cut after the grace.
func TestAge(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *rigOptions) { o.MaxAge, o.MaxAgeGrace = 50*time.Millisecond, 100*time.Millisecond })
	p := r.dial(t)
	p.headers(1, false, fields())
	p.until("a ping", func() bool { return len(p.pings) == 1 })
	if p.why[0] != "max_age" || p.goAway[0].ErrCode != http2.ErrCodeNo {
		t.Errorf("%v %q", p.goAway, p.why)
	}
	p.call(3)
	if got := p.response(3); !got.ok() {
		t.Error(got)
	}
	p.must(p.framer.WritePing(true, p.pings[0]))
	for p.next() {
	}
	if len(p.goAway) != 2 || p.goAway[1].LastStreamID != 3 {
		t.Errorf("%v", p.goAway)
	}
}

// TestKeepalive: silence earns a ping; who answers stays, who doesn't is cut.
func TestKeepalive(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *rigOptions) {
		o.KeepaliveTime, o.KeepaliveTimeout = 50*time.Millisecond, 200*time.Millisecond
	})
	p := r.dial(t)
	for i := range 3 {
		p.until("a ping", func() bool { return len(p.pings) == i+1 })
		p.must(p.framer.WritePing(true, p.pings[i]))
	}
	p.calls(1)
	begin := time.Now()
	for p.next() {
	}
	if took := time.Since(begin); took < 200*time.Millisecond {
		t.Errorf("cut after %s", took)
	}
	r.refused(t, "keepalive", 1)
}

// TestSettingsTimeout: a peer that does not acknowledge SETTINGS is disconnected, and counted once.
func TestSettingsTimeout(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.dialRaw(t)
	p.write([]byte(http2.ClientPreface))
	p.must(p.framer.WriteSettings())
	p.calls(1)
	good := r.dial(t)
	good.calls(1)
	good.sync(1)
	r.native().TickAt(time.Now().Add(14 * time.Second))
	p.calls(3)
	for range 3 {
		r.native().TickAt(time.Now().Add(16 * time.Second))
	}
	if code, _ := p.gone(); code != http2.ErrCodeSettingsTimeout {
		t.Errorf("%v", code)
	}
	r.refused(t, "settings", 1)
	good.calls(3)
}

// TestUnfinished: a request that isn't finished within a minute is reset, and its memory is free.
func TestUnfinished(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.dial(t)
	p.headers(1, false, fields())
	p.headers(3, false, fields())
	p.data(3, false, make([]byte, 1000))
	p.sync(3)
	if n := r.buffered(); n < 1000 || n > 2000 {
		t.Errorf("%d bytes are accounted for", n)
	}
	r.native().TickAt(time.Now().Add(59 * time.Second))
	if got := p.sync(1); got.reset {
		t.Error(got)
	}
	r.native().TickAt(time.Now().Add(61 * time.Second))
	for _, id := range []uint32{1, 3} {
		if got := p.response(id); got.code != http2.ErrCodeCancel {
			t.Error(got)
		}
	}
	r.refused(t, "unfinished", 2)
	p.calls(5)
	p.calls(7)
	if n := r.buffered(); n != 0 {
		t.Errorf("%d bytes are still accounted for", n)
	}
}

// TestUnix: the same over a unix socket.
func TestUnix(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *rigOptions) { o.network = "unix" })
	p := r.dial(t)
	for i := range uint32(100) {
		p.calls(2*i + 1)
	}
	done := r.shutdown(t, patience)
	p.until("a ping", func() bool { return len(p.pings) == 1 })
	p.must(p.framer.WritePing(true, p.pings[0]))
	if !p.eof() {
		t.Error(p.err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestTLS: HTTP/2 by ALPN, and nothing else.
func TestTLS(t *testing.T) {
	t.Parallel()
	config, roots := selfSigned(t)
	r := newRig(t, func(o *rigOptions) { o.TLS = config })
	dial := func(protocols ...string) (*tls.Conn, error) {
		return tls.Dial("tcp", r.addr, &tls.Config{RootCAs: roots, ServerName: "localhost", NextProtos: protocols})
	}
	conn, err := dial("h2")
	must.Succeed(t, err)
	p := newPeer(t, conn)
	p.greet()
	p.calls(1)
	p.batch(func() {
		for i := range uint32(1000) {
			p.call(2*i + 3)
		}
	})
	for i := range uint32(1000) {
		if got := p.response(2*i + 3); !got.ok() {
			t.Fatal(got)
		}
	}
	// A handler sees TLS.
	p.headers(2101, false, fields(field(":path", "/grpc.health.v1.Health/Check")))
	p.data(2101, true, checkHealth())
	if got := p.response(2101); got.get("grpc-status") != "0" {
		t.Error(got)
	}

	for _, protocols := range [][]string{nil, {"http/1.1"}, {"h3"}} {
		conn, err := dial(protocols...)
		if err != nil {
			continue
		}
		conn.SetDeadline(time.Now().Add(patience)) // with TLS 1.3 a client hears of it behind its handshake
		if b, err := io.ReadAll(conn); len(b) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("with %q by ALPN: %q, %v", protocols, b, err)
		}
		conn.Close()
	}
	raw := r.dialRaw(t)
	raw.write([]byte("GET / HTTP/1.1\r\n\r\n"))
	for raw.next() {
	}
	r.refused(t, "tls_handshake", 4)
	if n := r.counted("ratelimit_server.tls.handshake_error"); n != 4 {
		t.Errorf("%d handshakes failed, want 4", n)
	}

	// The end: GOAWAY, then TLS's own, without a delay.
	done := r.shutdown(t, patience)
	p.until("a ping", func() bool { return len(p.pings) == 1 })
	p.must(p.framer.WritePing(true, p.pings[0]))
	begin := time.Now()
	if !p.eof() {
		t.Error(p.err)
	}
	if took := time.Since(begin); took > 900*time.Millisecond {
		t.Errorf("the end took %s", took)
	}
	p.conn.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestShutdown_load: grpc-go's clients with many calls in flight lose none of them when the server is replaced.
func TestShutdown_load(t *testing.T) {
	t.Parallel()
	config, roots := selfSigned(t)
	for _, name := range []string{"plain", "TLS", "a store that is waited for"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			secure := name == "TLS"
			for range 5 {
				r := newRig(t, func(o *rigOptions) {
					if secure {
						o.TLS = config
					}
					if name != "plain" && !secure {
						store := newSlowStore()
						close(store.gate)
						o.store = store
					}
				})
				creds := insecure.NewCredentials()
				if secure {
					creds = credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "localhost"})
				}
				var conns []*grpc.ClientConn
				for range 3 {
					conn, err := grpc.NewClient(r.addr, grpc.WithTransportCredentials(creds))
					must.Succeed(t, err)
					defer conn.Close()
					conns = append(conns, conn)
				}
				var answered atomic.Int64
				var stopping atomic.Bool
				var all sync.WaitGroup
				for i := range 48 {
					all.Go(func() {
						client := pb.NewRateLimitServiceClient(conns[i%len(conns)])
						for {
							// Calls that begin before the shutdown have to be answered; the first later one may fail.
							late := stopping.Load()
							ctx, cancel := context.WithTimeout(context.Background(), patience)
							_, err := client.ShouldRateLimit(ctx, loadRequest)
							cancel()
							if err != nil && !late && !stopping.Load() {
								t.Error(err)
							}
							if err != nil {
								return
							}
							answered.Add(1)
						}
					})
				}
				time.Sleep(30 * time.Millisecond)
				stopping.Store(true)
				if err := <-r.shutdown(t, patience); err != nil {
					t.Error(err)
				}
				for _, conn := range conns {
					conn.Close()
				}
				all.Wait()
				// What the server counted was answered: nothing was decided that no client heard of.
				if n := r.counted("ratelimit_server.ShouldRateLimit.total_requests"); n != answered.Load() {
					t.Errorf("%d calls decided, %d answered", n, answered.Load())
				}
			}
		})
	}
}

var loadRequest = func() *pb.RateLimitRequest {
	var m pb.RateLimitRequest
	if err := proto.Unmarshal(rawRequest("d", "k", "v"), &m); err != nil {
		panic(err)
	}
	return &m
}()

// TestServe_closed: a server that was shut down serves no more.
func TestServe_closed(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	must.Succeed(t, <-r.shutdown(t, patience))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	if err := r.front.Serve(l); !errors.Is(err, h2grpc.ErrServerClosed) {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("the listener is open")
	}
}

// TestDrain_watch: a health watch ends with the server, and holds it up no longer.
func TestDrain_watch(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.dial(t)
	p.headers(1, false, fields(field(":path", "/grpc.health.v1.Health/Watch")))
	p.data(1, true, checkHealth())
	p.until("the first answer", func() bool { return p.responses[1] != nil && len(p.responses[1].body) > 0 })
	done := r.shutdown(t, patience)
	p.until("a ping", func() bool { return len(p.pings) == 1 })
	p.must(p.framer.WritePing(true, p.pings[0]))
	p.until("the second GOAWAY", func() bool { return len(p.goAway) == 2 })
	if got := p.sync(1); got.ended || got.reset {
		t.Errorf("%v", got)
	}
	r.health.EndStreams()
	if got := p.response(1); !got.ended || got.get("grpc-status") == "" {
		t.Errorf("%v", got)
	}
	if !p.eof() {
		t.Error(p.err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A panic in the reader ends its connection, and not the daemon.
func TestReader_panic(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	r := newRig(t, func(o *rigOptions) {
		o.clock = func() time.Time {
			if broken.Load() {
				panic("no clock")
			}
			return time.Now()
		}
	})
	p := r.dial(t)
	p.sync(1)
	broken.Store(true)
	p.call(3)
	if !p.eof() {
		t.Error("the connection goes on")
	}
	broken.Store(false)
	r.dial(t).sync(1)
}

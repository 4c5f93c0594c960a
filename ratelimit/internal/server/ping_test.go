package server

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/shared/must"
)

// Envoy pings idle connections every few seconds and must stay connected; a client that pings too often is
// disconnected.
func TestPings(t *testing.T) {
	t.Parallel()
	r := newRig(t, service.Options{}, limits.Options{}, short(`[{key: k, @2/m}]`))
	f := func(minPing, every time.Duration, wantGoAway bool) {
		t.Helper()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must.Succeed(t, err)
		g := NewGRPC(GRPCOptions{Service: r.service, Health: NewHealth(), Stats: r.stats, Log: discard,
			GRPCSettings: GRPCSettings{MinPing: minPing}})
		go g.Serve(l)
		defer g.Stop()
		if got := pinged(t, l.Addr().String(), every); got != wantGoAway {
			t.Errorf("pings every %s with %s allowed: sent away is %v, want %v", every, minPing, got, wantGoAway)
		}
	}
	f(minPingSlack+50*time.Millisecond, 100*time.Millisecond, false)
	f(minPingSlack, 0, false)
	f(10*time.Second, 20*time.Millisecond, true)
}

// pinged opens an HTTP/2 connection without a single stream and pings it ten times, each time this long
// after the answer, so that they never come closer together however slow the machine is. It says
// whether the server answered with GOAWAY.
func pinged(t *testing.T, addr string, every time.Duration) (goAway bool) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	must.Succeed(t, err)
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	must.Succeed(t, must.ErrOf(conn.Write([]byte(http2.ClientPreface))))
	framer := http2.NewFramer(conn, conn)
	must.Succeed(t, framer.WriteSettings())
	const pings = 10
	ping := func() { framer.WritePing(false, [8]byte{}) } // an error shows in what comes back
	ping()
	for acks := 0; acks < pings; {
		frame, err := framer.ReadFrame()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				t.Fatal(err)
			}
			return true // GOAWAY and closed
		}
		switch f := frame.(type) {
		case *http2.GoAwayFrame:
			return true
		case *http2.PingFrame:
			if f.IsAck() {
				acks++
				time.Sleep(every)
				ping()
			}
		}
	}
	return false
}

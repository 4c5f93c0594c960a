package xds

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/source/xds/xdstest"
	"gatehouse/shared/must"
)

// script is an ADS server that says what the test says.
type script struct {
	discoverypb.UnimplementedAggregatedDiscoveryServiceServer
	said chan *discoverypb.DiscoveryRequest
	say  chan *discoverypb.DiscoveryResponse
}

func (s *script) StreamAggregatedResources(
	stream discoverypb.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			s.said <- r
		}
	}()
	for {
		select {
		case r := <-s.say:
			if err := stream.Send(r); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// TestClient_otherTypes: responses of another type are passed over, resources of another type refused.
func TestClient_otherTypes(t *testing.T) {
	t.Parallel()
	s := &script{said: make(chan *discoverypb.DiscoveryRequest, 10), say: make(chan *discoverypb.DiscoveryResponse)}
	l, srv := listen(t), grpc.NewServer()
	discoverypb.RegisterAggregatedDiscoveryServiceServer(srv, s)
	go srv.Serve(l)
	defer srv.Stop()
	w := start(t, l.Addr().String(), Options{})
	<-s.said
	answer := func(r *discoverypb.DiscoveryResponse) string {
		s.say <- r
		select {
		case r := <-s.said:
			return said(r)
		case <-time.After(20 * time.Second):
			t.Fatal("no answer within 20 s")
		}
		return ""
	}
	good, err := proto.Marshal(domain("a"))
	must.Succeed(t, err)
	a := &anypb.Any{TypeUrl: rulefile.ResourceType, Value: good}
	s.say <- &discoverypb.DiscoveryResponse{TypeUrl: "type.googleapis.com/other", VersionInfo: "x", Nonce: "x",
		Resources: []*anypb.Any{a}}
	if got := answer(&discoverypb.DiscoveryResponse{TypeUrl: rulefile.ResourceType, VersionInfo: "1", Nonce: "n1",
		Resources: []*anypb.Any{a}}); got != `version "1" nonce "n1"` {
		t.Errorf("a good one: %s", got)
	}
	got := answer(&discoverypb.DiscoveryResponse{TypeUrl: rulefile.ResourceType, VersionInfo: "2", Nonce: "n2",
		Resources: []*anypb.Any{a, {TypeUrl: "type.googleapis.com/other"}}})
	if want :=
		`version "1" nonce "n2" refused InvalidArgument: resources[1] is a "type.googleapis.com/other", want a "` +
			rulefile.ResourceType + `"`; got != want {
		t.Errorf("a resource of another type: %s", got)
	}
	// What is in force already is applied once more after a refusal, so that everybody knows it is good.
	if got := answer(&discoverypb.DiscoveryResponse{TypeUrl: rulefile.ResourceType, VersionInfo: "3", Nonce: "n3",
		Resources: []*anypb.Any{a}}); got != `version "3" nonce "n3"` {
		t.Errorf("a good one again: %s", got)
	}
	if got, want := w.seen(), `1: a | 2: a error: resources[1] is a "type.googleapis.com/other", want a "`+
		rulefile.ResourceType+`" | 3: a`; got != want {
		t.Errorf("sets %s\nwant %s", got, want)
	}
}

// TestClient_refusesPings: a server that is pinged too often for its taste is pinged less often.
func TestClient_refusesPings(t *testing.T) {
	t.Parallel()
	l := listen(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err == nil {
				f := http2.NewFramer(conn, conn)
				f.WriteSettings()
				for {
					frame, err := f.ReadFrame()
					if err != nil {
						break
					}
					if frame.Header().Type == http2.FrameData { // the first request
						f.WriteGoAway(1, http2.ErrCodeEnhanceYourCalm, []byte("too_many_pings"))
						break
					}
				}
			}
			conn.Close()
		}
	}()
	w := start(t, l.Addr().String(), Options{})
	w.await("pings are rarer", func() bool { return strings.Contains(w.log.String(), "every=4m0s") })
}

// TestClient_halfOpen: a connection over which nothing comes any more, not even an end, is left.
func TestClient_halfOpen(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("gRPC pings after 10 s at the earliest")
	}
	p := xdstest.New(t)
	p.Set("1", domain("a"))
	l := listen(t)
	var mu sync.Mutex
	var open []net.Conn // two for each connection
	silent := 0         // how many of them say nothing any more
	var wg sync.WaitGroup
	pipe := func(number int, to, from net.Conn) {
		b := make([]byte, 32<<10)
		for {
			n, err := from.Read(b)
			if err != nil {
				return
			}
			mu.Lock()
			drop := number < silent
			mu.Unlock()
			if !drop {
				to.Write(b[:n])
			}
		}
	}
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", p.Addr)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			number := len(open)
			open = append(open, server, client)
			mu.Unlock()
			wg.Go(func() { pipe(number, client, server) })
			wg.Go(func() { pipe(number, server, client) })
		}
	})
	t.Cleanup(func() { // after the client has ended
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	w := start(t, l.Addr().String(), Options{ping: 10 * time.Second, pingTimeout: time.Second})
	w.until("1: a")
	mu.Lock()
	silent = len(open)
	mu.Unlock()
	p.Set("2", domain("b"))
	w.until("1: a", "2: b")
}

func TestShorten(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("one line of a reason\n", 2000)
	got := shorten(long)
	if len(got) > maxReason+100 || !strings.HasSuffix(got, " more lines)") || strings.Contains(got, "reason\n\n") {
		t.Errorf("%d bytes, ends %q", len(got), got[len(got)-60:])
	}
	if got := shorten("a\xff"); got != "a?" {
		t.Errorf("%q", got)
	}
}

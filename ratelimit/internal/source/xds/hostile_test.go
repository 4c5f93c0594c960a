package xds

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"gatehouse/ratelimit/internal/counter/countertest"
	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/source/xds/xdstest"
	"gatehouse/shared/chaos"
)

// TestClient_garbage: whatever a control plane says in well-formed messages, the next good set is applied.
func TestClient_garbage(t *testing.T) {
	t.Parallel()
	l := listen(t)
	s := &script{said: make(chan *discoverypb.DiscoveryRequest, 1<<12), say: make(chan *discoverypb.DiscoveryResponse)}
	server := grpc.NewServer()
	discoverypb.RegisterAggregatedDiscoveryServiceServer(server, s)
	go server.Serve(l)
	t.Cleanup(server.Stop)
	w := start(t, l.Addr().String(), Options{nackAgain: time.Millisecond})
	r := chaos.Rand(t)
	good, err := proto.Marshal(domain("good"))
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		s.say <- garbage(r, good)
	}
	s.say <- &discoverypb.DiscoveryResponse{VersionInfo: "last", TypeUrl: rulefile.ResourceType, Nonce: "last",
		Resources: []*anypb.Any{{TypeUrl: rulefile.ResourceType, Value: good}, {TypeUrl: rulefile.ResourceType}}}
	w.await("the last set", func() bool { return strings.HasSuffix(w.seen(), "last:  good") })
	w.await("its acknowledgement", func() bool { return w.c.State().Version == "last" })
	if w.stat("ratelimit.xds.nack") == 0 {
		t.Error("nothing was refused")
	}
}

// garbage is a response of random parts.
func garbage(r *rand.Rand, good []byte) *discoverypb.DiscoveryResponse {
	text := func(most int) string { return strings.Repeat("\u2028x", r.IntN(most)) }
	kind := func() string { return []string{rulefile.ResourceType, rulefile.ResourceType, "", text(9)}[r.IntN(4)] }
	out := &discoverypb.DiscoveryResponse{VersionInfo: text(1000), TypeUrl: kind(), Nonce: text(9)}
	for range r.IntN(5) {
		value := append([]byte(nil), good...)
		for range r.IntN(4) {
			value[r.IntN(len(value))] = byte(r.Uint32())
		}
		out.Resources = append(out.Resources, &anypb.Any{TypeUrl: kind(), Value: value[:r.IntN(len(value)+1)]})
	}
	return out
}

// TestClient_garbledConnection: broken bytes break the stream, or a set, and the next one works.
func TestClient_garbledConnection(t *testing.T) {
	for _, g := range countertest.Garbles {
		if g.After == countertest.Hang {
			continue // TestClient_halfOpen
		}
		t.Run(g.Name, func(t *testing.T) {
			t.Parallel()
			p := xdstest.New(t)
			proxy := countertest.NewGarbler(t, p.Addr)
			w := start(t, proxy.Addr().String(), Options{})
			for i := range 100 {
				proxy.At(0.2, g)
				p.Set(fmt.Sprint(i), domain(fmt.Sprint("d", i)))
				time.Sleep(3 * time.Millisecond)
			}
			proxy.At(0, g)
			if proxy.Garbled() == 0 {
				t.Error("nothing was garbled")
			}
			w.c.Reconnect() // else a frame that is cut short waits for the rest, which a ping would find out
			p.Set("last", domain("z"))
			w.await("the last set", func() bool { return strings.HasSuffix(w.seen(), "last: z") })
		})
	}
}

// TestClient_flapping: a control plane that comes and goes changes nothing of the rules in force, and is not asked more
// often than the pauses allow.
func TestClient_flapping(t *testing.T) {
	t.Parallel()
	p := xdstest.New(t)
	p.Set("1", domain("a"))
	began := time.Now()
	w := start(t, p.Addr, Options{})
	w.until("1: a")
	for range 25 {
		streams := len(p.Streams())
		p.Kill()
		p.Serve()
		w.await("another stream", func() bool { return len(p.Streams()) > streams })
		if s := w.c.State(); s.Version != "1" || s.Awaiting {
			t.Errorf("between two streams: %+v", s)
		}
	}
	w.until("1: a")
	// Pauses are 5 ms at first, and a stream that answers makes the next one the first again.
	if n, most := int64(len(p.Streams()))+w.stat("ratelimit.xds.connect_failure"), int64(time.Since(began)/
		(4*time.Millisecond))+1; n > most {
		t.Errorf("%d tries within %v, want at most %d", n, time.Since(began), most)
	}
	p.Set("2", domain("b"))
	w.until("1: a", "2: b")
}

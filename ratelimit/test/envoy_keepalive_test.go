package test

import (
	"errors"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"gatehouse/shared/await"
	"gatehouse/shared/envoytest"
	"gatehouse/shared/testdb"
)

// frames is what passed between Envoy and a daemon, on all connections.
type frames struct {
	addr               string
	conns, pings, away atomic.Int64
}

// watchFrames relays connections to a daemon and reads along.
func watchFrames(t *testing.T, to string) *frames {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	f := &frames{addr: listener.Addr().String()}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				client.Close()
				continue
			}
			f.conns.Add(1)
			go f.pass(server, client, int64(len(http2.ClientPreface)))
			go f.pass(client, server, 0)
		}
	}()
	return f
}

// pass copies one direction and counts PINGs that are no answers, and GOAWAYs.
func (f *frames) pass(to, from net.Conn, preface int64) {
	defer to.Close()
	seen, see := io.Pipe()
	go func() {
		defer seen.Close()
		if _, err := io.CopyN(io.Discard, seen, preface); err != nil {
			return
		}
		framer := http2.NewFramer(nil, seen)
		for {
			frame, err := framer.ReadFrame()
			if err != nil && !errors.As(err, new(http2.StreamError)) {
				return
			}
			switch frame := frame.(type) {
			case *http2.PingFrame:
				if preface > 0 && !frame.IsAck() {
					f.pings.Add(1)
				}
			case *http2.GoAwayFrame:
				if preface == 0 && frame.ErrCode == http2.ErrCodeEnhanceYourCalm {
					f.away.Add(1)
				}
			}
		}
	}()
	io.Copy(io.MultiWriter(to, see), from)
	see.Close()
}

// The example's keepalive is no more than a daemon bears: it sends no GOAWAY, where one that bears less does.
func TestEnvoy_keepalive(t *testing.T) {
	t.Parallel()
	envoytest.Program(t)
	redis := testdb.Redis(t).URL()
	good := watchFrames(t, exampleDaemon(t, redis, nil).grpc)
	touchy := watchFrames(t, exampleDaemon(t, redis, map[string]string{"GRPC_KEEPALIVE_MIN_TIME": "5m"}).grpc)
	g := startEnvoy(t, []string{good.addr, touchy.addr}, patient, func(t *testing.T, config envoytest.Config) {
		delete(config.Cluster(t, "ratelimit"), "health_checks") // leaves the connections idle
	})
	c := caller("127.0.0.1")
	await.True(t, "a connection to each daemon", func() bool {
		g.answers(t, c, "/api/", "X-User: ann-"+strconv.FormatInt(time.Now().UnixNano(), 36))
		return good.conns.Load() == 1 && touchy.conns.Load() == 1
	})
	deadline := time.Now().Add(2 * time.Minute)
	for good.pings.Load() < 4 || touchy.away.Load() == 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d pings; the touchy daemon has sent %d GOAWAYs", good.pings.Load(), touchy.away.Load())
		}
		time.Sleep(50 * time.Millisecond)
	}
	if good.away.Load() != 0 || good.conns.Load() != 1 {
		t.Errorf("after %d pings: %d GOAWAYs, %d connections", good.pings.Load(), good.away.Load(), good.conns.Load())
	}
}

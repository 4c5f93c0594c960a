//go:build !race

package test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

// TestAlloc_hostilePeers: peers that leave as much as they can unfinished, on 200 connections, bring a daemon with 256 MiB
// to no more than 200 MiB, and a neighbour's calls are answered meanwhile.
func TestAlloc_hostilePeers(t *testing.T) {
	for _, c := range []struct {
		name  string
		leave func(p *flooder)
	}{
		{"messages", func(p *flooder) {
			for id := uint32(1); id < 64; id += 2 {
				p.headers(id, true)
				b := make([]byte, 16000)
				copy(b, []byte{0, 0, 0x3f, 0, 0})
				for range 6 {
					p.WriteData(id, false, b)
				}
			}
		}},
		{"header blocks", func(p *flooder) {
			p.headers(1, false)
			for range 4 {
				p.WriteContinuation(1, false, bytes.Repeat([]byte{0x82}, 16000))
			}
		}},
		{"answers", func(p *flooder) {
			p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			long := bytes.Repeat([]byte{0x12, 8, 0x0a, 6, 0x0a, 1, 'k', 0x12, 1, 'v'}, 250) // descriptors
			long = append([]byte{0x0a, 1, 'd'}, long...)
			for id := uint32(1); id < 1000; id += 2 {
				p.headers(id, true)
				p.WriteData(id, true, append([]byte{0, 0, 0, byte(len(long) >> 8), byte(len(long))}, long...))
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := start(t, `[{key: k, @1000000/d}]`, map[string]string{"GOMEMLIMIT": "256MiB"})
			calls := d.dial(t)
			ask := func() {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				if _, err := calls.ShouldRateLimit(ctx, request("k", "v")); err != nil {
					t.Errorf("a neighbour's call: %v", err)
				}
			}
			for range 200 {
				flood(t, d.grpc, c.leave)
				ask()
			}
			time.Sleep(100 * time.Millisecond)
			ask()
			most := peakKiB(t, d.PID())
			t.Logf("at most %d MiB resident", most>>10)
			if most > 200<<10 {
				t.Errorf("at most %d MiB resident, want 200", most>>10)
			}
		})
	}
}

// TestAlloc_idleConnections: ten thousand connections that say nothing more after their SETTINGS cost some 16 KiB each,
// keep no call of others waiting, and are served when they call.
func TestAlloc_idleConnections(t *testing.T) {
	d := start(t, `[{key: k, @1000000/d}]`, nil)
	calls := d.dial(t)
	var idle []net.Conn
	for range 10_000 {
		idle = append(idle, flood(t, d.grpc, func(*flooder) {}))
	}
	decide1(t, calls, "k", "v")
	most := peakKiB(t, d.PID())
	t.Logf("at most %d MiB resident", most>>10)
	if most > 160<<10 {
		t.Errorf("at most %d MiB resident, want 160", most>>10)
	}
	answered := func() float64 {
		_, body := get(t, d.debug+"/stats?format=json")
		var n float64
		_, after, _ := strings.Cut(body, `"ratelimit_server.ShouldRateLimit.total_requests": `)
		fmt.Sscan(after, &n)
		return n
	}
	for _, conn := range idle {
		var b bytes.Buffer
		p := &flooder{Framer: http2.NewFramer(&b, nil)}
		p.hpack = hpack.NewEncoder(&p.block)
		p.headers(1, true)
		p.WriteData(1, true, []byte{0, 0, 0, 0, 3, 0x0a, 1, 'd'}) // without descriptors, which is refused
		must.Succeed(t, must.ErrOf(conn.Write(b.Bytes())))
	}
	await.True(t, "every connection's call is answered", func() bool { return answered() == 10_001 })
}

// flooder sends frames and reads whatever comes.
type flooder struct {
	*http2.Framer
	block bytes.Buffer
	hpack *hpack.Encoder
}

func (p *flooder) headers(id uint32, end bool) {
	p.block.Reset()
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "r"},
		{":path", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"}, {"content-type", "application/grpc"}} {
		p.hpack.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.block.Bytes(), EndHeaders: end})
}

// flood opens a connection that stays open, and leaves something unfinished on it.
func flood(t *testing.T, addr string, leave func(p *flooder)) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	must.Succeed(t, err)
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(time.Minute))
	go io.Copy(io.Discard, conn)
	var b bytes.Buffer
	p := &flooder{Framer: http2.NewFramer(&b, nil)}
	p.hpack = hpack.NewEncoder(&p.block)
	b.WriteString(http2.ClientPreface)
	p.WriteSettings()
	p.WriteSettingsAck()
	leave(p)
	conn.Write(b.Bytes()) // an error is the server's good right
	return conn
}

// peakKiB is the most memory a process ever held.
func peakKiB(t *testing.T, pid int) (kib int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must.Succeed(t, err)
	_, after, _ := bytes.Cut(status, []byte("VmHWM:"))
	must.Succeed(t, must.ErrOf(fmt.Sscan(string(after), &kib)))
	return kib
}

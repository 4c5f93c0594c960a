package h2grpc_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
)

// outcome is what a client makes of a stream. What counts and clocks put into a message is left out, and so is
// RST_STREAM(NO_ERROR) behind an early answer, which grpc-go sends or not by timing.
func (r *response) outcome() string {
	var b strings.Builder
	for _, name := range []string{":status", "content-type", "grpc-encoding", "grpc-status", "grpc-message"} {
		fmt.Fprintf(&b, "%s %q ", name, r.get(name))
	}
	body := r.body
	for len(body) >= 5 {
		var m pb.RateLimitResponse
		n := int(body[1])<<24 | int(body[2])<<16 | int(body[3])<<8 | int(body[4])
		if n > len(body)-5 {
			break
		}
		text := body[5 : 5+n]
		if body[0] == 1 {
			text = unzip(text)
		}
		if err := proto.Unmarshal(text, &m); err == nil {
			for _, s := range m.Statuses {
				s.LimitRemaining, s.DurationUntilReset = 0, nil
			}
			text, _ := proto.MarshalOptions{Deterministic: true}.Marshal(&m)
			fmt.Fprintf(&b, ", message %x", text)
		} else {
			fmt.Fprintf(&b, ", %d bytes", n)
		}
		body = body[5+n:]
	}
	if len(body) > 0 {
		fmt.Fprintf(&b, ", and %x", body)
	}
	if r.reset && !r.ended {
		return "reset " + r.code.String()
	}
	return b.String()
}

// zip is a compressed message with its prefix.
func zip(b []byte) []byte {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	w.Write(b)
	w.Close()
	sealed := message(packed.Bytes())
	sealed[0] = 1
	return sealed
}

func unzip(b []byte) []byte {
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil
	}
	text, _ := io.ReadAll(r)
	return text
}

// settle waits for what is to be seen of streams: by streams that have to have ended, then by silence.
func (p *peer) settle(ended []uint32) (gone bool) {
	for _, id := range ended {
		for end := time.Now().Add(1500 * time.Millisecond); p.responses[id] == nil || !p.responses[id].ended &&
			!p.responses[id].reset; {
			p.conn.SetReadDeadline(end)
			if !p.next() {
				return len(p.goAway) > 0 || time.Now().Before(end)
			}
		}
	}
	p.conn.SetReadDeadline(time.Now().Add(patience))
	for range 2 {
		n := len(p.pongs)
		if p.framer.WritePing(false, [8]byte{'s', 'e', 't', 't', 'l', 'e'}) != nil {
			for p.next() {
			}
			return true
		}
		for len(p.pongs) == n {
			if !p.next() {
				return true
			}
		}
	}
	return false
}

// result is what a client makes of all streams, and of the connection.
func (p *peer) result(gone bool) map[string]string {
	m := map[string]string{}
	for id, r := range p.responses {
		if r.ended || r.reset { // of others, how much has come depends on who is faster
			m[fmt.Sprintf("stream %d", id)] = r.outcome()
		}
	}
	if gone {
		// Which answers still come before the end is a race; the end is what both have to agree on.
		clear(m)
		m["connection"] = "ended"
		for _, g := range p.goAway {
			if g.ErrCode != http2.ErrCodeNo {
				m["connection"] = "GOAWAY " + g.ErrCode.String()
			}
		}
	}
	return m
}

// pair is the two servers.
type pair struct{ native, other *rig }

func newPair(t testing.TB) pair {
	f := func(native bool) *rig {
		return newRig(t, func(o *rigOptions) { o.Native = native })
	}
	return pair{f(true), f(false)}
}

// differ sends the same to both servers, and returns what came back.
func (s pair) differ(t testing.TB, send func(p *peer), settings ...http2.Setting) (native, other map[string]string) {
	t.Helper()
	n, o := s.native.dial(t, settings...), s.other.dial(t, settings...)
	n.batch(func() { send(n) })
	o.batch(func() { send(o) })
	// Each has to answer what the other answers; beyond that, silence after two pings.
	goneN, goneO := n.settle(nil), o.settle(n.ended())
	for range 2 {
		if goneN || goneO || slices.Equal(n.ended(), o.ended()) {
			break
		}
		goneN = n.settle(o.ended())
		goneO = o.settle(n.ended())
	}
	n.conn.Close()
	o.conn.Close()
	return n.result(goneN), o.result(goneO)
}

// ended are the streams that have ended; none if the connection has, too.
func (p *peer) ended() (ids []uint32) {
	for id, r := range p.responses {
		if (r.ended || r.reset) && p.err == nil {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// TestDiffer: what the native server and grpc-go answer to the same frames.
func TestDiffer(t *testing.T) {
	t.Parallel()
	s := newPair(t)
	// same: nothing may differ.
	same := func(name string, send func(p *peer), settings ...http2.Setting) {
		t.Helper()
		native, other := s.differ(t, send, settings...)
		if fmt.Sprint(native) != fmt.Sprint(other) {
			t.Errorf("%s:\nnative  %v\ngrpc-go %v", name, native, other)
		}
	}
	// known: a difference, with the reason. It has to be there, or belongs to same.
	known := func(name, why, native, other string, send func(p *peer), settings ...http2.Setting) {
		t.Helper()
		n, o := s.differ(t, send, settings...)
		if !strings.Contains(fmt.Sprint(n), native) || !strings.Contains(fmt.Sprint(o), other) {
			t.Errorf("%s (%s):\nnative  %v, want %s\ngrpc-go %v, want %s", name, why, n, native, o, other)
		}
		if fmt.Sprint(n) == fmt.Sprint(o) {
			t.Errorf("%s: no difference any more", name)
		}
	}
	head := func(change ...hpack.HeaderField) func(p *peer) {
		return func(p *peer) { p.headers(1, false, fields(change...)); p.data(1, true, request()) }
	}
	body := func(pieces ...[]byte) func(p *peer) {
		return func(p *peer) {
			p.headers(1, false, fields())
			for i, b := range pieces {
				p.data(1, i == len(pieces)-1, b)
			}
		}
	}
	good := request()
	flag := func(n byte) []byte { b := request(); b[0] = n; return b }

	same("a call", head())
	same("many calls", func(p *peer) {
		for i := range uint32(50) {
			p.call(2*i + 1)
		}
	})
	same("streams in between each other", func(p *peer) {
		for i := range uint32(20) {
			p.headers(2*i+1, false, fields())
		}
		for i := range uint32(20) {
			p.data(39-2*i, true, request())
		}
	})
	same("nothing asked", body(message(nil)))
	same("an unknown domain", body(message(rawRequest("unknown", "k", "v"))))
	same("no rule", body(message(rawRequest("d", "nothing", "v"))))
	same("a request that cannot be read", body(message([]byte{0xff, 0xff})))
	same("no message", body(nil))
	same("no DATA", func(p *peer) { p.headers(1, true, fields()) })
	same("two messages", body(append(request(), good...)))
	same("two messages in two frames", body(good, good))
	same("one and a half", body(append(request(), good[:7]...)))
	same("half a prefix", body(good[:2]))
	same("half a message", body(good[:9]))
	same("pieces", body(good[:1], good[1:4], good[4:6], nil, good[6:]))
	same("END_STREAM alone", body(good, nil))
	known("trailers", "RFC 9113, section 8.1: a request has an optional trailer section", "message", "PROTOCOL_ERROR",
		func(p *peer) {
			p.headers(1, false, fields())
			p.data(1, false, request())
			p.headers(1, true, []hpack.HeaderField{field("x", "y")})
		})
	same("compressed", body(flag(1)))
	same("an unknown flag", body(flag(2)))
	same("an unknown flag in pieces", body(flag(255)[:3], flag(255)[3:]))
	same("over 4 MiB", body([]byte{0, 0, 0x40, 0, 1, 0}))
	same("over 4 MiB, open", func(p *peer) {
		p.headers(1, false, fields())
		p.data(1, false, []byte{0, 0xff, 0xff, 0xff, 0xff, 0})
	})
	same("over 4 MiB with an unknown flag", body([]byte{7, 0, 0x40, 0, 1, 0}))
	same("padding", func(p *peer) {
		p.headers(1, false, fields())
		p.must(p.framer.WriteDataPadded(1, true, request(), make([]byte, 200)))
	})
	for _, kind := range []string{"", "application/json", "application/grpc+proto", "application/grpc;x",
		"application/grpcx", "application/grpc-web", "application/grpc+", "text/plain"} {
		same("content-type "+kind, head(field("content-type", kind)))
	}
	known("content-type Application/gRPC", "RFC 9110, section 8.3.1: type and subtype are case-insensitive", "message",
		"415", head(field("content-type", "Application/gRPC")))
	for _, method := range []string{"GET", "PUT", "post", "OPTIONS"} {
		same(":method "+method, head(field(":method", method)))
	}
	for _, timeout := range []string{"1H", "99999999H", "10S", "0S", "0n", "60000m", "00000060S"} {
		same("grpc-timeout "+timeout, head(field("grpc-timeout", timeout)))
	}
	same("host for :authority", head(field(":authority", ""), field("host", "h")))
	same(":authority and host", head(field("host", "h")))
	same("no authority", head(field(":authority", "")))
	same("two authorities", func(p *peer) {
		p.headers(1, false, append([]hpack.HeaderField{field(":authority", "other")}, fields()...))
	})
	same("two hosts", func(p *peer) { p.headers(1, false, append(fields(field("host", "h")), field("host", "h"))) })
	same("connection", head(field("connection", "close")))
	same("metadata", head(field("x-a", "b"), field("x-b-bin", "AAECAw"), field("x-c-bin", "AAECAw==")))
	same("identity", head(field("grpc-encoding", "identity")))
	same("upper case", head(field("Upper", "x")))
	same("a pseudo-header field behind others", func(p *peer) {
		p.headers(1, true, append(fields(), field(":path", "/x")))
	})
	same("an unknown pseudo-header field", func(p *peer) {
		p.headers(1, true, append([]hpack.HeaderField{field(":what", "x")}, fields()...))
	})
	same("two paths", func(p *peer) {
		p.headers(1, true, append([]hpack.HeaderField{field(":path", "/x")}, fields()...))
	})
	same("health", func(p *peer) {
		p.headers(1, false, fields(field(":path", "/grpc.health.v1.Health/Check")))
		p.data(1, true, checkHealth())
	})
	same("health of an unknown service", func(p *peer) {
		p.headers(1, false, fields(field(":path", "/grpc.health.v1.Health/Check")))
		p.data(1, true, message([]byte{0x0a, 1, 'x'}))
	})
	for _, path := range []string{"/no.such/Method", "/" + service3 + "/Other", "/x", "x", "/", "/a/b/c", "/a%2Fb/c",
		"*", "/grpc.health.v1.Health/Other"} {
		same(":path "+path, head(field(":path", path)))
	}
	zipped := func(path string, body []byte) func(p *peer) {
		return func(p *peer) {
			p.headers(1, false, fields(field(":path", path), field("grpc-encoding", "gzip")))
			p.data(1, true, body)
		}
	}
	call := rawRequest("d", "k", "v")
	same("gzip", zipped(callPath, zip(call)))
	same("gzip, and not compressed", zipped(callPath, request()))
	same("gzip twice", zipped(callPath, append(zip(call), zip(call)...)))
	same("gzip of nothing", zipped(callPath, zip(nil)))
	same("gzip of no message", zipped(callPath, zip([]byte{0xff})))
	same("not gzip", zipped(callPath, append([]byte{1}, request()[1:]...)))
	same("gzip cut off", zipped(callPath, func() []byte { b := zip(call); b[4] -= 6; return b[:len(b)-6] }()))
	same("gzip of 4 MiB and a byte", zipped(callPath, zip(make([]byte, 4<<20+1))))
	same("compressed without a name", func(p *peer) { p.headers(1, false, fields()); p.data(1, true, zip(call)) })
	same("another compression", head(field("grpc-encoding", "snappy")))
	same("gzip, health", zipped("/grpc.health.v1.Health/Check", zip(checkHealth()[5:])))
	same("health, not a message", func(p *peer) {
		p.headers(1, false, fields(field(":path", "/grpc.health.v1.Health/Check")))
		p.data(1, true, message([]byte{0xff}))
	})
	same("windows", func(p *peer) { p.call(1); p.call(3); p.must(p.framer.WriteWindowUpdate(1, 100)) }, window(7))
	same("no windows", func(p *peer) { p.call(1); p.call(3) }, window(0))
	same("a table of 0", func(p *peer) {
		p.call(1)
		p.call(3)
	}, http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
	same("an unknown frame", func(p *peer) { p.must(p.framer.WriteRawFrame(0x42, 1, 3, []byte("x"))); p.call(1) })
	same("a reset", func(p *peer) {
		p.headers(1, false, fields())
		p.must(p.framer.WriteRSTStream(1, http2.ErrCodeCancel))
		p.call(3)
	})
	same("DATA behind an early answer", func(p *peer) {
		p.headers(1, false, fields(field("content-type", "x")))
		p.data(1, false, good)
		p.data(1, true, good)
		p.call(3)
	})

	// Connection errors.
	raw := func(kind http2.FrameType, flags http2.Flags, id uint32, n int) func(p *peer) {
		return func(p *peer) { p.must(p.framer.WriteRawFrame(kind, flags, id, make([]byte, n))) }
	}
	ended := "connection"
	for _, c := range []struct {
		name string
		send func(p *peer)
	}{
		{"DATA on stream 0", raw(http2.FrameData, 0, 0, 1)},
		{"HEADERS on stream 0", raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 0, 1)},
		{"an even stream", func(p *peer) { p.headers(2, true, fields()) }},
		{"SETTINGS of 5 bytes", raw(http2.FrameSettings, 0, 0, 5)},
		{"SETTINGS on a stream", raw(http2.FrameSettings, 0, 1, 6)},
		{"PING on a stream", raw(http2.FramePing, 0, 1, 8)},
		{"PING of 7 bytes", raw(http2.FramePing, 0, 0, 7)},
		{"GOAWAY on a stream", raw(http2.FrameGoAway, 0, 1, 8)},
		{"RST_STREAM on stream 0", raw(http2.FrameRSTStream, 0, 0, 4)},
		{"RST_STREAM of 3 bytes", raw(http2.FrameRSTStream, 0, 1, 3)},
		{"WINDOW_UPDATE of 3 bytes", raw(http2.FrameWindowUpdate, 0, 0, 3)},
		{"WINDOW_UPDATE by 0", raw(http2.FrameWindowUpdate, 0, 0, 4)},
		{"CONTINUATION alone", raw(http2.FrameContinuation, 0, 1, 1)},
		{"no header block", func(p *peer) {
			p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff},
				EndHeaders: true}))
		}},
		{"a frame of 16385 bytes", raw(http2.FrameData, 0, 1, 16385)},
		{"a block interrupted", func(p *peer) {
			p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.encode(fields())}))
			p.must(p.framer.WritePing(false, [8]byte{}))
		}},
	} {
		n, o := s.differ(t, c.send)
		if n[ended] == "" || o[ended] == "" || !strings.HasPrefix(n[ended], "GOAWAY") {
			t.Errorf("%s: native %v, grpc-go %v", c.name, n, o)
		}
		if strings.HasPrefix(o[ended], "GOAWAY") && o[ended] != n[ended] {
			t.Errorf("%s: native %v, grpc-go %v", c.name, n, o)
		}
	}
}

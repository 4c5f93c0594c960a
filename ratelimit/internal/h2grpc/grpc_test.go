package h2grpc_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"gatehouse/shared/await"
)

// TestCall is one call from HEADERS to its answer.
func TestCall(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.dial(t)
	p.calls(1)
	p.calls(3) // by indexes now
	if got := p.settings[http2.SettingMaxConcurrentStreams]; got != 1024 {
		t.Errorf("MAX_CONCURRENT_STREAMS is %d", got)
	}
	if got := r.counted("ratelimit_server.ShouldRateLimit.total_requests"); got != 2 {
		t.Errorf("%d calls counted", got)
	}
}

// TestMessages: what comes of the pieces of a request. A call is complete with END_STREAM, not with its message.
func TestMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	f := func(name, want string, send func(p *peer)) {
		t.Helper()
		// In one write, and in one for each frame.
		for _, together := range []bool{true, false} {
			p := r.dial(t)
			if together {
				p.batch(func() { send(p) })
			} else {
				send(p)
			}
			p.response(1)
			got := p.sync(1)
			if want == "ok" && got.ok() {
				got = &response{fields: [][]hpack.HeaderField{{field(":status", "200"), field("grpc-status", "0")}},
					ended: true}
			}
			text := strings.Replace(got.String(), "200, grpc-status 0", "ok", 1)
			if text != want {
				t.Errorf("%s: %s, want %s", name, text, want)
			}
			p.calls(3)
		}
	}
	const twice = "200, grpc-status 13, cardinality violation: received multiple request messages for " +
		"non-client-streaming RPC"
	const none = "200, grpc-status 13, cardinality violation: received no request message from non-client-streaming RPC"
	begin := func(p *peer) { p.headers(1, false, fields()) }
	f("one frame", "ok", func(p *peer) { begin(p); p.data(1, true, request()) })
	f("END_STREAM behind the message", "ok", func(p *peer) {
		begin(p)
		p.data(1, false, request())
		p.data(1, true, nil)
	})
	f("client trailers", "ok", func(p *peer) {
		begin(p)
		p.data(1, false, request())
		p.headers(1, true, []hpack.HeaderField{field("x", "y")})
	})
	f("a byte a frame", "ok", func(p *peer) {
		begin(p)
		b := request()
		for i := range b {
			p.data(1, i == len(b)-1, b[i:i+1])
		}
	})
	f("no message", none, func(p *peer) { begin(p); p.data(1, true, nil) })
	f("no DATA", none, func(p *peer) { p.headers(1, true, fields()) })
	f("trailers alone", none, func(p *peer) { begin(p); p.headers(1, true, []hpack.HeaderField{field("x", "y")}) })
	f("two messages", twice, func(p *peer) { begin(p); p.data(1, true, append(request(), request()...)) })
	f("two messages in two frames", twice, func(p *peer) {
		begin(p)
		p.data(1, false, request())
		p.data(1, true, request())
	})
	f("half a prefix", "200, grpc-status 13, unexpected EOF", func(p *peer) { begin(p); p.data(1, true, []byte{0, 0}) })
	f("half a message", "200, grpc-status 13, unexpected EOF", func(p *peer) {
		begin(p)
		p.data(1, true, request()[:8])
	})
	f("half a message in two frames", "200, grpc-status 13, unexpected EOF", func(p *peer) {
		begin(p)
		p.data(1, false, request()[:8])
		p.data(1, true, request()[8:10])
	})
	f("compressed", "200, grpc-status 13, grpc: compressed flag set with identity or empty encoding", func(p *peer) {
		b := request()
		b[0] = 1
		begin(p)
		p.data(1, true, b)
	})
	f("unknown flag", "200, grpc-status 13, grpc: received unexpected payload format 7", func(p *peer) {
		b := request()
		b[0] = 7
		begin(p)
		p.data(1, true, b)
	})
	f("no domain", "200, grpc-status 3, rate limit domain must not be empty", func(p *peer) {
		begin(p)
		p.data(1, true, message(nil))
	})
	f("padding", "ok", func(p *peer) {
		p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.encode(fields()),
			EndHeaders: true, PadLength: 9}))
		b := request()
		p.must(p.framer.WriteDataPadded(1, false, b[:3], make([]byte, 255)))
		p.must(p.framer.WriteDataPadded(1, false, nil, make([]byte, 7)))
		p.must(p.framer.WriteDataPadded(1, true, b[3:], make([]byte, 1)))
	})
	f("priority and CONTINUATION", "ok", func(p *peer) {
		block := p.encode(fields())
		p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:4],
			Priority: http2.PriorityParam{StreamDep: 0, Weight: 3}}))
		p.must(p.framer.WriteContinuation(1, false, block[4:9]))
		p.must(p.framer.WriteContinuation(1, false, nil))
		p.must(p.framer.WriteContinuation(1, true, block[9:]))
		p.data(1, true, request())
	})
	f("unknown frames between", "ok", func(p *peer) {
		begin(p)
		p.must(p.framer.WriteRawFrame(0xee, 0xff, 1, []byte("what is this")))
		p.must(p.framer.WriteRawFrame(0xee, 0, 0, nil))
		p.must(p.framer.WritePriority(1, http2.PriorityParam{StreamDep: 0}))
		p.data(1, true, request())
	})
	f("more than 4 MiB",
		"200, grpc-status 8, grpc: received message larger than max (4194305 vs. 4194304), reset NO_ERROR",
		func(p *peer) {
			begin(p)
			p.data(1, false, []byte{0, 0, 0x40, 0, 1})
		})
	f("more than 4 MiB at the end", "200, grpc-status 8, grpc: received message larger than max (4194305 vs. 4194304)",
		func(p *peer) {
			begin(p)
			p.data(1, true, []byte{0, 0, 0x40, 0, 1, 9, 9})
		})
	f("content-length", "ok", func(p *peer) {
		p.headers(1, false, fields(field("content-length", fmt.Sprint(len(request())))))
		p.data(1, true, request())
	})
	f("a wrong content-length", "reset PROTOCOL_ERROR", func(p *peer) {
		p.headers(1, false, fields(field("content-length", "5")))
		p.data(1, true, request())
	})
	f("a content-length of nothing", "reset PROTOCOL_ERROR", func(p *peer) {
		p.headers(1, true, fields(field("content-length", "5")))
	})
	f("trailers without END_STREAM", "reset PROTOCOL_ERROR", func(p *peer) {
		begin(p)
		p.headers(1, false, []hpack.HeaderField{field("x", "y")})
	})
	f("trailers with a path", "reset PROTOCOL_ERROR", func(p *peer) {
		begin(p)
		p.headers(1, true, []hpack.HeaderField{field(":path", "/")})
	})
	f("no message of a health check", none, func(p *peer) {
		p.headers(1, true, fields(field(":path", "/grpc.health.v1.Health/Check")))
	})
	r.unread(t, "malformed", 2*10)
	r.unread(t, "too_long", 2*2)
}

// TestUnread_library: grpc-go's server counts alike.
func TestUnread_library(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *rigOptions) { o.Native = false })
	p := r.dial(t)
	for i, body := range [][]byte{nil, {0, 0}, {7, 0, 0, 0, 0}, append(request(), request()...), {0, 0x40, 0, 0, 1}} {
		id := uint32(2*i + 1)
		p.headers(id, false, fields())
		p.data(id, true, body)
		p.response(id)
	}
	r.unread(t, "malformed", 4)
	r.unread(t, "too_long", 1)
}

// unread checks how many calls of ShouldRateLimit were refused because they could not be read.
func (r *rig) unread(t testing.TB, reason string, want int64) {
	t.Helper()
	name := "ratelimit.service.call.should_rate_limit.refused_" + reason
	await.True(t, name, func() bool { return r.counted(name) >= want }) // grpc-go counts after its answer
	if got := r.counted(name); got != want {
		t.Errorf("refused_%s is %d, want %d", reason, got, want)
	}
}

// TestMessages_large: a message in many DATA frames gets windows, is decided where it is at most 4 MiB, and what was
// kept of it is given back.
func TestMessages_large(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.dial(t)
	id := uint32(1)
	f := func(size int, want string) {
		t.Helper()
		b := make([]byte, 5+size)
		b[1], b[2], b[3], b[4] = byte(size>>24), byte(size>>16), byte(size>>8), byte(size)
		p.headers(id, false, fields())
		window := int64(p.settings[http2.SettingInitialWindowSize])
		sent := int64(0)
		for len(b) > 0 {
			p.until("a window", func() bool {
				r := p.responses[id]
				return r != nil && r.ended || window+int64(p.windows[id])-sent > 0
			})
			if r := p.responses[id]; r != nil && r.ended {
				break
			}
			n := min(window+int64(p.windows[id])-sent, 16<<10, int64(len(b)))
			p.data(id, int(n) == len(b), b[:n])
			b = b[n:]
			sent += n
		}
		if got := p.response(id).String(); !strings.HasPrefix(got, want) {
			t.Errorf("%d bytes: %s, want %s", size, got, want)
		}
		id += 2
	}
	f(1<<20, "200, grpc-status 13, grpc: failed to unmarshal the received message")
	f(4<<20, "200, grpc-status 13, grpc: failed to unmarshal the received message")
	f(4<<20+1, "200, grpc-status 8, grpc: received message larger than max (4194305 vs. 4194304)")
	if n := r.buffered(); n != 0 {
		t.Errorf("%d bytes are still accounted for", n)
	}
	p.calls(id)
}

// TestHeaders: what a request's fields get.
func TestHeaders(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	f := func(want string, all []hpack.HeaderField) {
		t.Helper()
		p := r.dial(t)
		p.headers(1, false, all)
		if want == "ok" || strings.HasPrefix(want, "200, grpc-status 12") {
			p.data(1, true, request())
		}
		got := p.response(1)
		text := got.String()
		if got.ok() {
			text = "ok"
		} else if !strings.HasPrefix(want, "reset") && !strings.HasPrefix(want, "200, grpc-status 12") {
			// Answered early: RST_STREAM stops the client.
			p.sync(1)
			text = got.String()
			want += ", reset NO_ERROR"
		}
		if text != want {
			t.Errorf("%v: %s, want %s", all, text, want)
		}
		p.calls(3)
	}
	f("ok", fields(field("content-type", "application/grpc;v=1")))
	f("415, grpc-status 3, invalid gRPC request content-type \"\"", fields(field("content-type", "")))
	f("415, grpc-status 3, invalid gRPC request content-type \"application/json\"",
		fields(field("content-type", "application/json")))
	f("415, grpc-status 3, invalid gRPC request content-type \"application/grpcs\"",
		fields(field("content-type", "application/grpcs")))
	f("405, grpc-status 13, Received a HEADERS frame with :method \"GET\" which should be POST",
		fields(field(":method", "GET")))
	f("400, grpc-status 13, num values of :authority: 1, num values of host: 2, both must only have 1 value as per "+
		"HTTP/2 spec",
		append(fields(field("host", "x")), field("host", "x")))
	f("reset PROTOCOL_ERROR", append([]hpack.HeaderField{field(":authority", "other")}, fields()...))
	f("400, grpc-status 13, malformed binary metadata in header \"x-bin\"", fields(field("x-bin", "!")))
	f("ok", fields(field("x-bin", "AAEC")))
	f("400, grpc-status 13, malformed grpc-timeout: \"5\": want 1 to 8 digits and a unit",
		fields(field("grpc-timeout", "5")))
	f("400, grpc-status 13, malformed grpc-timeout: \"123456789S\": want 1 to 8 digits and a unit",
		fields(field("grpc-timeout", "123456789S")))
	f("400, grpc-status 13, malformed grpc-timeout: \"1x\": the unit is not one of H, M, S, m, u, n",
		fields(field("grpc-timeout", "1x")))
	f("200, grpc-status 4, context deadline exceeded", fields(field("grpc-timeout", "0m")))
	for _, timeout := range []string{"1H", "1M", "9S", "9999m", "99999999u", "99999999H"} {
		f("ok", fields(field("grpc-timeout", timeout)))
	}
	f("200, grpc-status 12, grpc: Decompressor is not installed for grpc-encoding \"snappy\"",
		fields(field("grpc-encoding", "snappy")))
	f("200, grpc-status 12, unknown method Other for service "+service3, fields(field(":path", "/"+service3+"/Other")))
	f("200, grpc-status 12, unknown service no.such", fields(field(":path", "/no.such/Method")))
	f("200, grpc-status 12, malformed method name: \"no%252Fsuch\"", fields(field(":path", "no%2Fsuch")))
	f("reset PROTOCOL_ERROR", fields(field(":path", "")))
	f("reset PROTOCOL_ERROR", fields(field("connection", "close")))
	f("reset PROTOCOL_ERROR", fields(field("te", "gzip")))
	f("reset PROTOCOL_ERROR", append(fields(), field(":path", "/late")))
	f("reset PROTOCOL_ERROR", fields(field("UPPER", "x")))
}

// TestAcceptEncoding: a client whose encoding is unknown learns which are not.
func TestUnknownEncoding(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.dial(t)
	p.headers(1, false, fields(field("grpc-encoding", "snappy"), field("grpc-accept-encoding", "snappy")))
	p.data(1, true, request())
	if got := p.response(1); got.get("grpc-status") != "12" {
		t.Errorf("%v", got)
	}
}

// TestHeaders_long: a header list over 64 KiB is refused, as SETTINGS announced, and the connection lives on.
func TestHeaders_long(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.dial(t)
	if got := p.settings[http2.SettingMaxHeaderListSize]; got != 64<<10 {
		t.Errorf("MAX_HEADER_LIST_SIZE is %d", got)
	}
	long := field("x", strings.Repeat("a", 30<<10))
	block := p.encode(fields(long, field("y", long.Value), field("z", long.Value)))
	p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:16<<10]}))
	for block = block[16<<10:]; len(block) > 16<<10; block = block[16<<10:] {
		p.must(p.framer.WriteContinuation(1, false, block[:16<<10]))
	}
	p.must(p.framer.WriteContinuation(1, true, block))
	if got := p.response(1); got.get(":status") != "431" || got.get("grpc-status") != "8" {
		t.Errorf("%v", got)
	}
	r.unread(t, "too_long", 1)
	p.calls(3)
}

// TestDeadline: a call that waits in a store is answered when its time is over.
func TestDeadline(t *testing.T) {
	t.Parallel()
	store := newSlowStore()
	r := newRig(t, func(o *rigOptions) { o.store = store })
	p := r.dial(t)
	p.headers(1, false, fields(field("grpc-timeout", "50m")))
	p.data(1, true, request())
	if got := p.response(1); got.get("grpc-status") != "4" {
		t.Errorf("%v", got)
	}
	close(store.gate)
	p.calls(3)
	p.headers(5, false, fields(field("grpc-timeout", "99999999H")))
	p.data(5, true, request())
	if got := p.response(5); !got.ok() {
		t.Errorf("%v", got)
	}
}

func checkHealth() []byte {
	b, err := proto.Marshal(&healthpb.HealthCheckRequest{})
	if err != nil {
		panic(err)
	}
	return message(b)
}

// TestHealth: health checks and watches, and watches that the client gives up.
func TestHealth(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.dial(t)
	serving := message([]byte{8, 1})
	p.headers(1, false, fields(field(":path", "/grpc.health.v1.Health/Check")))
	p.data(1, true, checkHealth())
	if got := p.response(1); got.get("grpc-status") != "0" || !bytes.Equal(got.body, serving) {
		t.Errorf("Check: %v %x", got, got.body)
	}
	p.headers(201, false, fields(field(":path", "/grpc.health.v1.Health/List")))
	p.data(201, true, message(nil))
	var all healthpb.HealthListResponse
	if got := p.response(201); got.get("grpc-status") != "0" || proto.Unmarshal(got.body[5:], &all) != nil ||
		len(all.Statuses) != 3 || all.Statuses[service3].GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("List: %v %v", got, &all)
	}
	if n := r.counted("ratelimit_server.Check.total_requests") + r.counted("ratelimit_server.List.total_requests"); n != 2 {
		t.Errorf("%d health checks are counted", n)
	}
	watch := func(id uint32) {
		t.Helper()
		p.headers(id, false, fields(field(":path", "/grpc.health.v1.Health/Watch")))
		p.data(id, true, checkHealth())
		p.until("the first answer of Watch", func() bool {
			return p.responses[id] != nil && bytes.Equal(p.responses[id].body, serving)
		})
	}
	watch(203)
	p.calls(205) // meanwhile
	// The client resets: the handler ends, and the place of the stream is free.
	p.must(p.framer.WriteRSTStream(203, http2.ErrCodeCancel))
	await.True(t, "the watch ends", func() bool { return r.watches() == 0 })
	p.calls(207)
	// The peer closes: handlers end.
	watch(209)
	p.conn.Close()
	await.True(t, "the watch ends", func() bool { return r.watches() == 0 })
}

// TestHealth_bounded: a connection has at most 16 watches at a time.
func TestHealth_bounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.dial(t)
	for i := range uint32(17) {
		p.headers(2*i+1, false, fields(field(":path", "/grpc.health.v1.Health/Watch")))
		p.data(2*i+1, true, checkHealth())
	}
	if got := p.response(33); !got.reset || got.code != http2.ErrCodeRefusedStream {
		t.Errorf("%v", got)
	}
	r.refused(t, "streams", 1)
	p.calls(203)
	p.must(p.framer.WriteRSTStream(1, http2.ErrCodeCancel))
	await.True(t, "a place", func() bool { return r.watches() == 15 })
	p.headers(205, false, fields(field(":path", "/grpc.health.v1.Health/Watch")))
	p.data(205, true, checkHealth())
	p.until("the first answer of Watch", func() bool {
		return p.responses[205] != nil && len(p.responses[205].body) > 0
	})
}

// TestHealth_window: the answer to a health check waits for the client's window.
func TestHealth_window(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.dial(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	p.headers(1, false, fields(field(":path", "/grpc.health.v1.Health/Check")))
	p.data(1, true, checkHealth())
	p.until("its headers", func() bool { return p.responses[1] != nil })
	if got := p.sync(1); got.ended || len(got.body) > 0 {
		t.Fatalf("%v with a window of 0", got)
	}
	p.must(p.framer.WriteWindowUpdate(1, 3))
	p.until("3 bytes", func() bool { return len(p.responses[1].body) == 3 })
	p.must(p.framer.WriteWindowUpdate(1, 100))
	if got := p.response(1); got.get("grpc-status") != "0" || !bytes.Equal(got.body, message([]byte{8, 1})) {
		t.Errorf("%v %x", got, got.body)
	}
}

// TestReset: a client that gives up its call in the store gets no answer, and the call's place is free when the store
// has finished it.
func TestReset(t *testing.T) {
	t.Parallel()
	for _, together := range []bool{true, false} {
		store := newSlowStore()
		r := newRig(t, func(o *rigOptions) { o.store = store })
		p := r.dial(t)
		send := func() {
			p.call(1)
			p.must(p.framer.WriteRSTStream(1, http2.ErrCodeCancel))
			// Its DATA in pieces: the stream is registered before it is complete.
			p.headers(3, false, fields())
			p.data(3, false, request()[:7])
			p.headers(5, false, fields())
			p.data(3, true, request()[7:])
			p.must(p.framer.WriteRSTStream(3, http2.ErrCodeCancel))
			p.data(5, true, request())
		}
		if together {
			p.batch(send)
		} else {
			send()
		}
		p.sync(1)
		close(store.gate)
		if got := p.response(5); !got.ok() {
			t.Errorf("%v", got)
		}
		for id := uint32(7); id < 50; id += 2 { // streams are reused
			p.calls(id)
		}
		if p.responses[3] != nil {
			t.Errorf("an answer to a reset stream: %v", p.responses[3])
		}
	}
}

// TestSlowCall: a call that takes long does not keep its neighbours' answers, and is answered itself.
func TestSlowCall(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.dial(t)
	p.must(p.framer.WriteWindowUpdate(0, 1<<20)) // for answers of two kilobytes each
	many := &pb.RateLimitRequest{Domain: "d"}
	for i := range 64 {
		many.Descriptors = append(many.Descriptors, &ratelimitpb.RateLimitDescriptor{
			Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: "k", Value: fmt.Sprint(i)}},
		})
	}
	b, err := proto.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	for round := range uint32(20) {
		first := 10*round + 1
		p.batch(func() {
			p.call(first)
			p.headers(first+2, false, fields())
			p.data(first+2, true, message(b))
			p.call(first + 4)
			p.headers(first+6, false, fields())
			p.data(first+6, true, message(b))
			p.call(first + 8)
			p.must(p.framer.WriteRSTStream(first+6, http2.ErrCodeCancel))
		})
		for _, id := range []uint32{first, first + 4, first + 8} {
			if got := p.response(id); !got.ok() {
				t.Errorf("stream %d: %v", id, got)
			}
		}
		var m pb.RateLimitResponse
		got := p.response(first + 2)
		if len(got.body) < 5 || proto.Unmarshal(got.body[5:], &m) != nil || len(m.Statuses) != 64 {
			t.Errorf("%v", got)
		}
	}
}

package h2grpc_test

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

func window(n uint32) http2.Setting {
	return http2.Setting{ID: http2.SettingInitialWindowSize, Val: n}
}

// TestWindows: answers wait for the client's windows, go out in their order, and trailers behind their DATA.
func TestWindows(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	size := func(p *peer) int { p.calls(1); return len(p.responses[1].body) }(r.dial(t))
	waits := func(p *peer, id uint32, want int) {
		t.Helper()
		if got := p.sync(id); got.ended || len(got.body) != want {
			t.Fatalf("%v, want %d bytes of %d and no end", got, want, size)
		}
	}
	answered := func(p *peer, id uint32) {
		t.Helper()
		if got := p.response(id); !got.ok() || len(got.body) != size || got.followed {
			t.Errorf("stream %d: %v", id, got)
		}
	}

	p := r.dial(t, window(0))
	p.call(1)
	waits(p, 1, 0)
	p.must(p.framer.WriteWindowUpdate(1, 1))
	waits(p, 1, 1)
	p.must(p.framer.WriteWindowUpdate(1, uint32(size)-2))
	waits(p, 1, size-1)
	p.must(p.framer.WriteWindowUpdate(1, 1))
	answered(p, 1)
	// The window of the stream is opened in the same write as its call, before it, or between its frames.
	p.batch(func() { p.call(3); p.must(p.framer.WriteWindowUpdate(3, 1000)) })
	answered(p, 3)
	p.batch(func() {
		p.headers(5, false, fields())
		p.must(p.framer.WriteWindowUpdate(5, 1000))
		p.data(5, true, request())
	})
	answered(p, 5)
	p.headers(7, false, fields())
	p.must(p.framer.WriteWindowUpdate(7, 1000))
	p.sync(7)
	p.data(7, true, request())
	answered(p, 7)

	// INITIAL_WINDOW_SIZE changes while answers wait for window: it grows, and it shrinks below what has been used.
	p = r.dial(t, window(5))
	p.call(1)
	waits(p, 1, 5)
	p.must(p.framer.WriteSettings(window(8)))
	waits(p, 1, 8)
	p.must(p.framer.WriteSettings(window(2))) // -6 for the first stream
	p.call(3)
	waits(p, 1, 8)
	waits(p, 3, 2)
	p.must(p.framer.WriteWindowUpdate(1, 6)) // 0
	waits(p, 1, 8)
	p.must(p.framer.WriteWindowUpdate(1, 1))
	waits(p, 1, 9)
	p.must(p.framer.WriteSettings(window(65535)))
	answered(p, 1)
	answered(p, 3)

	// The connection's window: the first answers use it up, the others follow in order.
	p = r.dial(t)
	n := uint32(65535/size) + 10
	p.batch(func() {
		for i := range n {
			p.call(2*i + 1)
		}
	})
	last := 2*n - 1
	p.sync(last)
	if got := p.responses[1]; !got.ok() {
		t.Errorf("%v", got)
	}
	if got := p.sync(last); got.ended {
		t.Fatalf("%v behind a closed window", got)
	}
	total := 0
	for _, r := range p.responses {
		total += len(r.body)
	}
	if total != 65535 {
		t.Errorf("%d bytes for a window of 65535", total)
	}
	p.must(p.framer.WriteWindowUpdate(0, 1))
	p.sync(last)
	p.must(p.framer.WriteWindowUpdate(0, 1<<20))
	for i := range n {
		answered(p, 2*i+1)
	}
}

// TestMaxFrameSize: a header block is split as the client's MAX_FRAME_SIZE wants.
func TestMaxFrameSize(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, largest := range []uint32{16384, 30000} {
		p := r.dial(t, http2.Setting{ID: http2.SettingMaxFrameSize, Val: largest}, window(1<<20))
		p.must(p.framer.WriteWindowUpdate(0, 1<<20))
		// An unknown method's name comes back in grpc-message: a header block over 16 KiB is one, too.
		p.headers(1, false, fields(field(":path", "/no.such/"+strings.Repeat("m", 20000))))
		p.data(1, true, nil)
		if got := p.response(1); got.get("grpc-status") != "12" {
			t.Errorf("%v", got)
		}
	}
}

// TestFollowedByCall: frames that a server has to take, or may ignore; a call works behind them.
func TestFollowedByCall(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	f := func(name string, send func(p *peer)) {
		t.Helper()
		p := r.dial(t)
		send(p)
		p.calls(101)
		if len(p.goAway) > 0 {
			t.Errorf("%s: GOAWAY %v %q", name, p.goAway, p.why)
		}
	}
	f("an unknown frame", func(p *peer) { p.must(p.framer.WriteRawFrame(0x42, 0xff, 0, []byte("abc"))) })
	f("an unknown frame on an idle stream", func(p *peer) {
		p.must(p.framer.WriteRawFrame(0x42, 0xff, 99, []byte("abc")))
	})
	f("unknown settings", func(p *peer) { p.must(p.framer.WriteSettings(http2.Setting{ID: 0xff, Val: 1})) })
	f("PRIORITY", func(p *peer) { p.must(p.framer.WritePriority(11, http2.PriorityParam{StreamDep: 3})) })
	f("GOAWAY", func(p *peer) { p.must(p.framer.WriteGoAway(0, http2.ErrCodeNo, []byte("bye"))) })
	f("reserved bit", func(p *peer) { p.write([]byte{0, 0, 4, 8, 0, 0x80, 0, 0, 0, 0x80, 0, 0, 1}) })
	f("RST_STREAM twice", func(p *peer) {
		p.headers(1, false, fields())
		p.must(p.framer.WriteRSTStream(1, http2.ErrCodeCancel))
		p.must(p.framer.WriteRSTStream(1, http2.ErrCodeCancel))
	})
	f("WINDOW_UPDATE on a closed stream", func(p *peer) { p.calls(1); p.must(p.framer.WriteWindowUpdate(1, 10)) })
	f("a larger table", func(p *peer) {
		p.must(p.framer.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 1 << 20}))
	})
	f("DATA and trailers of a stream that was answered early", func(p *peer) {
		p.headers(1, false, fields(field("content-type", "x/y")))
		p.data(1, false, make([]byte, 1000))
		p.data(1, false, make([]byte, 1000))
		p.headers(1, true, []hpack.HeaderField{field("x", "y")})
	})
	f("a skipped stream", func(p *peer) { p.calls(9); p.calls(99) })
}

// TestHeaderTableSize: answers obey the size of the client's table, also where it changes.
func TestHeaderTableSize(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, size := range []uint32{0, 50, 104, 4096} {
		p := r.dial(t, http2.Setting{ID: http2.SettingHeaderTableSize, Val: size})
		p.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		p.framer.ReadMetaHeaders.SetAllowedMaxDynamicTableSize(size)
		p.calls(1)
		p.calls(3)
		for i, next := range []uint32{104, 0, 4096} {
			p.must(p.framer.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: next}))
			p.until("its acknowledgement", func() bool { return p.settled == 2+i })
			p.framer.ReadMetaHeaders.SetAllowedMaxDynamicTableSize(next)
			p.calls(uint32(5 + 4*i))
			p.calls(uint32(7 + 4*i))
		}
	}
}

// TestStreamErrors: one stream ends, the connection goes on.
func TestStreamErrors(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	f := func(name string, want http2.ErrCode, send func(p *peer)) {
		t.Helper()
		for _, together := range []bool{true, false} {
			p := r.dial(t)
			if together {
				p.batch(func() { send(p) })
			} else {
				send(p)
			}
			p.until("RST_STREAM", func() bool { return p.responses[1] != nil && p.responses[1].reset })
			if got := p.responses[1]; got.code != want || got.followed {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
			p.calls(3)
		}
	}
	f("DATA behind the end", http2.ErrCodeStreamClosed, func(p *peer) { p.call(1); p.data(1, false, []byte("x")) })
	f("DATA behind the client's RST_STREAM", http2.ErrCodeStreamClosed, func(p *peer) {
		p.headers(1, false, fields())
		p.must(p.framer.WriteRSTStream(1, http2.ErrCodeCancel))
		p.data(1, false, []byte("x"))
	})
	f("WINDOW_UPDATE by 0", http2.ErrCodeProtocol, func(p *peer) {
		p.headers(1, false, fields())
		p.must(p.framer.WriteWindowUpdate(1, 0))
	})
	f("a window over 2^31-1", http2.ErrCodeFlowControl, func(p *peer) {
		p.headers(1, false, fields())
		p.must(p.framer.WriteWindowUpdate(1, 1<<31-1))
	})
	f("PRIORITY of 4 bytes", http2.ErrCodeFrameSize, func(p *peer) {
		p.headers(1, false, fields())
		p.must(p.framer.WriteRawFrame(http2.FramePriority, 0, 1, make([]byte, 4)))
	})
	f("PRIORITY on itself", http2.ErrCodeProtocol, func(p *peer) {
		p.headers(1, false, fields())
		p.must(p.framer.WritePriority(1, http2.PriorityParam{StreamDep: 1}))
	})
}

// TestConnectionErrors: GOAWAY with the code that RFC 9113 wants, and the end.
func TestConnectionErrors(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	before := map[string]int64{}
	f := func(name string, want http2.ErrCode, reason string, send func(p *peer)) {
		t.Helper()
		p := r.dial(t)
		p.calls(1)
		send(p)
		if code, why := p.gone(); code != want || why == "" {
			t.Errorf("%s: GOAWAY %v %q, want %v", name, code, why, want)
		}
		before[reason]++
		r.refused(t, reason, before[reason])
		if last := p.goAway[len(p.goAway)-1].LastStreamID; last != 1 && last != 3 {
			t.Errorf("%s: GOAWAY names stream %d", name, last)
		}
	}
	raw := func(kind http2.FrameType, flags http2.Flags, id uint32, n int) func(p *peer) {
		return func(p *peer) { p.must(p.framer.WriteRawFrame(kind, flags, id, make([]byte, n))) }
	}
	protocol, size := http2.ErrCodeProtocol, http2.ErrCodeFrameSize
	f("DATA on stream 0", protocol, "protocol", raw(http2.FrameData, 0, 0, 1))
	f("DATA on an idle stream", protocol, "protocol", raw(http2.FrameData, 0, 5, 1))
	f("DATA on a server's stream", protocol, "protocol", func(p *peer) { p.calls(3); raw(http2.FrameData, 0, 2, 1)(p) })
	f("DATA of padding", protocol, "protocol", func(p *peer) {
		p.headers(3, false, fields())
		p.must(p.framer.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, 3, []byte{5, 0, 0}))
	})
	f("HEADERS on stream 0", protocol, "protocol", raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 0, 0))
	f("HEADERS on an even stream", protocol, "protocol", func(p *peer) { p.headers(2, true, fields()) })
	f("HEADERS of padding", protocol, "protocol", func(p *peer) {
		p.must(p.framer.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersPadded|http2.FlagHeadersEndHeaders, 3,
			[]byte{9, 0}))
	})
	f("HEADERS that depend on themselves", protocol, "protocol", func(p *peer) {
		p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: p.encode(fields()),
			EndHeaders: true, Priority: http2.PriorityParam{StreamDep: 3}}))
	})
	f("HEADERS without its priority", size, "protocol",
		raw(http2.FrameHeaders, http2.FlagHeadersPriority|http2.FlagHeadersEndHeaders, 3, 4))
	f("HEADERS on a closed stream", http2.ErrCodeStreamClosed, "protocol", func(p *peer) {
		p.headers(1, true, fields())
	})
	f("HEADERS behind the end", http2.ErrCodeStreamClosed, "protocol", func(p *peer) {
		p.headers(3, false, fields(field(":path", "/grpc.health.v1.Health/Watch")))
		p.data(3, true, checkHealth())
		p.headers(3, true, fields())
	})
	f("HEADERS behind the client's RST_STREAM", http2.ErrCodeStreamClosed, "protocol", func(p *peer) {
		p.headers(3, false, fields())
		p.must(p.framer.WriteRSTStream(3, http2.ErrCodeCancel))
		p.headers(3, true, fields())
	})
	f("another frame in a header block", protocol, "protocol", func(p *peer) {
		p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: p.encode(fields())}))
		p.must(p.framer.WritePing(false, [8]byte{}))
	})
	f("an unknown frame in a header block", protocol, "protocol", func(p *peer) {
		p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: p.encode(fields())}))
		p.must(p.framer.WriteRawFrame(0x42, 0, 0, nil))
	})
	f("CONTINUATION of another stream", protocol, "protocol", func(p *peer) {
		p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: p.encode(fields())}))
		p.must(p.framer.WriteContinuation(5, true, nil))
	})
	f("CONTINUATION alone", protocol, "protocol", raw(http2.FrameContinuation, 0, 3, 0))
	f("a header block that is none", http2.ErrCodeCompression, "compression", func(p *peer) {
		p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0xff, 0xff, 0xff},
			EndHeaders: true}))
	})
	f("a header block cut short", http2.ErrCodeCompression, "compression", func(p *peer) {
		p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0x00, 0x05, 'a'},
			EndHeaders: true}))
	})
	f("trailers that are no header block", http2.ErrCodeCompression, "compression", func(p *peer) {
		p.headers(3, false, fields())
		p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0x80}, EndHeaders: true,
			EndStream: true}))
	})
	f("a table larger than allowed", http2.ErrCodeCompression, "compression", func(p *peer) {
		p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0x3f, 0xe2, 0x1f, 0x82},
			EndHeaders: true}))
	})
	f("PRIORITY on stream 0", protocol, "protocol", raw(http2.FramePriority, 0, 0, 5))
	f("RST_STREAM on stream 0", protocol, "protocol", raw(http2.FrameRSTStream, 0, 0, 4))
	f("RST_STREAM on an idle stream", protocol, "protocol", raw(http2.FrameRSTStream, 0, 3, 4))
	f("RST_STREAM of 3 bytes", size, "protocol", raw(http2.FrameRSTStream, 0, 1, 3))
	f("SETTINGS on a stream", protocol, "protocol", raw(http2.FrameSettings, 0, 1, 6))
	f("SETTINGS of 5 bytes", size, "protocol", raw(http2.FrameSettings, 0, 0, 5))
	f("an acknowledgement of 6 bytes", size, "protocol", raw(http2.FrameSettings, http2.FlagSettingsAck, 0, 6))
	set := func(id http2.SettingID, v uint32) func(p *peer) {
		return func(p *peer) { p.must(p.framer.WriteSettings(http2.Setting{ID: id, Val: v})) }
	}
	f("ENABLE_PUSH 2", protocol, "protocol", set(http2.SettingEnablePush, 2))
	f("a window of 2^31", http2.ErrCodeFlowControl, "flow_control", set(http2.SettingInitialWindowSize, 1<<31))
	f("frames of 16383", protocol, "protocol", set(http2.SettingMaxFrameSize, 16383))
	f("frames of 2^24", protocol, "protocol", set(http2.SettingMaxFrameSize, 1<<24))
	f("a stream's window over 2^31-1 by SETTINGS", http2.ErrCodeFlowControl, "flow_control", func(p *peer) {
		p.headers(3, false, fields())
		p.must(p.framer.WriteWindowUpdate(3, 1<<20))
		set(http2.SettingInitialWindowSize, 1<<31-1)(p)
	})
	f("PUSH_PROMISE", protocol, "protocol", raw(http2.FramePushPromise, 0, 1, 4))
	f("PING on a stream", protocol, "protocol", raw(http2.FramePing, 0, 1, 8))
	f("PING of 7 bytes", size, "protocol", raw(http2.FramePing, 0, 0, 7))
	f("GOAWAY on a stream", protocol, "protocol", raw(http2.FrameGoAway, 0, 1, 8))
	f("GOAWAY of 7 bytes", size, "protocol", raw(http2.FrameGoAway, 0, 0, 7))
	f("WINDOW_UPDATE of 3 bytes", size, "protocol", raw(http2.FrameWindowUpdate, 0, 0, 3))
	f("WINDOW_UPDATE by 0", protocol, "protocol", raw(http2.FrameWindowUpdate, 0, 0, 4))
	f("WINDOW_UPDATE on an idle stream", protocol, "protocol", raw(http2.FrameWindowUpdate, 0, 5, 4))
	f("a window over 2^31-1", http2.ErrCodeFlowControl, "flow_control", func(p *peer) {
		p.must(p.framer.WriteWindowUpdate(0, 1<<31-1))
	})
	f("a frame of 16385 bytes", size, "protocol", raw(http2.FrameData, 0, 1, 16385))
	f("a second preface", size, "protocol", func(p *peer) { p.write([]byte(http2.ClientPreface)) })
}

// TestServerPreface: the preface and SETTINGS come first.
func TestServerPreface(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	f := func(name, text string, reason string, want int64) {
		t.Helper()
		p := r.dialRaw(t)
		p.write([]byte(text))
		if code, _ := p.gone(); code != http2.ErrCodeProtocol {
			t.Errorf("%s: %v", name, code)
		}
		r.refused(t, reason, want)
	}
	f("HTTP/1", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "preface", 1)
	f("TLS", "\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03", "preface", 2)
	f("a preface with a mistake", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r!", "preface", 3)
	f("a PING first", http2.ClientPreface+"\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678", "protocol", 1)
	f("an acknowledgement first", http2.ClientPreface+"\x00\x00\x00\x04\x01\x00\x00\x00\x00", "protocol", 2)
	// In pieces, as slow as it likes.
	p := r.dialRaw(t)
	for _, b := range []byte(http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00") {
		p.write([]byte{b})
	}
	p.calls(1)
}

// TestPings: each is answered; too many without calls end the connection, HEADERS and DATA in between forgive them.
func TestPings(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *rigOptions) { o.MinPing = time.Hour })
	p := r.dial(t)
	for i := range uint32(30) { // as a bandwidth probe does
		p.calls(2*i + 1)
		p.must(p.framer.WritePing(false, [8]byte{byte(i)}))
	}
	p.until("pongs", func() bool { return len(p.pongs) == 30 })
	if p.pongs[7] != [8]byte{7} {
		t.Errorf("%v", p.pongs)
	}
	for range 6 {
		p.framer.WritePing(false, [8]byte{})
	}
	if code, why := p.gone(); code != http2.ErrCodeEnhanceYourCalm || why != "too_many_pings" {
		t.Errorf("%v %q", code, why)
	}
	r.refused(t, "pings", 1)
}

// TestMaxStreams: streams over the limit are refused before they cost anything, whatever they are.
func TestMaxStreams(t *testing.T) {
	t.Parallel()
	store := newSlowStore()
	for _, slow := range []bool{false, true} {
		r := newRig(t, func(o *rigOptions) {
			if o.MaxStreams = 8; slow {
				o.store = store
			}
		})
		p := r.dial(t)
		if got := p.settings[http2.SettingMaxConcurrentStreams]; got != 8 {
			t.Fatal(got)
		}
		for i := range uint32(8) { // half open
			p.headers(2*i+1, false, fields())
			p.data(2*i+1, false, request()[:6])
		}
		p.sync(1)
		p.call(17)
		if got := p.response(17); got.code != http2.ErrCodeRefusedStream {
			t.Errorf("%v", got)
		}
		r.refused(t, "streams", 1)
		p.data(1, true, request()[6:])
		if slow {
			p.sync(1)
			close(store.gate)
		}
		if got := p.response(1); !got.ok() {
			t.Errorf("%v", got)
		}
		p.calls(19)
	}
}

// TestMaxStreams_window: answers that wait for a window keep their streams open.
func TestMaxStreams_window(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *rigOptions) { o.MaxStreams = 8 })
	p := r.dial(t, window(0))
	for i := range uint32(8) {
		p.call(2*i + 1)
	}
	p.sync(1)
	p.call(17)
	if got := p.response(17); got.code != http2.ErrCodeRefusedStream {
		t.Errorf("%v", got)
	}
	p.must(p.framer.WriteSettings(window(1000)))
	for i := range uint32(8) {
		if got := p.response(2*i + 1); !got.ok() {
			t.Errorf("%v", got)
		}
	}
	p.calls(19)
	if n := r.counted("ratelimit_server.ShouldRateLimit.total_requests"); n != 9 {
		t.Errorf("%d calls were decided, want 9", n)
	}
}

package h2grpc_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"gatehouse/shared/await"
)

// script turns a fuzzer's bytes into frames that RFC 9113 allows a client to send, two bytes each. It returns the
// streams that a client gives up, or whose bodies have another length than announced, whose answers are a race, and
// those that it leaves open.
func script(p *peer, ops []byte) (lost, unfinished map[uint32]bool) {
	heads := [][]hpack.HeaderField{
		fields(), fields(), fields(field("content-type", "application/grpc+proto")),
		fields(field("content-type", "x/y")), fields(field(":method", "GET")),
		fields(field("grpc-timeout", "0S")), fields(field("grpc-timeout", "60S")), fields(field("grpc-timeout", "?")),
		fields(field("grpc-encoding", []string{"snappy", "gzip"}[len(ops)%2])),
		fields(field(":path", "/no.such/Method")), fields(field(":path", "/grpc.health.v1.Health/Check")),
		fields(field("x-bin", "??")), fields(field("x-bin", "AAEC"), field("y", "z")),
		fields(field(":authority", "")), fields(field("content-length", fmt.Sprint(len(request())))),
		fields(field("Upper", "x")),
	}
	good, flagged := request(), request()
	flagged[0] = 3
	pieces := [][]byte{
		good, good, good[:1], good[1:7], good[:7], good[7:], nil, flagged, append(request(), good...), message(nil),
		message([]byte{0xff}), {0, 0, 0x50, 0, 0},
		zip(rawRequest("d", "k", "v")), {0}, message(rawRequest("d", "k", strings.Repeat("v", 3000))), message(rawRequest("", "", "")),
	}
	lost = map[uint32]bool{}
	lengths, rest := map[uint32]bool{}, map[uint32]int{} // of bodies with a content-length: what is still to come
	next := uint32(1)
	var open []uint32
	pick := func(n byte) int { return int(n) % len(open) }
	for ; len(ops) >= 2 && next < 200; ops = ops[2:] {
		op, arg := ops[0], ops[1]
		switch op % 8 {
		case 0, 1:
			end := arg >= 0xe0
			p.headers(next, end, heads[arg%16])
			if arg%16 == 14 { // content-length
				rest[next] = len(request())
				lengths[next], lost[next] = true, end
			}
			if !end {
				open = append(open, next)
			}
			next += 2
		case 2, 3, 4:
			if len(open) == 0 {
				continue
			}
			i := pick(op >> 3)
			p.data(open[i], arg >= 0x80, pieces[arg%16])
			rest[open[i]] -= len(pieces[arg%16])
			if arg >= 0x80 {
				lost[open[i]] = lost[open[i]] || lengths[open[i]] && rest[open[i]] != 0
				open = append(open[:i], open[i+1:]...)
			}
		case 5:
			if len(open) > 0 && arg >= 0xc0 {
				i := pick(op >> 3)
				p.must(p.framer.WriteRSTStream(open[i], http2.ErrCodeCancel))
				lost[open[i]] = true
				open = append(open[:i], open[i+1:]...)
			} else if next > 1 {
				p.must(p.framer.WriteWindowUpdate(next-2, uint32(arg)+1))
			}
		case 6:
			p.must(p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(arg) * 10}))
		case 7:
			switch arg % 4 {
			case 0:
				p.must(p.framer.WritePing(false, [8]byte{arg}))
			case 1:
				p.must(p.framer.WriteRawFrame(0x42, http2.Flags(arg), uint32(arg), ops))
			case 2:
				p.must(p.framer.WritePriority(next, http2.PriorityParam{StreamDep: 0}))
			case 3:
				p.must(p.framer.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: uint32(arg)}))
			}
		}
	}
	unfinished = map[uint32]bool{}
	for _, id := range open {
		unfinished[id] = true
	}
	return lost, unfinished
}

// comparable leaves out what two servers may see differently: which of several mistakes in one body is named. A body
// with a mistake may be answered before it ends (RFC 9113, section 8.1), as grpc-go does, or when it has.
func comparable(m map[string]string, lost, unfinished map[uint32]bool) map[string]string {
	for id, lost := range lost {
		if !lost {
			continue
		}
		delete(m, fmt.Sprintf("stream %d", id))
	}
	for id := range unfinished {
		name := fmt.Sprintf("stream %d", id)
		mistake := strings.Contains(m[name], `grpc-status "13"`) || strings.Contains(m[name], `grpc-status "8"`)
		if mistake && strings.Contains(m[name], `:status "200"`) {
			delete(m, name)
		}
	}
	for name, text := range m {
		for _, status := range []string{`grpc-status "13"`, `grpc-status "8"`} {
			if i := strings.Index(text, status); i >= 0 {
				m[name] = text[:i] + "a mistake"
			}
		}
	}
	return m
}

// FuzzDiffer sends the same frames to the native server and to grpc-go.
func FuzzDiffer(f *testing.F) {
	for _, seed := range []string{
		"\x00\x00\x02\x80", "\x00\x00\x02\x04\x02\x85", "\x00\x00\x00\x01\x0a\x80\x02\x80",
		"\x06\x00\x00\x00\x02\x80\x05\x10\x05\xb0", "\x00\x03\x02\x00\x00\x00\x02\x80",
		"\x00\x09\x02\x80\x00\x0a\x02\x89\x07\x01\x07\x00", "\x00\x00\x05\xff\x00\x00\x02\x88",
		"\x07\x03\x00\x00\x02\x80\x07\x07\x00\x00\x02\x80",
	} {
		f.Add([]byte(seed))
	}
	s := newPair(f)
	f.Fuzz(func(t *testing.T, ops []byte) {
		var lost, unfinished map[uint32]bool
		native, other := s.differ(t, func(p *peer) { lost, unfinished = script(p, ops) })
		if n, o := fmt.Sprint(comparable(native, lost, unfinished)),
			fmt.Sprint(comparable(other, lost, unfinished)); n != o {
			t.Errorf("%q:\nnative  %s\ngrpc-go %s", ops, n, o)
		}
	})
}

// FuzzConnection sends bytes of any kind, behind a preface and SETTINGS or without them. The server neither panics nor
// hangs, keeps little, and serves others.
func FuzzConnection(f *testing.F) {
	var b bytes.Buffer
	framer := http2.NewFramer(&b, nil)
	framer.AllowIllegalWrites = true
	for _, write := range []func(p *peer){
		func(p *peer) { p.call(1); p.call(3) },
		func(p *peer) {
			p.headers(1, false, fields())
			p.data(1, false, request()[:4])
			p.data(1, true, request()[4:])
		},
		func(p *peer) {
			p.headers(1, false, fields(field(":path", "/grpc.health.v1.Health/Watch")))
			p.data(1, true, checkHealth())
		},
		func(p *peer) {
			framer.WriteSettings(window(0))
			p.call(1)
			framer.WriteWindowUpdate(1, 5)
			framer.WriteRSTStream(1, 8)
		},
		func(p *peer) {
			framer.WritePing(false, [8]byte{})
			framer.WriteGoAway(0, 0, nil)
			framer.WritePriority(3, http2.PriorityParam{})
		},
		func(p *peer) {
			framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.encode(fields())})
			framer.WriteContinuation(1, true, nil)
		},
	} {
		b.Reset()
		p := &peer{t: f, framer: framer}
		p.encoder = hpack.NewEncoder(&p.block)
		write(p)
		f.Add(true, b.Bytes())
	}
	f.Add(false, []byte(http2.ClientPreface))
	f.Add(false, []byte("GET / HTTP/1.1\r\n\r\n"))
	r := newRig(f, func(o *rigOptions) { o.MaxStreams = 16 })
	f.Fuzz(func(t *testing.T, greeted bool, text []byte) {
		p := r.dialRaw(t)
		if greeted {
			p.write([]byte(http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.conn.Write(text)
			p.conn.(interface{ CloseWrite() error }).CloseWrite()
		}()
		p.framer.ReadMetaHeaders = nil // its content is others' to test
		var err error
		for err == nil {
			_, err = p.framer.ReadFrame()
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("no end after %q", text)
		}
		<-done
		p.conn.Close()
		await.True(t, "the connection is forgotten", func() bool {
			return r.native().Conns() == 0 && r.watches() == 0 && r.buffered() == 0
		})
		good := r.dial(t)
		good.calls(1)
		good.conn.Close()
		await.True(t, "the connection is forgotten", func() bool { return r.native().Conns() == 0 })
	})
}

package h2grpc_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"gatehouse/shared/await"
)

// TestHostile: peers that try to exhaust the server. Each is disconnected, or held, is counted, makes the server keep
// little, and the calls of another connection are answered meanwhile.
func TestHostile(t *testing.T) {
	const calm = http2.ErrCodeEnhanceYourCalm
	const either = http2.ErrCode(0xff) // it depends on who is faster
	open := func(p *peer, id uint32) { p.headers(id, false, fields()) }
	for _, c := range []struct {
		name   string
		code   http2.ErrCode // of GOAWAY; ErrCodeNo: the connection stays
		reason string
		send   func(p *peer, i uint32) // the i-th piece
	}{
		{"rapid reset", calm, "flood", func(p *peer, i uint32) {
			open(p, 2*i+1)
			p.framer.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		}},
		{"rapid reset of other methods", calm, "flood", func(p *peer, i uint32) {
			p.headers(2*i+1, false, fields(field(":path", "/grpc.health.v1.Health/Watch")))
			p.framer.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		}},
		{"resets that the server makes", calm, "flood", func(p *peer, i uint32) { // CVE-2025-8671
			open(p, 2*i+1)
			p.framer.WriteWindowUpdate(2*i+1, 0)
		}},
		{"malformed requests", calm, "flood", func(p *peer, i uint32) {
			p.headers(2*i+1, true, fields(field("Upper", "x")))
		}},
		{"CONTINUATION", calm, "headers", func(p *peer, i uint32) {
			if i == 0 {
				p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.encode(fields())})
			}
			p.framer.WriteContinuation(1, false, bytes.Repeat([]byte{0x82}, 16000))
		}},
		{"empty CONTINUATION", calm, "headers", func(p *peer, i uint32) {
			if i == 0 {
				p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.encode(fields())})
			}
			p.framer.WriteContinuation(1, false, nil)
		}},
		{"SETTINGS", calm, "flood", func(p *peer, i uint32) { p.framer.WriteSettings() }},
		{"long SETTINGS", calm, "flood", func(p *peer, i uint32) {
			p.framer.WriteSettings(make([]http2.Setting, 65)...)
		}},
		{"SETTINGS acknowledgements", calm, "flood", func(p *peer, i uint32) { p.framer.WriteSettingsAck() }},
		{"PING", calm, "pings", func(p *peer, i uint32) { p.framer.WritePing(false, [8]byte{}) }},
		{"PING acknowledgements", calm, "flood", func(p *peer, i uint32) { p.framer.WritePing(true, goAwayPing) }},
		{"PRIORITY", calm, "flood", func(p *peer, i uint32) { p.framer.WritePriority(2*i+1, http2.PriorityParam{}) }},
		{"WINDOW_UPDATE", calm, "flood", func(p *peer, i uint32) { p.framer.WriteWindowUpdate(0, 1) }},
		{"empty DATA", calm, "flood", func(p *peer, i uint32) {
			if i == 0 {
				open(p, 1)
			}
			p.framer.WriteData(1, false, nil)
		}},
		{"DATA of padding", calm, "flood", func(p *peer, i uint32) {
			if i == 0 {
				open(p, 1)
			}
			p.framer.WriteDataPadded(1, false, nil, make([]byte, 100))
		}},
		{"DATA on a closed stream", calm, "flood", func(p *peer, i uint32) {
			if i == 0 {
				p.call(1)
			}
			p.framer.WriteData(1, false, []byte("x"))
		}},
		{"unknown frames", calm, "flood", func(p *peer, i uint32) { p.framer.WriteRawFrame(0x42, 0, 0, nil) }},
		{"GOAWAY", calm, "flood", func(p *peer, i uint32) { p.framer.WriteGoAway(0, 0, nil) }},
		{"half-open streams", calm, "streams", func(p *peer, i uint32) { open(p, 2*i+1) }},
		{"messages that never end", http2.ErrCodeNo, "buffered", func(p *peer, i uint32) {
			if i%4 == 0 {
				open(p, 2*(i/4)+1)
				p.data(2*(i/4)+1, false, []byte{0, 0, 0x3f, 0, 0})
			}
			p.data(2*(i/4)+1, false, make([]byte, 16000))
		}},
		{"bodies without end for another method", either, "", func(p *peer, i uint32) {
			if i%20 == 0 {
				p.headers(2*(i/20)+1, false,
					fields(field(":path", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")))
				p.data(2*(i/20)+1, false, []byte{0, 0, 0x3f, 0, 0})
			}
			p.data(2*(i/20)+1, false, make([]byte, 16000))
		}},
		{"a header bomb", calm, "flood", func(p *peer, i uint32) { // CVE-2016-6581: references to one long entry
			block := p.encode(append(fields(), field("x", strings.Repeat("x", 3000))))
			p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: append(block,
				bytes.Repeat([]byte{0x80 | 62}, 12000)...), EndHeaders: true, EndStream: true})
		}},
		{"calls and no window", calm, "streams", func(p *peer, i uint32) {
			if i == 0 {
				p.framer.WriteSettings(window(0))
			}
			p.call(2*i + 1)
		}},
		{"calls, resets and no window, in turn", http2.ErrCodeNo, "", func(p *peer, i uint32) {
			if i == 0 {
				p.framer.WriteSettings(window(0))
			}
			p.call(2*i + 1)
			if i >= 200 {
				p.framer.WriteRSTStream(2*(i-200)+1, http2.ErrCodeCancel)
			}
		}},
		{"calls, resets and no window", http2.ErrCodeNo, "", func(p *peer, i uint32) {
			if i == 0 {
				p.framer.WriteSettings(window(0))
			}
			p.call(2*i + 1)
			p.framer.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(o *rigOptions) { o.MinPing = 2 * time.Second })
			stop := r.neighbour(t)
			before := allocated()
			p := r.dialQuiet(t)
			most := r.attack(t, p, c.send)
			got := http2.ErrCodeNo
			if p.goAway != nil {
				got = p.goAway[0].ErrCode
			}
			if got != c.code && c.code != either {
				t.Errorf("GOAWAY %v %q, %v; want %v", got, p.why, p.err, c.code)
			}
			if c.reason != "" && r.counted(refusals+c.reason) == 0 {
				t.Errorf("%s%s is not counted", refusals, c.reason)
			}
			if grown := allocated() - before; grown > 24<<20 || most > 24<<20 {
				t.Errorf("the heap has grown by %d KiB, at most by %d KiB", grown>>10, most>>10)
			}
			p.conn.Close()
			await.True(t, "nothing is kept", func() bool { return r.buffered() == 0 && r.watches() == 0 })
			stop()
		})
	}
}

// dialQuiet is a peer that another goroutine reads: it keeps no answers but GOAWAY.
func (r *rig) dialQuiet(t testing.TB) *peer {
	p := r.dial(t)
	p.framer.ReadMetaHeaders = nil
	return p
}

// attack sends up to a number of pieces while it reads what comes, and returns how much the heap grew by at most.
func (r *rig) attack(t testing.TB, p *peer, send func(p *peer, i uint32)) (most int64) {
	t.Helper()
	before := allocated()
	var reading sync.WaitGroup
	ended := make(chan struct{})
	reader := http2.NewFramer(io.Discard, p.conn)
	reader.SetMaxReadFrameSize(1<<24 - 1)
	reading.Go(func() {
		defer close(ended)
		for {
			frame, err := reader.ReadFrame()
			if err != nil {
				p.err = err
				return
			}
			if f, ok := frame.(*http2.GoAwayFrame); ok {
				p.goAway = append(p.goAway, http2.GoAwayFrame{FrameHeader: f.FrameHeader, LastStreamID: f.LastStreamID,
					ErrCode: f.ErrCode})
				p.why = append(p.why, string(f.DebugData()))
			}
		}
	})
	conn := p.conn
	var b bytes.Buffer
	p.conn = collector{conn, &b}
	p.framer = http2.NewFramer(&b, nil)
	p.framer.AllowIllegalWrites = true
	end := time.Now().Add(patience)
attack:
	for i, sent := uint32(0), 0; i < 20000 && sent < 48<<20 && time.Now().Before(end); {
		b.Reset()
		for range 20 {
			send(p, i)
			i++
		}
		sent += b.Len()
		if _, err := conn.Write(b.Bytes()); err != nil {
			break
		}
		if i%2000 == 0 {
			most = max(most, allocated()-before)
		}
		select {
		case <-ended:
			break attack
		default:
		}
	}
	conn.SetReadDeadline(time.Now().Add(time.Second))
	reading.Wait()
	return max(most, allocated()-before)
}

// allocated is the size of what is reachable.
func allocated() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// neighbour makes calls on another connection until it is stopped: all have to be answered.
func (r *rig) neighbour(t *testing.T) (stop func()) {
	p := r.dial(t)
	p.must(p.framer.WriteWindowUpdate(0, 1<<30))
	quit := make(chan struct{})
	var took []time.Duration
	var all sync.WaitGroup
	all.Go(func() {
		for id := uint32(1); ; id += 2 {
			select {
			case <-quit:
				return
			default:
			}
			begin := time.Now()
			p.conn.SetDeadline(begin.Add(patience))
			p.call(id)
			if got := p.response(id); !got.ok() {
				t.Errorf("a neighbour's call: %v", got)
				return
			}
			delete(p.responses, id)
			took = append(took, time.Since(begin))
			time.Sleep(time.Millisecond)
		}
	})
	return func() {
		t.Helper()
		close(quit)
		all.Wait()
		slices.Sort(took)
		if len(took) == 0 {
			t.Fatal("no call of a neighbour")
		}
		t.Logf("%d calls of a neighbour: p50 %s, p99 %s", len(took), took[len(took)/2], took[len(took)*99/100])
	}
}

// TestHostile_notReading: a peer that sends calls and reads nothing is read no further, and cut after the time-out.
func TestHostile_notReading(t *testing.T) {
	r := newRig(t, func(o *rigOptions) { o.KeepaliveTimeout = 700 * time.Millisecond })
	stop := r.neighbour(t)
	defer stop()
	p := r.dial(t)
	p.conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	p.must(p.framer.WriteWindowUpdate(0, 1<<30))
	var calls bytes.Buffer
	conn := p.conn
	conn.SetWriteDeadline(time.Now().Add(3 * patience))
	p.framer = http2.NewFramer(&calls, nil)
	id, sent, most := uint32(1), 0, 0
	for {
		calls.Reset()
		for range 200 {
			p.call(id)
			id += 2
		}
		n, err := conn.Write(calls.Bytes())
		sent += n
		_, _, held := r.native().Held()
		if most = max(most, held); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal("the connection lives on")
			}
			if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
				t.Error(err)
			}
			break
		}
	}
	r.refused(t, "not_reading", 1)
	if most > 1<<20 {
		t.Errorf("%d KiB of answers were kept", most>>10)
	}
	t.Logf("cut after %d KiB; at most %d KiB kept", sent>>10, most>>10)
}

// TestHostile_silent: a peer that says nothing, and one that stops in the middle of its preface.
func TestHostile_silent(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits ten seconds")
	}
	r := newRig(t, nil)
	silent, half, unsettled := r.dialRaw(t), r.dialRaw(t), r.dialRaw(t)
	half.write([]byte(http2.ClientPreface[:10]))
	unsettled.write([]byte(http2.ClientPreface))
	for _, p := range []*peer{silent, half, unsettled} {
		for p.next() {
		}
		if errors.Is(p.err, os.ErrDeadlineExceeded) {
			t.Error("the connection lives on")
		}
	}
	r.refused(t, "silent", 3)
}

// TestHostile_buffers: ten thousand bytes of a frame that never ends are all that a connection keeps.
func TestHostile_partial(t *testing.T) {
	r := newRig(t, nil)
	before := allocated()
	var peers []*peer
	for range 200 {
		p := r.dial(t)
		p.write(append([]byte{0, 0x40, 0, 0, 0, 0, 0, 0, 1}, make([]byte, 10000)...))
		peers = append(peers, p)
	}
	time.Sleep(100 * time.Millisecond)
	if grown := allocated() - before; grown > 200*64<<10 {
		t.Errorf("%d KiB for each connection", grown>>10/200)
	} else {
		t.Logf("%d KiB for each connection, client's side included", grown>>10/200)
	}
	for _, p := range peers {
		p.conn.Close()
	}
}

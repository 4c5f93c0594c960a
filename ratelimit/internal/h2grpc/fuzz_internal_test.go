package h2grpc

import (
	"bytes"
	"net"
	"reflect"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// FuzzHeaderBlocks decodes blocks that follow each other, each preceded by its length. What is remembered means what a
// reader that remembers nothing finds, and x/net's decoder agrees on what is no block.
func FuzzHeaderBlocks(f *testing.F) {
	join := func(blocks ...[]byte) (b []byte) {
		for _, block := range blocks {
			b = append(append(b, byte(len(block))), block...)
		}
		return b
	}
	plain := literal(usual()...)[:200]
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	var blocks [][]byte
	for range 4 {
		b.Reset()
		for _, field := range usual() {
			if err := e.WriteField(field); err != nil {
				f.Fatal(err)
			}
		}
		blocks = append(blocks, bytes.Clone(b.Bytes()))
	}
	f.Add(join(plain, plain, plain))
	f.Add(join(blocks...))
	f.Add(join(blocks[0], blocks[1], []byte{0x20}, blocks[1], blocks[0], blocks[1]))
	f.Add(join(blocks[0], blocks[1], []byte{0x40, 1, 'x', 1, 'y'}, blocks[1]))
	f.Add(join([]byte{0x3f, 0xe1, 0x1f, 0x82}, []byte{0xff, 0xff}, nil))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, fresh := newHeaderReader(testPath, false), newHeaderReader(testPath, false)
		d := hpack.NewDecoder(tableSize, nil)
		for len(text) > 0 {
			n := min(int(text[0]), len(text)-1)
			block := text[1 : n+1]
			text = text[n+1:]
			clear(fresh.remembered[:])
			got, err := r.read(block)
			want, wantErr := fresh.read(block)
			if (err == nil) != (wantErr == nil) || !reflect.DeepEqual(got, want) {
				t.Fatalf("%x: %+v %v, want %+v %v", block, got, err, want, wantErr)
			}
			if _, plainErr := d.DecodeFull(block); (plainErr == nil) != (err == nil) {
				t.Fatalf("%x: %v, want %v", block, err, plainErr)
			}
			if err != nil {
				return
			}
			if got.malformed && got.method != methodUnknown {
				t.Fatalf("%x: malformed, and has a method", block)
			}
		}
	})
}

// FuzzFrames cuts bytes into reads of any length. What comes of them does not depend on that, and x/net's Framer finds
// the same frames.
func FuzzFrames(f *testing.F) {
	var b bytes.Buffer
	framer := http2.NewFramer(&b, nil)
	framer.WriteSettings()
	framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: literal(usual()...), EndHeaders: true})
	framer.WriteData(1, true, []byte{0, 0, 0, 0, 0})
	f.Add([]byte{3}, b.Bytes())
	framer.WriteWindowUpdate(0, 5)
	framer.WritePing(false, [8]byte{1})
	framer.WriteRSTStream(1, 8)
	framer.WriteSettingsAck()
	f.Add([]byte{9, 1, 200}, b.Bytes())
	f.Add([]byte{1}, []byte("\x00\x40\x01\x00\x00\x00\x00\x00\x01"))
	f.Add([]byte{200}, appendFrameHeader(appendFrameHeader(nil, 0, http2.FrameSettings, 0, 0), 3, 0x42, 0, 0))
	f.Fuzz(func(t *testing.T, cuts, text []byte) {
		if len(text) > 30<<10 {
			return
		}
		text = append([]byte(http2.ClientPreface), text...)
		run := func(cuts []byte) ([]byte, *connError) {
			c, out := newFed(t)
			rest := text
			for i := 0; len(rest) > 0; i++ {
				n := len(rest)
				if len(cuts) > 0 {
					n = min(int(cuts[i%len(cuts)])+1, n)
				}
				err := c.feedAsRead(rest[:n])
				if rest = rest[n:]; err != nil {
					return out.bytes(), err
				}
			}
			return out.bytes(), nil
		}
		want, wantErr := run(nil)
		got, err := run(cuts)
		if (err == nil) != (wantErr == nil) || err != nil && *err != *wantErr {
			t.Fatalf("cut: %v, whole: %v", err, wantErr)
		}
		a, b := answered(t, got), answered(t, want)
		for rest := text[len(http2.ClientPreface):]; len(rest) >= frameHeaderLen; {
			h := parseFrameHeader(rest)
			if h.kind == http2.FrameRSTStream { // the answer may have gone before the reset was read
				delete(a, h.stream)
				delete(b, h.stream)
			}
			rest = rest[min(frameHeaderLen+h.length, len(rest)):]
		}
		if !reflect.DeepEqual(a, b) {
			t.Fatalf("cut: %v, whole: %v", a, b)
		}
	})
}

// answered are the frames of streams by their type, for each stream in order.
func answered(t *testing.T, b []byte) map[uint32][]http2.FrameType {
	m := map[uint32][]http2.FrameType{}
	for len(b) > 0 {
		h := parseFrameHeader(b)
		if len(b) < frameHeaderLen+h.length {
			t.Fatalf("a frame of ours is cut short: %+v", h)
		}
		if h.stream != 0 && h.kind != http2.FrameWindowUpdate {
			m[h.stream] = append(m[h.stream], h.kind)
		}
		b = b[frameHeaderLen+h.length:]
	}
	return m
}

// recorder is a wire that keeps what is written.
type recorder struct{ all bytes.Buffer }

func (r *recorder) read(func() []byte, func()) (int, error) { return 0, net.ErrClosed }
func (r *recorder) write(b []byte) (bool, error)            { r.all.Write(b); return true, nil }
func (r *recorder) drain(time.Time) error                   { return nil }
func (r *recorder) left() int                               { return 0 }
func (r *recorder) bytes() []byte                           { return r.all.Bytes() }

// feedAsRead is what serve does with one read.
func (c *conn) feedAsRead(b []byte) *connError {
	c.in.now = time.Now()
	c.in.arrived = c.in.now
	buf := append(bufferPool.Get().(*[bufferBytes]byte)[:0], c.in.partial...)
	buf = append(buf, b...)
	bad := c.feed(buf)
	recycle(buf)
	c.dispatch()
	c.out.flush()
	c.in.open, _ = c.out.waitRoom(c.server.o.MaxStreams)
	return bad
}

// unsent is a recorder whose last bytes the peer has not taken, as TLS leaves its answer to a change of keys.
type unsent struct {
	recorder
	drained chan struct{}
}

func (u *unsent) left() int { return 5 }

func (u *unsent) drain(time.Time) error { close(u.drained); return nil }

// TestFlush_left: what the wire has left of itself is drained, though the send queue has nothing to send.
func TestFlush_left(t *testing.T) {
	c, _ := newFed(t)
	u := &unsent{drained: make(chan struct{})}
	c.wire, c.out.wire = u, u
	c.out.flush()
	select {
	case <-u.drained:
	case <-time.After(10 * time.Second):
		t.Error("nothing is drained")
	}
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
}

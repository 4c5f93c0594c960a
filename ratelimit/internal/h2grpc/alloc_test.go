//go:build !race

package h2grpc

import (
	"bytes"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// discard is a wire that takes everything.
type discard struct{ n int }

func (d *discard) read(func() []byte, func()) (int, error) { return 0, nil }
func (d *discard) write(b []byte) (bool, error)            { d.n += len(b); return true, nil }
func (d *discard) drain(time.Time) error                   { return nil }
func (d *discard) left() int                               { return 0 }

// envoyCalls writes the frames of n calls, with header blocks as Envoy sends them: :path is a literal always, and what
// changes from call to call is none of the fields.
func envoyCalls(t testing.TB, first uint32, n int) []byte {
	t.Helper()
	message, err := proto.Marshal(&pb.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitpb.RateLimitDescriptor{
		{Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: "k", Value: "some-value"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var block, frames bytes.Buffer
	e := hpack.NewEncoder(&block)
	write := func(path bool, fields []hpack.HeaderField) {
		for _, f := range fields {
			if f.Name == ":path" && path {
				block.Write(appendField(nil, 4, "", f.Value))
				continue
			}
			if err := e.WriteField(f); err != nil {
				t.Fatal(err)
			}
		}
	}
	fields := append(usual(), hpack.HeaderField{Name: "grpc-timeout", Value: "20m"},
		hpack.HeaderField{Name: "x-envoy-internal", Value: "true"},
		hpack.HeaderField{Name: "x-forwarded-for", Value: "10.0.0.1"},
		hpack.HeaderField{Name: "x-envoy-expected-rq-timeout-ms", Value: "20"})
	framer := http2.NewFramer(&frames, nil)
	for i := range n {
		block.Reset()
		write(true, fields)
		id := first + 2*uint32(i)
		if err := framer.WriteHeaders(
			http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}); err != nil {
			t.Fatal(err)
		}
		if err := framer.WriteData(id, true, grpcMessage(message)); err != nil {
			t.Fatal(err)
		}
	}
	return frames.Bytes()
}

// grpcMessage puts the prefix of gRPC before a message.
func grpcMessage(b []byte) []byte {
	sealed, err := (&stream{}).seal(append(beginMessage(nil), b...), 0)
	if err != nil {
		panic(err)
	}
	return sealed
}

// TestAllocs: a call costs none, on the in-process store, whether its frames come together or in two reads.
func TestAllocs(t *testing.T) {
	const rounds, calls = 200, 64
	f := func(name string, reads func(b []byte) [][]byte) {
		t.Helper()
		c, _ := newFed(t)
		out := &discard{}
		c.wire, c.out.wire = out, out
		c.out.window, c.out.initial = maxWindow, maxWindow
		hello := appendFrameHeader([]byte(http2.ClientPreface), 0, http2.FrameSettings, 0, 0)
		if err := c.feedAsRead(hello); err != nil {
			t.Fatal(err)
		}
		all := envoyCalls(t, 1, (rounds+2)*calls)
		size := len(all) / ((rounds + 2) * calls)
		// The first blocks fill the table, so they are longer.
		warm := len(all) - size*(rounds*calls)
		var pieces [][]byte
		for b := all[:warm]; len(b) > 0; {
			n := min(len(b), 30000)
			if err := c.feedAsRead(b[:n]); err != nil {
				t.Fatal(err)
			}
			b = b[n:]
		}
		for rest := all[warm:]; len(rest) >= size*calls; rest = rest[size*calls:] {
			pieces = append(pieces, rest[:size*calls])
		}
		before := out.n
		i := 0
		allocs := testing.AllocsPerRun(len(pieces)-1, func() {
			for _, b := range reads(pieces[i]) {
				if err := c.feedAsRead(b); err != nil {
					t.Fatal(err)
				}
			}
			i++
		})
		if answered := c.server.requests.Value(); answered < (rounds-2)*calls {
			t.Errorf("%s: %d calls answered", name, answered)
		}
		if out.n == before {
			t.Errorf("%s: nothing was written", name)
		}
		if perCall := allocs / calls; perCall > 0.01 {
			t.Errorf("%s: %.2f allocations a call, %v a read", name, perCall, allocs)
		}
	}
	one := make([][]byte, 1)
	f("together", func(b []byte) [][]byte { one[0] = b; return one })
	two := make([][]byte, 2)
	f("cut in the middle of a frame", func(b []byte) [][]byte {
		two[0], two[1] = b[:len(b)/2+3], b[len(b)/2+3:]
		return two
	})
	f("cut behind HEADERS", func(b []byte) [][]byte {
		n := frameHeaderLen + parseFrameHeader(b).length
		two[0], two[1] = b[:n], b[n:]
		return two
	})
}

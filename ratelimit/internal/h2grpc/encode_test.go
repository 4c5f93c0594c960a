package h2grpc

import (
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestEncoder decodes what the encoder writes, in any order of blocks, while the peer changes the size of its table.
func TestEncoder(t *testing.T) {
	field := func(name, value string) hpack.HeaderField { return hpack.HeaderField{Name: name, Value: value} }
	type step struct {
		encode func(e *encoder) []byte
		want   []hpack.HeaderField
	}
	steps := []step{
		{func(e *encoder) []byte {
			return e.headers(nil, &header{})
		}, []hpack.HeaderField{field(":status", "200"), field("content-type", "application/grpc")}},
		{func(e *encoder) []byte {
			return e.headers(nil, &header{subtype: "proto"})
		}, []hpack.HeaderField{field(":status", "200"), field("content-type", "application/grpc+proto")}},
		{func(e *encoder) []byte { return e.trailers(nil) }, []hpack.HeaderField{field("grpc-status", "0")}},
		{func(e *encoder) []byte {
			return e.refusal(nil, &refusal{code: codes.Internal, message: "50 %", subtype: "proto"})
		}, []hpack.HeaderField{field(":status", "200"), field("content-type", "application/grpc+proto"),
			field("grpc-status", "13"), field("grpc-message", "50 %25")}},
		{func(e *encoder) []byte {
			return e.refusal(nil, &refusal{status: 415, code: codes.InvalidArgument, message: strings.Repeat("x", 300)})
		}, []hpack.HeaderField{field(":status", "415"), field("content-type", "application/grpc"), field("grpc-status",
			"3"), field("grpc-message", strings.Repeat("x", 300))}},
		{func(e *encoder) []byte {
			return e.headers(nil, &header{encoding: "gzip"})
		}, []hpack.HeaderField{field(":status", "200"), field("grpc-encoding", "gzip"),
			field("content-type", "application/grpc")}},
		{func(e *encoder) []byte {
			return e.failure(nil, &refusal{code: codes.Canceled, message: "ended"})
		}, []hpack.HeaderField{field("grpc-status", "1"), field("grpc-message", "ended")}},
	}
	sizes := []int{0, 50, 59, 60, 103, 104, 105, 200, tableSize, 1 << 16}
	f := func(seed uint64, first int) {
		t.Helper()
		random := rand.New(rand.NewPCG(seed, 1))
		e := newEncoder()
		d := hpack.NewDecoder(tableSize, nil)
		allowed := tableSize
		var log []string
		changed := -1 // the smallest size that was announced since the last block
		resize := func(n int) {
			log = append(log, fmt.Sprint("size ", n))
			if d.SetAllowedMaxDynamicTableSize(uint32(n)); n < allowed {
				changed = n
			}
			allowed = min(allowed, n)
			e.resize(min(n, tableSize))
		}
		if first >= 0 {
			resize(first)
		}
		// A client's tables hold what was sent; a trailer follows its headers, perhaps much later.
		open := 0
		for range 60 {
			if first < 0 && random.IntN(12) == 0 {
				resize(sizes[random.IntN(len(sizes))])
				continue
			}
			i := random.IntN(len(steps))
			switch i {
			case 0, 1:
				open++
			case 2:
				if open == 0 {
					continue
				}
				open--
			}
			block := steps[i].encode(&e)
			log = append(log, fmt.Sprintf("step %d: %x", i, block))
			if updates := block[0]&0xe0 == 0x20; updates != (changed >= 0) {
				t.Fatalf("a block begins with a size is %v, want %v, after %q", updates, changed >= 0, log)
			}
			changed = -1
			got, err := d.DecodeFull(block)
			if err != nil {
				t.Fatalf("%v, after %q", err, log)
			}
			if !slices.Equal(got, steps[i].want) {
				t.Fatalf("got %v, want %v, after %q", got, steps[i].want, log)
			}
		}
	}
	for seed := range uint64(300) {
		f(seed, -1)
	}
	for _, n := range sizes {
		for seed := range uint64(20) {
			f(seed, n)
		}
	}
}

// TestEncoder_short: what nearly all answers have costs two bytes and one.
func TestEncoder_short(t *testing.T) {
	e := newEncoder()
	e.trailers(e.headers(nil, &header{}))
	if h, tr := e.headers(nil, &header{}), e.trailers(nil); len(h) != 2 || len(tr) != 1 {
		t.Errorf("headers %x, trailers %x", h, tr)
	}
}

// TestAppendInt reads integers back as the decoder of header blocks does, and as hpack's does.
func TestAppendInt(t *testing.T) {
	for _, n := range []uint64{0, 1, 14, 15, 16, 30, 31, 32, 126, 127, 128, 254, 255, 256, 1337, 1<<14 - 1, 1 << 14,
		1<<28 - 1} {
		for _, bits := range []uint{4, 5, 7} {
			b := appendInt(nil, 0, bits, n)
			got, rest, ok := readInt(append(b, 0xaa), bits)
			if !ok || got != n || len(rest) != 1 {
				t.Errorf("%d with %d bits: read %d, %d bytes left, %v", n, bits, got, len(rest), ok)
			}
		}
	}
	if _, _, ok := readInt([]byte{0x7f, 0xff, 0xff, 0xff, 0xff, 0xff}, 7); ok {
		t.Error("read an integer without an end")
	}
}

// messages is a response of grpc-go: it says in grpc-message what text says.
type messages struct{ text string }

func (m *messages) encode(t testing.TB) string {
	g := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		return status.Error(codes.Unknown, m.text)
	}))
	defer g.Stop()
	r := httptest.NewRequest("POST", "/a/b", strings.NewReader(""))
	r.Proto, r.ProtoMajor = "HTTP/2.0", 2
	r.Header.Set("Content-Type", "application/grpc")
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	return w.Result().Trailer.Get("Grpc-Message")
}

func TestPercentEncode(t *testing.T) {
	for _, text := range []string{
		"plain text", "100 %", "line\nline\r", "tilde~ del\x7f", "\x00\x1f", "Grüße", "\u20ac 5", "\U0001f600",
		"bad \xff utf-8 \xc3", "\xed\xa0\x80", "a%20b", "\ufffd",
	} {
		want := (&messages{text}).encode(t)
		if got := percentEncode(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

package h2grpc

import (
	"bytes"
	"encoding/base64"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
)

const testPath = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

// usual are the fields of a call, as grpc-go's client sends them.
func usual() []hpack.HeaderField {
	return []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: testPath},
		{Name: ":authority", Value: "ratelimit"},
		{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	}
}

// literal writes a block that leaves the dynamic table as it is.
func literal(fields ...hpack.HeaderField) []byte {
	var b []byte
	for _, f := range fields {
		b = appendField(b, 0, f.Name, f.Value)
	}
	return b
}

// TestHeaderReader_judge: what a request's fields mean.
func TestHeaderReader_judge(t *testing.T) {
	f := func(name string, change func(fields []hpack.HeaderField) []hpack.HeaderField, want header) {
		t.Helper()
		h, err := newHeaderReader(testPath, false).read(literal(change(usual())...))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		if h.refusal != nil && want.refusal != nil {
			if !strings.Contains(h.refusal.message, want.refusal.message) || h.refusal.code != want.refusal.code ||
				h.refusal.status != want.refusal.status {
				t.Errorf("%s: refused with %+v, want %+v", name, h.refusal, want.refusal)
			}
			h.refusal, want.refusal = nil, nil
		}
		if (h.refusal == nil) != (want.refusal == nil) || h.malformed != want.malformed || h.method != want.method &&
			!want.malformed {
			t.Errorf("%s: %+v, want %+v", name, h, want)
		}
		if h.timed != want.timed || h.timeout != want.timeout || h.subtype != want.subtype ||
			h.encoding != want.encoding {
			t.Errorf("%s: %+v, want %+v", name, h, want)
		}
	}
	set := func(name, value string) func([]hpack.HeaderField) []hpack.HeaderField {
		return func(fields []hpack.HeaderField) []hpack.HeaderField {
			for i := range fields {
				if fields[i].Name == name {
					fields[i].Value = value
					return fields
				}
			}
			return append(fields, hpack.HeaderField{Name: name, Value: value})
		}
	}
	without := func(name string) func([]hpack.HeaderField) []hpack.HeaderField {
		return func(fields []hpack.HeaderField) []hpack.HeaderField {
			var kept []hpack.HeaderField
			for _, f := range fields {
				if f.Name != name {
					kept = append(kept, f)
				}
			}
			return kept
		}
	}
	also := func(name, value string) func([]hpack.HeaderField) []hpack.HeaderField {
		return func(fields []hpack.HeaderField) []hpack.HeaderField {
			return append(fields, hpack.HeaderField{Name: name, Value: value})
		}
	}
	first := func(name, value string) func([]hpack.HeaderField) []hpack.HeaderField {
		return func(fields []hpack.HeaderField) []hpack.HeaderField {
			return append([]hpack.HeaderField{{Name: name, Value: value}}, fields...)
		}
	}
	good := header{method: methodDecide}
	f("as it is", without("nothing"), good)
	f("without te", without("te"), good)
	f("host for authority", func(f []hpack.HeaderField) []hpack.HeaderField {
		return set("host", "x")(without(":authority")(f))
	}, good)
	f("both", also("host", "x"), good)
	f("proto", set("content-type", "application/grpc+proto"), header{method: methodDecide, subtype: "proto"})
	f("parameters", set("content-type", "application/grpc;charset=utf-8"),
		header{method: methodDecide, subtype: "charset=utf-8"})
	f("upper case type", set("content-type", "Application/GRPC"), good)
	f("timeout", also("grpc-timeout", "250m"), header{method: methodDecide, timed: true, timeout: 250 * time.Millisecond})
	f("identity", also("grpc-encoding", "identity"), good)
	f("metadata", also("x-some-bin", "AAEC"), good)
	f("length", also("content-length", "12"), good)
	f("a health check", set(":path", "/grpc.health.v1.Health/Check"), header{method: methodCheck})
	f("compressed", also("grpc-encoding", "gzip"), header{method: methodDecide, encoding: "gzip"})

	refused := func(status int, code codes.Code, message string) header {
		return header{method: methodDecide, refusal: &refusal{status: status, code: code, message: message}}
	}
	f("type", set("content-type", "application/json"),
		refused(415, codes.InvalidArgument, `invalid gRPC request content-type "application/json"`))
	f("type with more letters", set("content-type", "application/grpcx"),
		refused(415, codes.InvalidArgument, `"application/grpcx"`))
	f("type of grpc-web", set("content-type", "application/grpc-web"),
		refused(415, codes.InvalidArgument, `"application/grpc-web"`))
	f("no type", without("content-type"), refused(415, codes.InvalidArgument, `content-type ""`))
	f("method", set(":method", "GET"), refused(405, codes.Internal, `:method "GET" which should be POST`))
	f("two hosts", func(f []hpack.HeaderField) []hpack.HeaderField {
		return also("host", "x")(also("host", "x")(f))
	}, refused(400, codes.Internal, "num values of :authority: 1, num values of host: 2"))
	f("no authority", without(":authority"), refused(400, codes.Internal, "no host or :authority header present"))
	f("binary", also("x-bin", "!"), refused(400, codes.Internal, `malformed binary metadata in header "x-bin"`))
	timed := refused(400, codes.Internal, "malformed grpc-timeout")
	timed.timed = true
	f("bad timeout", also("grpc-timeout", "1"), timed)
	timed.refusal = &refusal{code: codes.DeadlineExceeded, message: "context deadline exceeded"}
	f("no time", also("grpc-timeout", "0S"), timed)
	long := refused(431, codes.ResourceExhausted, "the header list is too long")
	f("too long", also("x", strings.Repeat("x", maxHeaderList)), long)

	bad := header{malformed: true}
	for _, c := range []hpack.HeaderField{
		{Name: ":path", Value: "/again"}, {Name: ":method", Value: "POST"}, {Name: ":status", Value: "200"},
		{Name: ":protocol", Value: "x"}, {Name: ":authority", Value: "late"},
		{Name: "connection", Value: "close"}, {Name: "proxy-connection", Value: "close"}, {Name: "keep-alive",
			Value: "1"}, {Name: "transfer-encoding", Value: "chunked"}, {Name: "upgrade", Value: "x"},
		{Name: "te", Value: "gzip"}, {Name: "X-Upper", Value: "x"}, {Name: "sp ace", Value: "x"},
		{Name: "", Value: "x"}, {Name: "x", Value: "a\nb"}, {Name: "x", Value: "a\x00b"},
		{Name: "content-length", Value: "x"}, {Name: "content-length", Value: "-1"},
	} {
		f(c.Name+" "+c.Value, also(c.Name, c.Value), bad)
	}
	f("two lengths", func(f []hpack.HeaderField) []hpack.HeaderField {
		return also("content-length", "5")(also("content-length", "6")(f))
	}, bad)
	f("two authorities", first(":authority", "x"), bad)
	for _, name := range []string{":method", ":path", ":scheme"} {
		f("no "+name, without(name), bad)
		f("empty "+name, set(name, ""), bad)
		f("two of "+name, first(name, "x"), bad)
	}
}

// TestHeaderReader_remembered: a block that was remembered means what a decoder that remembers nothing makes of it,
// also when the table changes under it.
func TestHeaderReader_remembered(t *testing.T) {
	r := newHeaderReader(testPath, false)
	plain := newHeaderReader(testPath, false)
	f := func(block []byte) header {
		t.Helper()
		plain.remembered = [rememberedBlocks]struct {
			block      []byte
			generation int
			header     header
		}{}
		got, err := r.read(block)
		want, wantErr := plain.read(block)
		if (err == nil) != (wantErr == nil) || !reflect.DeepEqual(got, want) {
			t.Fatalf("%x: %+v %v, want %+v %v", block, got, err, want, wantErr)
		}
		return got
	}
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	encode := func(fields ...hpack.HeaderField) []byte {
		b.Reset()
		for _, field := range fields {
			if err := e.WriteField(field); err != nil {
				t.Fatal(err)
			}
		}
		return bytes.Clone(b.Bytes())
	}
	insert := func(name, value string) []byte { return encode(hpack.HeaderField{Name: name, Value: value}) }
	f(encode(usual()...))
	second := encode(usual()...) // indexes alone
	if changesTable(second) {
		t.Fatalf("%x changes the table", second)
	}
	for range 3 {
		if h := f(second); h.method != methodDecide || h.refusal != nil {
			t.Fatal(h)
		}
	}
	if r.remembered[0].generation != r.generation {
		t.Error("nothing is remembered")
	}
	// Another entry moves all indexes: the same bytes say something else.
	f(insert("content-type", "text/plain"))
	h := f(second)
	if h.method == methodDecide && h.refusal == nil && !h.malformed {
		t.Errorf("the old meaning of %x: %+v", second, h)
	}
	// A new size empties the table: the same bytes cannot be decoded.
	block := []byte{0x20}
	if _, err := r.read(append(block, literal(usual()...)...)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.read(second); err == nil || err.code != http2.ErrCodeCompression {
		t.Errorf("%v", err)
	}
	// Trailers change the table, too.
	r = newHeaderReader(testPath, false)
	all := literal(usual()...)
	if _, err := r.read(all); err != nil {
		t.Fatal(err)
	}
	before := r.generation
	if ok, err := r.trailers(insert("x", "y")); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if r.generation == before {
		t.Error("trailers did not count as a change")
	}
	for _, bad := range []hpack.HeaderField{{Name: ":path", Value: "/"}, {Name: "UP", Value: "x"}} {
		if ok, err := r.trailers(literal(bad)); ok || err != nil {
			t.Errorf("%v: %v, %v", bad, ok, err)
		}
	}
}

func TestChangesTable(t *testing.T) {
	f := func(block string, want bool) {
		t.Helper()
		if got := changesTable([]byte(block)); got != want {
			t.Errorf("%x: %v, want %v", block, got, want)
		}
	}
	f("", false)
	f("\x82\x86\x84", false)                // indexed
	f("\xff\x00\x82", false)                // indexed, 127
	f("\x04\x01/", false)                   // :path, not indexed
	f("\x14\x01/", false)                   // :path, never indexed
	f("\x00\x01a\x01b\x82", false)          // literal name
	f("\x0f\x10\x01b", false)               // static index 31
	f("\x44\x01/", true)                    // :path, incremental
	f("\x40\x01a\x01b", true)               // literal name, incremental
	f("\x82\x3f\xe1\x1f", true)             // a size
	f("\x20", true)                         // the size 0
	f("\x04\x05/", true)                    // no such text
	f("\x00\x01a", true)                    // no value
	f("\x00", true)                         // no name
	f("\xff\xff\xff\xff\xff\xff", true)     // no end
	f("\x0f", true)                         // no end
	f("\x04\x7f\xff\xff\xff\xff\x0f", true) // too long
	f("\x04\x81\xff\x44", true)             // Huffman text, then one that changes
}

func TestParseTimeout(t *testing.T) {
	f := func(s string, want time.Duration) {
		t.Helper()
		got, err := parseTimeout(s)
		if err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", s, got, err, want)
		}
	}
	f("0n", 0)
	f("1n", 1)
	f("00000007u", 7*time.Microsecond)
	f("250m", 250*time.Millisecond)
	f("9S", 9*time.Second)
	f("99999999M", 99999999*time.Minute)
	f("2H", 2*time.Hour)
	f("99999999H", math.MaxInt64)
	f("2562047H", 2562047*time.Hour)
	f("2562048H", math.MaxInt64)
	for _, s := range []string{"", "1", "S", "123456789S", "1s", "-1S", "+1S", "1.5S", " 1S", "1 S", "0x1S", "1_0S",
		"१S", "1SS"} {
		if d, err := parseTimeout(s); err == nil {
			t.Errorf("%q: %v", s, d)
		} else if !strings.Contains(err.Error(), s) {
			t.Errorf("%q: %v does not say so", s, err)
		}
	}
}

func TestValidBinary(t *testing.T) {
	alphabet := "AZaz09+/=-_, !"
	var values []string
	grow := []string{""}
	for range 5 {
		var next []string
		for _, v := range grow {
			for i := range len(alphabet) {
				next = append(next, v+alphabet[i:i+1])
			}
		}
		values = append(values, grow...)
		if grow = next; len(grow) > 200_000 {
			break
		}
	}
	for _, v := range values {
		// As grpc-go decodes it, for each of the values that commas part.
		want := true
		for part := range strings.SplitSeq(v, ",") {
			encoding := base64.RawStdEncoding
			if len(part)%4 == 0 {
				encoding = base64.StdEncoding
			}
			_, err := encoding.DecodeString(part)
			want = want && err == nil
		}
		if got := validBinary(v); got != want {
			t.Errorf("%q: %v, want %v", v, got, want)
		}
	}
}

// TestHeaderReader_bomb: a short block of references to a long entry is refused, and not kept.
func TestHeaderReader_bomb(t *testing.T) {
	r := newHeaderReader(testPath, false)
	entry := appendText(appendText([]byte{0x40}, "x"), strings.Repeat("x", 4000))
	h, err := r.read(append(entry, bytes.Repeat([]byte{0x80 | 62}, maxBlock-len(entry))...))
	if err != nil || h.refusal == nil || h.refusal.code != codes.ResourceExhausted {
		t.Fatalf("%+v, %v", h, err)
	}
	if n := len(r.fields); n > maxHeaderList/4000 {
		t.Errorf("kept %d fields", n)
	}
}

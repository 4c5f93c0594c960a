package rls

import (
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// FuzzUnmarshal holds the decoder against the generated code: same verdict on every input, same content; but for
// strings that are no UTF-8, which the generated code refuses.
func FuzzUnmarshal(f *testing.F) {
	b, err := proto.Marshal(sample())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{})
	f.Add([]byte("\x0a\x01\xff"))                             // domain that is not UTF-8
	f.Add([]byte("\x12\x0a\x12\x02\x08\x01\x12\x02\x10\x02")) // an override in two halves merges
	f.Add([]byte("\x0b\x12\x00\x0c"))                         // a group where the domain should be
	f.Add([]byte("\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Add([]byte("\x00\x00"))
	entry := func(b string) { // one descriptor of one entry
		b = "\x0a" + string(protowire.AppendVarint(nil, uint64(len(b)))) + b
		f.Add([]byte("\x12" + string(protowire.AppendVarint(nil, uint64(len(b)))) + b))
	}
	entry("\x0a\x01k\x12\x01v")
	entry("\x0a\x00\x12\x00")
	entry("\x12\x01v\x0a\x01k")                                    // the value first
	entry("\x0a\x01k\x12\x01v\x12\x01w")                           // two values: the last one wins
	entry("\x0a\x02\xe2\x82\x12\x01\xac")                          // half a character in each
	entry("\x0a\x01k\x12\x02\xe2\x82")                             // half a character at the end
	entry("\x0a\x81\x00k\x12\x01v")                                // a length of more bytes than it needs
	entry("\x0a\x7f" + strings.Repeat("k", 127) + "\x12\x01v")     // as long as a length of one byte says
	entry("\x0a\x80\x01" + strings.Repeat("k", 128) + "\x12\x01v") // one more
	entry("\x0a\x01k\x12\x80\x01" + strings.Repeat("v", 128))      // in the value
	entry("\x0a\x01k\x12\x02v")                                    // cut
	entry("\x0a\x01k\x12")                                         // cut before the length
	f.Add([]byte("\x80\x80\x80\x80\x80\x01\x00"))                  // a field number beyond 2^29
	f.Fuzz(func(t *testing.T, b []byte) {
		var want pb.RateLimitRequest
		wantErr := proto.Unmarshal(b, &want)
		var got Request
		err := got.Unmarshal(b)
		if wantErr != nil && strings.Contains(wantErr.Error(), "invalid UTF-8") {
			return
		}
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("generated code: %v, Unmarshal: %v", wantErr, err)
		}
		if err != nil {
			return
		}
		if d := cmp.Diff(fromGenerated(&want), got, requestDiff...); d != "" {
			t.Errorf("generated code (-) and Unmarshal (+) differ:\n%s", d)
		}
	})
}

package rls

import (
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"gatehouse/shared/must"
)

// TestAppendText: the library reads the text back as the message that was decoded.
func TestAppendText(t *testing.T) {
	for _, text := range []string{
		``,
		`domain:"d"`,
		`domain:"d" descriptors:{} hits_addend:3`,
		`domain:"d" descriptors:{entries:{key:"k" value:"v"} entries:{key:"\"\\\n" value:"ü\x01"}} descriptors:{entries:{key:"x" value:""}}`,
		`descriptors:{entries:{key:"k" value:"v"} limit:{requests_per_unit:5 unit:2} hits_addend:{value:7} is_negative_hits:true}`,
	} {
		var want, got pb.RateLimitRequest
		must.Succeed(t, prototext.Unmarshal([]byte(text), &want))
		wire, err := proto.Marshal(&want)
		must.Succeed(t, err)
		var r Request
		must.Succeed(t, r.Unmarshal(wire))
		line := r.AppendText(nil)
		if err := prototext.Unmarshal(line, &got); err != nil || !proto.Equal(&want, &got) {
			t.Errorf("%s became %s: %v", text, line, err)
		}
	}
}

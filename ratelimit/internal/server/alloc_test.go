//go:build !race

package server

import (
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"gatehouse/ratelimit/internal/rls"
)

// TestAllocations: decoding and encoding through the codec costs one allocation, the slice header
// that grpc-go's interface asks for. The answer's bytes and the exchange come back from their pools.
func TestAllocations(t *testing.T) {
	wire, err := proto.Marshal(req("d", "(k,v)(j,w)|(k,x)"))
	if err != nil {
		t.Fatal(err)
	}
	c := newCodec()
	data := mem.BufferSlice{mem.SliceBuffer(wire)}
	n := testing.AllocsPerRun(1000, func() {
		x := exchanges.Get().(*exchange)
		if err := c.Unmarshal(data, x); err != nil {
			t.Fatal(err)
		}
		x.Response.Overall = rls.OK
		x.Response.Statuses = append(x.Response.Statuses, rls.Status{Code: rls.OK, HasLimit: true, PerUnit: 5, Unit: rls.Minute, Reset: 40})
		out, err := c.Marshal(x)
		if err != nil || out.Len() == 0 {
			t.Fatal(err)
		}
		out.Free()
	})
	if n > 1 {
		t.Errorf("%v allocations, want 1", n)
	}
}

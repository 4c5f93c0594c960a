//go:build !race

package server

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/shared/must"
)

// TestAllocations: decoding and encoding through the codec costs one allocation, the slice header that grpc-go's
// interface requires. The answer's bytes and the exchange come back from their pools.
func TestAllocations(t *testing.T) {
	wire, err := proto.Marshal(req("d", "(k,v)(j,w)|(k,x)"))
	must.Succeed(t, err)
	c := newCodec()
	data := mem.BufferSlice{mem.SliceBuffer(wire)}
	n := testing.AllocsPerRun(1000, func() {
		x := exchanges.Get().(*exchange)
		must.Succeed(t, c.Unmarshal(data, x))
		x.Response.Overall = rls.OK
		x.Response.Statuses = append(x.Response.Statuses,
			rls.Status{Code: rls.OK, HasLimit: true, PerUnit: 5, Unit: rls.Minute, Reset: 40})
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

// mute is a context whose Value must not be called.
type mute struct {
	context.Context
	t *testing.T
}

func (m mute) Value(key any) any {
	m.t.Errorf("the context was asked for %T", key)
	return nil
}

// TestTracingOff_Allocations: without tracing no value of a call's context is read, and the call allocates nothing
// of ours.
func TestTracingOff_Allocations(t *testing.T) {
	r := newRig(t, service.Options{Clock: time.Now}, limits.Options{},
		"- {key: k, rate_limit: {unit: year, requests_per_unit: 1000000}}")
	d := &decisions{
		service: r.service, log: discard, panics: r.stats.Counter("panics"),
		requests: r.stats.Counter("requests"), took: r.stats.Timer("took"),
	}
	wire, err := proto.Marshal(req("d", "(k,v)"))
	must.Succeed(t, err)
	c := newCodec()
	data := mem.BufferSlice{mem.SliceBuffer(wire)}
	var ctx context.Context = mute{t.Context(), t}
	decode := func(x any) error { return c.Unmarshal(data, x) }
	n := testing.AllocsPerRun(1000, func() {
		x, err := shouldRateLimit(d, ctx, decode, nil)
		must.Succeed(t, err)
		x.(*exchange).release()
	})
	if n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

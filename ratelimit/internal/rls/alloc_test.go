//go:build !race

package rls

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"gatehouse/shared/must"
)

func TestAllocations(t *testing.T) {
	b, err := proto.Marshal(sample())
	must.Succeed(t, err)
	var req Request
	resp := Response{Overall: OK, Statuses: []Status{{Code: OK, HasLimit: true, PerUnit: 10, Unit: Minute, Remaining: 3,
		Reset: 7}}}
	buf := make([]byte, 0, 256)
	n := testing.AllocsPerRun(100, func() {
		must.Succeed(t, req.Unmarshal(b))
		if buf, err = resp.Append(buf[:0]); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("decode and encode allocate %v times, want 0", n)
	}
}

func BenchmarkUnmarshal(b *testing.B) {
	wire, err := proto.Marshal(sample())
	must.Succeed(b, err)
	b.SetBytes(int64(len(wire)))
	var req Request
	for b.Loop() {
		if err := req.Unmarshal(wire); err != nil || len(req.Descriptors) != 4 {
			b.Fatal(err, len(req.Descriptors))
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	resp := Response{Overall: OK, Statuses: []Status{{Code: OK, HasLimit: true, PerUnit: 10, Unit: Minute, Remaining: 3,
		Reset: 7}}}
	buf := make([]byte, 0, 256)
	for b.Loop() {
		var err error
		if buf, err = resp.Append(buf[:0]); err != nil || len(buf) == 0 {
			b.Fatal(err)
		}
	}
}

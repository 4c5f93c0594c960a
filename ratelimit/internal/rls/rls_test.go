package rls

import (
	"bytes"
	"math"
	"strings"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse/shared/must"
)

// sample uses every field that the decoder knows.
func sample() *pb.RateLimitRequest {
	return &pb.RateLimitRequest{
		Domain:     "edge",
		HitsAddend: 300,
		Descriptors: []*ratelimitpb.RateLimitDescriptor{
			{Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: "user", Value: "ann"},
				{Key: "path", Value: "/ä"}}},
			{},
			{
				Entries:        []*ratelimitpb.RateLimitDescriptor_Entry{{Key: "k"}},
				Limit:          &ratelimitpb.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 7, Unit: 7},
				HitsAddend:     wrapperspb.UInt64(math.MaxUint64),
				IsNegativeHits: true,
			},
			{Limit: &ratelimitpb.RateLimitDescriptor_RateLimitOverride{}, HitsAddend: wrapperspb.UInt64(0)},
		},
	}
}

// fromGenerated says what Unmarshal must make of a message.
func fromGenerated(m *pb.RateLimitRequest) Request {
	r := Request{Domain: m.Domain, HitsAddend: m.HitsAddend}
	for _, d := range m.Descriptors {
		out := Descriptor{
			HasLimit: d.Limit != nil,
			Limit:    Override{PerUnit: d.GetLimit().GetRequestsPerUnit(), Unit: Unit(d.GetLimit().GetUnit())},
			HasHits:  d.HitsAddend != nil,
			Hits:     d.GetHitsAddend().GetValue(),
			Negative: d.IsNegativeHits,
		}
		for _, e := range d.Entries {
			out.Entries = append(out.Entries, Entry{e.Key, e.Value})
		}
		r.Descriptors = append(r.Descriptors, out)
	}
	return r
}

var requestDiff = []cmp.Option{cmpopts.IgnoreUnexported(Request{}), cmpopts.EquateEmpty()}

// Any bytes are taken, as they are: an Envoy passes on what a client wrote, and lets a refused request pass.
func TestUnmarshal_bytes(t *testing.T) {
	entry := func(k, v string) string { // as everybody writes it, and in the other order
		return "\x0a" + string(rune(len(k))) + k + "\x12" + string(rune(len(v))) + v
	}
	message := func(e string) []byte {
		e = "\x0a" + string(rune(len(e))) + e
		return []byte("\x0a\x02d\xff\x12" + string(rune(len(e))) + e)
	}
	want := Request{Domain: "d\xff",
		Descriptors: []Descriptor{{Entries: []Entry{{Key: "k\xc3", Value: "bad\xffagent"}}}}}
	for _, e := range []string{entry("k\xc3", "bad\xffagent"), "\x12\x09bad\xffagent\x0a\x02k\xc3"} {
		var got Request
		if err := got.Unmarshal(message(e)); err != nil {
			t.Errorf("%q: %v", e, err)
		}
		if d := cmp.Diff(want, got, requestDiff...); d != "" {
			t.Errorf("%q: want (-), got (+):\n%s", e, d)
		}
	}
}

func TestUnmarshal(t *testing.T) {
	var r Request
	for range 3 { // the same Request again: nothing of the earlier message may stay
		b, err := proto.Marshal(sample())
		must.Succeed(t, err)
		must.Succeed(t, r.Unmarshal(b))
		if d := cmp.Diff(fromGenerated(sample()), r, requestDiff...); d != "" {
			t.Fatalf("generated code (-) and Unmarshal (+) differ:\n%s", d)
		}
		must.Succeed(t, r.Unmarshal(nil))
		if d := cmp.Diff(Request{}, r, requestDiff...); d != "" {
			t.Fatalf("an empty message left something:\n%s", d)
		}
	}
}

func TestReset_dropsOutsizedMemory(t *testing.T) {
	m := &pb.RateLimitRequest{Domain: "d"}
	for range 2 * keepEntries {
		m.Descriptors = append(m.Descriptors,
			&ratelimitpb.RateLimitDescriptor{Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: "k"}}})
	}
	b, err := proto.Marshal(m)
	must.Succeed(t, err)
	var r Request
	must.Succeed(t, r.Unmarshal(b))
	r.Reset()
	if cap(r.entries) > keepEntries || cap(r.Descriptors) > keepEntries/4 {
		t.Errorf("after Reset room for %d entries and %d descriptors is kept", cap(r.entries), cap(r.Descriptors))
	}
}

func TestAppend(t *testing.T) {
	meta, err := structpb.NewStruct(map[string]any{"domain": "edge",
		"descriptors": []any{map[string]any{"entries": []any{"k=v"}}}})
	must.Succeed(t, err)
	long, longer := strings.Repeat("n", 120),
		strings.Repeat("n", 20_000) // the status or its limit too long for a length of one byte
	r := Response{
		Overall: OverLimit,
		Statuses: []Status{
			{Code: OK},
			{Code: OK, Remaining: math.MaxUint32},
			{Code: OverLimit, HasLimit: true, PerUnit: 0, Unit: Minute, Reset: 40},
			{Code: OK, HasLimit: true, PerUnit: math.MaxUint32, Unit: Week, Name: "per week", Remaining: 300,
				Reset: 604800},
			{Code: OK, HasLimit: true, PerUnit: 1, Unit: Day, Name: long, Remaining: 300, Reset: 604800},
			{Code: OK, HasLimit: true, PerUnit: 1, Unit: Day, Name: longer, Reset: 1},
		},
		Headers:  []Header{{"RateLimit-Limit", "5"}, {"RateLimit-Remaining", ""}},
		Metadata: meta,
	}
	b, err := r.Append(nil)
	must.Succeed(t, err)
	var got pb.RateLimitResponse
	must.Succeed(t, proto.Unmarshal(b, &got))
	want := &pb.RateLimitResponse{
		OverallCode: pb.RateLimitResponse_OVER_LIMIT,
		Statuses: []*pb.RateLimitResponse_DescriptorStatus{
			{Code: pb.RateLimitResponse_OK},
			{Code: pb.RateLimitResponse_OK, LimitRemaining: math.MaxUint32},
			{
				Code:               pb.RateLimitResponse_OVER_LIMIT,
				CurrentLimit:       &pb.RateLimitResponse_RateLimit{Unit: pb.RateLimitResponse_RateLimit_MINUTE},
				DurationUntilReset: &durationpb.Duration{Seconds: 40},
			},
			{
				Code: pb.RateLimitResponse_OK,
				CurrentLimit: &pb.RateLimitResponse_RateLimit{RequestsPerUnit: math.MaxUint32,
					Unit: pb.RateLimitResponse_RateLimit_WEEK, Name: "per week"}, LimitRemaining: 300,
				DurationUntilReset: &durationpb.Duration{Seconds: 604800},
			},
			{
				Code: pb.RateLimitResponse_OK,
				CurrentLimit: &pb.RateLimitResponse_RateLimit{RequestsPerUnit: 1,
					Unit: pb.RateLimitResponse_RateLimit_DAY,
					Name: long}, LimitRemaining: 300,
				DurationUntilReset: &durationpb.Duration{Seconds: 604800},
			},
			{
				Code: pb.RateLimitResponse_OK,
				CurrentLimit: &pb.RateLimitResponse_RateLimit{RequestsPerUnit: 1,
					Unit: pb.RateLimitResponse_RateLimit_DAY,
					Name: longer}, DurationUntilReset: &durationpb.Duration{Seconds: 1},
			},
		},
		ResponseHeadersToAdd: []*corepb.HeaderValue{{Key: "RateLimit-Limit", Value: "5"}, {Key: "RateLimit-Remaining"}},
		DynamicMetadata:      meta,
	}
	if d := cmp.Diff(want, &got, protocmp.Transform()); d != "" {
		t.Errorf("want (-), got (+):\n%s", d)
	}
}

func TestUnit(t *testing.T) {
	f := func(u Unit, name string, seconds int64) {
		t.Helper()
		if u.String() != name || u.Seconds() != seconds {
			t.Errorf("%d is %s of %d s, want %s of %d s", u, u, u.Seconds(), name, seconds)
		}
		if name != "UNKNOWN" && pb.RateLimitResponse_RateLimit_Unit(u).String() != name {
			t.Errorf("the API calls %d %s", u, pb.RateLimitResponse_RateLimit_Unit(u))
		}
	}
	f(Second, "SECOND", 1)
	f(Minute, "MINUTE", 60)
	f(Hour, "HOUR", 3600)
	f(Day, "DAY", 86400)
	f(Week, "WEEK", 604800)
	f(Month, "MONTH", 2592000)
	f(Year, "YEAR", 31536000)
	f(UnknownUnit, "UNKNOWN", 0)
	f(8, "UNKNOWN", 0)
	f(-1, "UNKNOWN", 0)
}

// A message of millions of empty descriptors is not decoded to its end, which sets Cut.
func TestUnmarshal_bounded(t *testing.T) {
	var r Request
	f := func(name string, descriptor []byte, n int, cut bool) {
		t.Helper()
		b := append(bytes.Repeat(descriptor, n), 3<<3, 5)
		if err := r.Unmarshal(b); err != nil || r.Cut != cut || !cut && (len(r.Descriptors) != n || r.HitsAddend != 5) {
			t.Errorf("%s: %d descriptors of %d, %d hits, cut %t (%v); want cut %t", name, len(r.Descriptors), n,
				r.HitsAddend, r.Cut, err, cut)
		}
	}
	full := append([]byte{2<<3 | 2, 128, 1}, bytes.Repeat([]byte{1<<3 | 2, 0}, 64)...) // 64 entries
	f("millions of descriptors", []byte{2<<3 | 2, 0}, 2<<20, true)
	f("as many as are taken", []byte{2<<3 | 2, 0}, MaxDescriptors, false)
	f("one more", []byte{2<<3 | 2, 0}, MaxDescriptors+1, true)
	f("as many entries as are taken", full, MaxEntries/64, false)
	f("a descriptor after as many entries as are taken", full, MaxEntries/64+1, true)
}

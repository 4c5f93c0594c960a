package server

import (
	"strconv"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"gatehouse/ratelimit/internal/rls"
)

// fromProto and toProto convert /json's messages, which the library decodes and encodes, to and from the plain structs
// that the service uses.

func fromProto(r *rls.Request, in *pb.RateLimitRequest) {
	r.Domain, r.HitsAddend = in.GetDomain(), in.GetHitsAddend()
	for _, d := range in.GetDescriptors() {
		out := rls.Descriptor{
			HasLimit: d.GetLimit() != nil,
			Limit:    rls.Override{PerUnit: d.GetLimit().GetRequestsPerUnit(), Unit: rls.Unit(d.GetLimit().GetUnit())},
			HasHits:  d.GetHitsAddend() != nil,
			Hits:     d.GetHitsAddend().GetValue(),
			Negative: d.GetIsNegativeHits(),
		}
		for _, e := range d.GetEntries() {
			out.Entries = append(out.Entries, rls.Entry{Key: e.GetKey(), Value: e.GetValue()})
		}
		r.Descriptors = append(r.Descriptors, out)
	}
}

func toProto(r *rls.Response) *pb.RateLimitResponse {
	out := &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_Code(r.Overall), DynamicMetadata: r.Metadata}
	for i := range r.Statuses {
		s := &r.Statuses[i]
		st := &pb.RateLimitResponse_DescriptorStatus{Code: pb.RateLimitResponse_Code(s.Code),
			LimitRemaining: s.Remaining}
		if s.HasLimit {
			st.CurrentLimit = &pb.RateLimitResponse_RateLimit{
				RequestsPerUnit: s.PerUnit, Unit: pb.RateLimitResponse_RateLimit_Unit(s.Unit), Name: s.Name,
			}
			st.DurationUntilReset = &durationpb.Duration{Seconds: s.Reset}
		}
		out.Statuses = append(out.Statuses, st)
	}
	for _, h := range r.Headers {
		out.ResponseHeadersToAdd = append(out.ResponseHeadersToAdd, &corepb.HeaderValue{Key: h.Key, Value: h.Value})
	}
	return out
}

func byteCount(n int64) string { return strconv.FormatInt(n, 10) + " bytes" }

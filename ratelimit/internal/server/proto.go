package server

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	"gatehouse/ratelimit/internal/rls"
)

// fromProto and toProto convert between the messages of /json, which protojson decodes and encodes, and the plain
// structs of package rls, which the service uses.

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

// ParseDescriptorJSON parses a descriptor in the form that it has in /json: {"entries": [{"key": "…", "value": "…"}]}.
// Unlike the form of ParseDescriptor, it allows commas and equals signs in texts.
func ParseDescriptorJSON(text string) (rls.Descriptor, error) {
	var in ratelimitpb.RateLimitDescriptor
	if err := protojson.Unmarshal([]byte(text), &in); err != nil {
		return rls.Descriptor{},
			fmt.Errorf(`%q is no descriptor, such as {"entries": [{"key": "…", "value": "…"}]}`, text)
	}
	var r rls.Request
	fromProto(&r, &pb.RateLimitRequest{Descriptors: []*ratelimitpb.RateLimitDescriptor{&in}})
	return r.Descriptors[0], nil
}

// ParseRequestJSON parses a request in the form that it has in /json.
func ParseRequestJSON(text []byte) (r rls.Request, err error) {
	var in pb.RateLimitRequest
	if err := protojson.Unmarshal(text, &in); err != nil {
		return r, errors.New(badBody(text, err))
	}
	fromProto(&r, &in)
	return r, nil
}

// ParseLimit parses the text form, such as 10/minute, of a limit that a request brings.
func ParseLimit(text string) (rls.Override, error) {
	number, name, ok := strings.Cut(text, "/")
	n, err := strconv.ParseUint(number, 10, 32)
	if ok && err == nil {
		for unit := rls.Second; unit <= rls.Week; unit++ {
			if strings.EqualFold(name, unit.String()) {
				return rls.Override{PerUnit: uint32(n), Unit: unit}, nil
			}
		}
	}
	return rls.Override{},
		fmt.Errorf("%q is no limit, such as 10/minute; units are second, minute, hour, day, week, month, year",
			text)
}

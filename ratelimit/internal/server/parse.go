package server

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"gatehouse/ratelimit/internal/rls"
)

// ParseDescriptorJSON parses a descriptor in the form of /json, for texts that contain a comma or an equals sign:
// {"entries": [{"key": "…", "value": "…"}]}.
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

// ParseRequestJSON parses a request in the form of /json.
func ParseRequestJSON(text []byte) (r rls.Request, err error) {
	var in pb.RateLimitRequest
	if err := protojson.Unmarshal(text, &in); err != nil {
		return r, errors.New(badBody(text, err))
	}
	fromProto(&r, &in)
	return r, nil
}

// ParseLimit parses a limit that a request brings along: 10/minute.
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

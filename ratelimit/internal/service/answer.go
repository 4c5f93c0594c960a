package service

import (
	"fmt"
	"strconv"

	"google.golang.org/protobuf/types/known/structpb"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/decide"
	"gatehouse/ratelimit/internal/printable"
	"gatehouse/ratelimit/internal/rls"
)

// HTTPHeaders returns the headers of the response that /json sends as HTTP headers: Retry-After and the draft's
// RateLimit and RateLimit-Policy. It excludes the three headers whose names are set by LIMIT_*_HEADER.
func (c *Call) HTTPHeaders() []rls.Header { return c.Response.Headers[c.named:] }

// describe adds the limit of step p to the members of the draft headers. st is the status that the limit gave the
// descriptor; known is false if the store gave no answer, so that the configured failure mode decided the status.
// Limits in shadow mode refuse nothing and are left out.
func (c *Call) describe(p *step, st *rls.Status, known bool) {
	if p.rule.Shadow || len(c.members) == decide.MaxMembers {
		return
	}
	m := decide.Member{Rule: p.rule, Window: p.window, Remaining: st.Remaining, Until: st.Reset}
	if known && p.hit >= 0 && p.rule.Algorithm != counter.FixedWindow && uint64(m.Remaining) < decide.Capacity(p.rule) {
		h := &c.batch.Hits[p.hit]
		m.Until = seconds(h.Wait(&h.State, uint64(m.Remaining)+1))
	}
	c.members = append(c.members, m)
}

// addHeaders adds the headers that are configured to the response.
func (s *Service) addHeaders(c *Call) {
	headers := c.Response.Headers
	if s.o.Headers != nil {
		headers = decide.Headers(headers, *s.o.Headers, c.Response.Statuses, c.rules, s.o.GlobalQuota)
	}
	c.named = len(headers)
	if s.o.DraftHeaders {
		headers = decide.DraftHeaders(headers, c.members)
	}
	if s.o.RetryAfter && c.Response.Overall == rls.OverLimit {
		if wait, ok := decide.RetryAfter(c.Response.Statuses, c.rules, c.unanswered, s.o.GlobalQuota); ok {
			headers = append(headers, rls.Header{Key: "Retry-After", Value: strconv.FormatInt(wait, 10)})
		}
	}
	c.Response.Headers = headers
}

// metadata builds dynamic_metadata: the request, and the merged metadata of the rules whose descriptors are not over
// their limit. Rules are shared by all requests, so their metadata is copied before it is merged.
func metadata(c *Call) *structpb.Struct {
	fields := map[string]*structpb.Value{
		"domain":      structpb.NewStringValue(printable.Text(c.Request.Domain)),
		"descriptors": structpb.NewListValue(&structpb.ListValue{Values: describe(c.Request.Descriptors)}),
	}
	if c.Request.HitsAddend != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(c.Request.HitsAddend))
	}
	var merged *structpb.Struct
	for i, rule := range c.rules {
		if rule == nil || rule.Metadata == nil || rule.Unlimited || c.Response.Statuses[i].Code == rls.OverLimit {
			continue
		}
		if merged == nil {
			merged = &structpb.Struct{Fields: map[string]*structpb.Value{}}
		}
		mergeStruct(merged, rule.Metadata)
	}
	if merged != nil && len(merged.Fields) > 0 {
		fields["metadata"] = structpb.NewStructValue(merged)
	}
	return &structpb.Struct{Fields: fields}
}

func describe(descriptors []rls.Descriptor) []*structpb.Value {
	list := make([]*structpb.Value, 0, len(descriptors))
	for i := range descriptors {
		d := &descriptors[i]
		entries := make([]*structpb.Value, 0, len(d.Entries))
		for _, e := range d.Entries {
			entries = append(entries, structpb.NewStringValue(printable.Text(e.Key)+"="+printable.Text(e.Value)))
		}
		fields := map[string]*structpb.Value{"entries": structpb.NewListValue(&structpb.ListValue{Values: entries})}
		if d.HasLimit {
			fields["limit"] = structpb.NewStringValue(fmt.Sprintf("requests_per_unit:%d unit:%s", d.Limit.PerUnit,
				d.Limit.Unit))
		}
		if d.HasHits {
			fields["hitsAddend"] = structpb.NewNumberValue(float64(d.Hits))
		}
		list = append(list, structpb.NewStructValue(&structpb.Struct{Fields: fields}))
	}
	return list
}

// mergeStruct adds the fields of src to dst. If dst and src both have a key, two maps are merged, and otherwise dst
// keeps its value. dst shares maps with src only where no later merge writes to them.
func mergeStruct(dst, src *structpb.Struct) {
	for key, value := range src.GetFields() {
		have, ok := dst.Fields[key]
		switch {
		case !ok && value.GetStructValue() != nil:
			fresh := &structpb.Struct{Fields: map[string]*structpb.Value{}}
			mergeStruct(fresh, value.GetStructValue())
			dst.Fields[key] = structpb.NewStructValue(fresh)
		case !ok:
			dst.Fields[key] = value // shared, not copied: a merge writes only to maps
		case have.GetStructValue() != nil && value.GetStructValue() != nil:
			mergeStruct(have.GetStructValue(), value.GetStructValue())
		}
	}
}

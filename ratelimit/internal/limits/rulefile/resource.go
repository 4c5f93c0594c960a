package rulefile

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"gatehouse/ratelimit/internal/limits"
)

// ResourceType is the type URL of the xDS resources that LoadResources reads.
const ResourceType = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// LoadResources compiles a whole configuration from xDS resources, each an encoded RateLimitConfig, as Load does from
// files. Messages name a resource by its name, or as resources[i] if it has none.
func LoadResources(ctx context.Context, resources [][]byte, o limits.Options) (*limits.Rules, []limits.Problem, error) {
	rep := limits.NewReport(ctx, o.Paced)
	docs, bytes := make([]limits.Document, 0, len(resources)), 0
	for i, b := range resources {
		bytes += len(b)
		if doc, ok := readResource(i, b, rep); ok {
			docs = append(docs, doc)
		}
	}
	// Sort, since the order in a response is arbitrary, and which wildcard of a merged domain comes first depends on
	// the order.
	slices.SortStableFunc(docs, func(a, b limits.Document) int { return strings.Compare(a.File, b.File) })
	return limits.Compile(bytes, docs, o, rep)
}

// readResource decodes one resource into the same kind of tree that a file is read into.
func readResource(index int, b []byte, rep *limits.Report) (doc limits.Document, ok bool) {
	label := fmt.Sprintf("resources[%d]", index)
	rest, descriptors := splitMessage(b)
	var config rlsconf.RateLimitConfig
	err := decode(rest, &config, maxDepth)
	if err == nil && config.Name != "" {
		label = limits.OneLine(config.Name)
	}
	r := &resourceReader{file: label, domain: config.Domain, report: rep}
	doc = limits.Document{File: label, Domain: config.Domain, Entries: make([]limits.Entry, 0, len(descriptors))}
	for i := 0; err == nil && i < len(descriptors) && rep.Step(); i++ {
		var d rlsconf.RateLimitDescriptor
		if err = decode(descriptors[i], &d, maxDepth-1); err == nil {
			doc.Entries = append(doc.Entries, r.entry(i, &d))
		}
	}
	if err != nil {
		// The protobuf library varies the spaces in its texts, so that programs do not rely on them.
		reason := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ")
		rep.Problem(limits.Place{File: fmt.Sprintf("resources[%d]", index)}, "", "not a RateLimitConfig: %s",
			firstLine(reason))
		return limits.Document{}, false
	}
	return doc, true
}

// fieldDescriptors is the number that the field named descriptors has in RateLimitConfig. This field has nearly all of
// a resource's bytes.
const fieldDescriptors = 3

// splitMessage splits an encoded RateLimitConfig into its descriptors, each encoded, and the rest. Decoded as a whole,
// a large message would be in memory a second time, in the library's messages, which take ten times as much as the
// bytes. Bytes that are not a valid message are returned unchanged, so that the library reports the error.
func splitMessage(b []byte) (rest []byte, descriptors [][]byte) {
	ok := eachField(b, func(number protowire.Number, kind protowire.Type, tag int, field []byte) {
		if number == fieldDescriptors && kind == protowire.BytesType {
			d, _ := protowire.ConsumeBytes(field[tag:])
			descriptors = append(descriptors, d)
		} else {
			rest = append(rest, field...)
		}
	})
	if !ok {
		return b, nil
	}
	return rest, descriptors
}

// eachField calls f for each field of an encoded message. tag is how many bytes at the beginning of the field give its
// number and kind. ok is false for bytes that are not a valid message.
func eachField(b []byte, f func(number protowire.Number, kind protowire.Type, tag int, field []byte)) (ok bool) {
	for len(b) > 0 {
		number, kind, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return false
		}
		length := protowire.ConsumeFieldValue(number, kind, b[tag:])
		if length < 0 {
			return false
		}
		f(number, kind, tag, b[:tag+length])
		b = b[tag+length:]
	}
	return true
}

func decode(b []byte, m proto.Message, depth int) error {
	return proto.UnmarshalOptions{RecursionLimit: depth}.Unmarshal(b, m)
}

// resourceReader turns the messages of one resource into a document. It does not check for missing and odd values:
// package limits does, as for files.
type resourceReader struct {
	file   string
	domain string
	path   []string // labels of the entries in which the present entry is nested
	report *limits.Report
}

func (r *resourceReader) entries(list []*rlsconf.RateLimitDescriptor) []limits.Entry {
	if len(list) == 0 {
		return nil
	}
	out := make([]limits.Entry, len(list))
	for i, d := range list {
		out[i] = r.entry(i, d)
	}
	return out
}

func (r *resourceReader) entry(index int, d *rlsconf.RateLimitDescriptor) limits.Entry {
	e := limits.Entry{
		File: r.file, Index: index, Key: d.Key, Value: d.Value, Limit: limitOf(d.RateLimit),
		Attributes: limits.Attributes{Shadow: d.ShadowMode, Detailed: d.DetailedMetric},
	}
	r.path = append(r.path, e.Label())
	r.newerFields(&e, d.ProtoReflect().GetUnknown())
	e.Children = r.entries(d.Descriptors)
	r.path = r.path[:len(r.path)-1]
	return e
}

// These are the numbers of fields that only newer versions of the message RateLimitDescriptor have. The linked version
// keeps the fields as unknown bytes.
const (
	fieldQuotaMode = 7
	fieldMetadata  = 8
)

// newerFields reads quota_mode and metadata from the unknown bytes of a descriptor. If a field occurs more than once,
// the last bool wins and messages are merged, as protobuf requires. Fields with the same numbers but another type are
// ignored.
func (r *resourceReader) newerFields(e *limits.Entry, unknown []byte) {
	var metadata []byte
	found := false
	eachField(unknown, func(number protowire.Number, kind protowire.Type, tag int, field []byte) {
		switch {
		case number == fieldQuotaMode && kind == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(field[tag:])
			e.Quota = v != 0
		case number == fieldMetadata && kind == protowire.BytesType:
			part, _ := protowire.ConsumeBytes(field[tag:])
			metadata, found = append(metadata, part...), true
		}
	})
	if found {
		e.Metadata = r.metadata(metadata)
	}
}

func (r *resourceReader) metadata(b []byte) *structpb.Struct {
	out := new(structpb.Struct)
	if err := decode(b, out, maxDepth); err != nil {
		r.problem("", "metadata is not a google.protobuf.Struct: %s",
			firstLine(strings.ReplaceAll(err.Error(), "\u00a0", " ")))
		return nil
	}
	r.object(out, "metadata")
	return out
}

// object reports values in a metadata Struct that JSON cannot represent, and turns values that are not set into null.
// path names the Struct in messages.
func (r *resourceReader) object(s *structpb.Struct, path string) {
	for _, key := range slices.Sorted(maps.Keys(s.GetFields())) {
		v := s.Fields[key]
		if v.GetKind() == nil {
			s.Fields[key] = structpb.NewNullValue()
			continue
		}
		r.value(v, path+"."+limits.OneLine(key))
	}
}

func (r *resourceReader) value(v *structpb.Value, path string) {
	switch kind := v.Kind.(type) {
	case *structpb.Value_NumberValue:
		if f := kind.NumberValue; math.IsInf(f, 0) || math.IsNaN(f) {
			r.problem(fmt.Sprint(f), "%s is %v, which JSON can't hold", path, f)
		}
	case *structpb.Value_StructValue:
		r.object(kind.StructValue, path)
	case *structpb.Value_ListValue:
		for i, item := range kind.ListValue.GetValues() {
			if item.GetKind() == nil {
				kind.ListValue.Values[i] = structpb.NewNullValue()
				continue
			}
			r.value(item, fmt.Sprintf("%s[%d]", path, i))
		}
	}
}

func (r *resourceReader) problem(text, format string, args ...any) {
	r.report.Problem(limits.Place{File: r.file, Domain: r.domain, Path: strings.Join(r.path, ".")}, text, format,
		args...)
}

// resourceUnits are the names of units, indexed by their numbers in a resource; 0 means missing.
var resourceUnits = [...]string{"", "second", "minute", "hour", "day", "month", "year", "week"}

// limitOf returns the limit of an entry; nil if p is nil. protobuf does not distinguish a number of 0 from a missing
// number, so 0 is taken as given, as a limit that blocks everything, unless the limit is unlimited.
func limitOf(p *rlsconf.RateLimitPolicy) *limits.Limit {
	if p == nil {
		return nil
	}
	l := &limits.Limit{
		PerUnit: p.RequestsPerUnit, HasPerUnit: p.RequestsPerUnit != 0 || !p.Unlimited,
		Unlimited: p.Unlimited, Name: p.Name, HasUnit: p.Unit != rlsconf.RateLimitUnit_UNKNOWN,
	}
	if u := int(p.Unit); u > 0 && u < len(resourceUnits) {
		l.Unit = resourceUnits[u]
	} else if l.HasUnit {
		l.Unit = fmt.Sprint(u)
	}
	for _, x := range p.Replaces {
		l.Replaces = append(l.Replaces, limits.Replaced{Name: x.GetName()})
	}
	return l
}

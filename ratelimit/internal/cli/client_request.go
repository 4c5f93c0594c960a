package cli

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"strconv"
	"strings"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse/ratelimit/internal/server"
)

// requestFlags collects a request from flags. The order of the flags matters: a flag about a descriptor follows the
// descriptor.
type requestFlags struct {
	descriptors []*ratelimitpb.RateLimitDescriptor
	hits        uint32 // hits that the whole request counts as; 0 if not set
}

func (r *requestFlags) define(flags *flag.FlagSet) {
	flags.Var(&descriptorsFlag{request: r}, "descriptors", "one descriptor, `key=value,key=value`; repeat for more")
	r.add(flags, "descriptor_json", "one descriptor as `JSON`, for texts with a comma or an equals sign", r.addJSON)
	r.add(flags, "hits", "`number` of hits of the descriptor before it, 0 only looks; before the first, of the request",
		r.setHits)
	r.add(flags, "limit", "a `limit` of its own for the descriptor before it, such as 10/minute", r.setLimit)
	flags.Var(&refundFlag{request: r}, "refund", "give the hits of the descriptor before it back")
}

// add defines a flag that may be repeated.
func (r *requestFlags) add(flags *flag.FlagSet, name, usage string, set func(string) error) {
	flags.Var(&repeatedFlag{set: set}, name, usage)
}

// last returns the descriptor that the preceding flags have added last, or an error if there is none.
func (r *requestFlags) last() (*ratelimitpb.RateLimitDescriptor, error) {
	if len(r.descriptors) == 0 {
		return nil, errors.New("it belongs to the descriptor before it, and there is none")
	}
	return r.descriptors[len(r.descriptors)-1], nil
}

func (r *requestFlags) addJSON(text string) error {
	d := new(ratelimitpb.RateLimitDescriptor)
	if err := protojson.Unmarshal([]byte(text), d); err != nil {
		return errors.New(`no descriptor, such as {"entries": [{"key": "…", "value": "…"}]}`)
	}
	if len(d.Entries) == 0 {
		return errors.New(`a descriptor without entries; want {"entries": [{"key": "…", "value": "…"}]}`)
	}
	r.descriptors = append(r.descriptors, d)
	return nil
}

func (r *requestFlags) setHits(text string) error {
	if len(r.descriptors) == 0 {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil || n == 0 { // 0 is refused, because the daemon takes it as 1
			return fmt.Errorf("hits of a request are whole numbers from 1 to %d", uint32(math.MaxUint32))
		}
		r.hits = uint32(n)
		return nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return fmt.Errorf("hits of a descriptor are whole numbers from 0 to %d", int64(math.MaxInt64))
	}
	r.descriptors[len(r.descriptors)-1].HitsAddend = wrapperspb.UInt64(n)
	return nil
}

func (r *requestFlags) setLimit(text string) error {
	limit, err := server.ParseLimit(text)
	if err != nil {
		return err
	}
	d, err := r.last()
	if err != nil {
		return err
	}
	d.Limit = &ratelimitpb.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: limit.PerUnit,
		Unit: typepb.RateLimitUnit(limit.Unit)}
	return nil
}

// repeatedFlag is a flag.Value for a flag that may be given more than once.
type repeatedFlag struct {
	texts []string
	set   func(string) error
}

// String returns the texts of all uses of the flag.
func (f *repeatedFlag) String() string { return strings.Join(f.texts, " ") }

// Set adds the text of one use of the flag.
func (f *repeatedFlag) Set(text string) error {
	f.texts = append(f.texts, text)
	return f.set(text)
}

// refundFlag is the flag -refund, which gives hits of the last descriptor back.
type refundFlag struct {
	request *requestFlags
	given   int // number of times that the flag was given as true
}

// String returns true if the flag was given as true at least once.
func (f *refundFlag) String() string { return strconv.FormatBool(f.given > 0) }

// Set takes true or false, which applies to the descriptor that was given last.
func (f *refundFlag) Set(text string) error {
	on, err := strconv.ParseBool(text)
	if err != nil {
		return errors.New("want true or false")
	}
	d, err := f.request.last()
	if err != nil {
		return err
	}
	if d.IsNegativeHits = on; on {
		f.given++
	}
	return nil
}

// IsBoolFlag makes package flag accept the flag without a value.
func (f *refundFlag) IsBoolFlag() bool { return true }

// descriptorsFlag is the flag -descriptors, which adds a descriptor to the request.
type descriptorsFlag struct {
	request *requestFlags
	given   []*ratelimitpb.RateLimitDescriptor
}

// String returns the descriptors in the form that envoyproxy/ratelimit's client prints.
func (f *descriptorsFlag) String() string {
	var b strings.Builder
	for _, descriptor := range f.given {
		entries := make([]string, 0, len(descriptor.Entries))
		for _, e := range descriptor.Entries {
			entries = append(entries, fmt.Sprintf("<key=%s, value=%s>", e.Key, e.Value))
		}
		fmt.Fprintf(&b, "[ %s ] ", strings.Join(entries, "  "))
	}
	return b.String()
}

// Set adds one descriptor.
func (f *descriptorsFlag) Set(text string) error {
	entries, err := server.ParseDescriptor(text)
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		return errors.New("a descriptor without entries; want key=value,key=value")
	}
	descriptor := &ratelimitpb.RateLimitDescriptor{}
	for _, e := range entries {
		descriptor.Entries = append(descriptor.Entries,
			&ratelimitpb.RateLimitDescriptor_Entry{Key: e.Key, Value: e.Value})
	}
	f.given = append(f.given, descriptor)
	f.request.descriptors = append(f.request.descriptors, descriptor)
	return nil
}

package limits

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"

	"gatehouse/shared/must"
)

type (
	conf   = rlsconf.RateLimitConfig
	desc   = rlsconf.RateLimitDescriptor
	policy = rlsconf.RateLimitPolicy
)

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	must.Succeed(t, err)
	return b
}

// newer sets the fields that the linked schema does not have.
func newer(t testing.TB, d *desc, quota bool, metadata map[string]any) *desc {
	t.Helper()
	var b []byte
	if quota {
		b = protowire.AppendVarint(protowire.AppendTag(b, fieldQuotaMode, protowire.VarintType), 1)
	}
	if metadata != nil {
		s, err := structpb.NewStruct(metadata)
		must.Succeed(t, err)
		b = protowire.AppendBytes(protowire.AppendTag(b, fieldMetadata, protowire.BytesType), encode(t, s))
	}
	d.ProtoReflect().SetUnknown(b)
	return d
}

// TestResources_asYAML: a resource means what the file with its fields means.
func TestResources_asYAML(t *testing.T) {
	f := func(c *conf, yaml string) {
		t.Helper()
		want, wantWarnings, err := Load(context.Background(), []File{{"r.yaml", []byte(yaml)}},
			Options{Settings: Settings{NearRatio: 0.8}})
		must.Succeed(t, err)
		got, warnings, err := LoadResources(context.Background(), [][]byte{encode(t, c)},
			Options{Settings: Settings{NearRatio: 0.8}})
		if err != nil {
			t.Error(err)
			return
		}
		places := cmpopts.IgnoreFields(RuleView{}, "File", "Line", "Column")
		if d := cmp.Diff(want.View(), got.View(), places, cmpopts.IgnoreFields(DomainView{}, "Files"),
			protocmp.Transform()); d != "" {
			t.Errorf("%s: %s", yaml, d)
		}
		if len(warnings) != len(wantWarnings) {
			t.Errorf("%s: warnings %v, want %v", yaml, warnings, wantWarnings)
		}
	}
	f(&conf{Domain: "d"}, "domain: d")
	f(&conf{Name: "r", Domain: "d", Descriptors: []*desc{
		{Key: "k", RateLimit: &policy{Unit: 1, RequestsPerUnit: 5}},
		{Key: "k", Value: "v", ShadowMode: true, RateLimit: &policy{Unit: 2, RequestsPerUnit: 0, Name: "n"}},
		{Key: "k", Value: "w*", DetailedMetric: true,
			RateLimit: &policy{Unit: 3, RequestsPerUnit: math.MaxUint32,
				Replaces: []*rlsconf.RateLimitReplace{{Name: "n"}}}},
		{Key: "a*b", Value: `x\*`, Descriptors: []*desc{{Key: "deep", RateLimit: &policy{Unlimited: true}},
			{Key: "white"}}},
		{Key: "d4", RateLimit: &policy{Unit: 4, RequestsPerUnit: 4}},
		{Key: "d5", RateLimit: &policy{Unit: 5, RequestsPerUnit: 5}},
		{Key: "d6", RateLimit: &policy{Unit: 6, RequestsPerUnit: 6}},
		{Key: "d7", RateLimit: &policy{Unit: 7, RequestsPerUnit: 7}},
	}}, `domain: d
descriptors:
  - {key: k, rate_limit: {unit: second, requests_per_unit: 5}}
  - {key: k, value: v, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 0, name: n}}
  - {key: k, value: w*, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 4294967295, replaces: [{name: n}]}}
  - {key: a*b, value: 'x\*', descriptors: [{key: deep, rate_limit: {unlimited: true}}, {key: white}]}
  - {key: d4, rate_limit: {unit: day, requests_per_unit: 4}}
  - {key: d5, rate_limit: {unit: month, requests_per_unit: 5}}
  - {key: d6, rate_limit: {unit: year, requests_per_unit: 6}}
  - {key: d7, rate_limit: {unit: week, requests_per_unit: 7}}
`)
	minute := &policy{Unit: 2, RequestsPerUnit: 1}
	f(&conf{Domain: "d", Descriptors: []*desc{
		newer(t, &desc{Key: "q", RateLimit: minute}, true, nil),
		newer(t, &desc{Key: "m", RateLimit: minute}, true,
			map[string]any{"a": "b", "n": 1.5, "l": []any{true, nil, map[string]any{"x": "y"}}}),
		newer(t, &desc{Key: "e", RateLimit: minute}, false, map[string]any{}),
	}}, `domain: d
descriptors:
  - {key: q, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: m, quota_mode: true, metadata: {a: b, n: 1.5, l: [true, null, {x: y}]}, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: e, metadata: {}, rate_limit: {unit: minute, requests_per_unit: 1}}
`)
}

// TestResources_newerFieldsTwice: on the wire the last bool counts, messages merge, and other types are no such field.
func TestResources_newerFieldsTwice(t *testing.T) {
	part := func(key string) []byte {
		s, _ := structpb.NewStruct(map[string]any{key: key})
		return encode(t, s)
	}
	tag := protowire.AppendTag
	var b []byte
	b = protowire.AppendVarint(tag(b, fieldQuotaMode, protowire.VarintType), 0)
	b = protowire.AppendBytes(tag(b, fieldMetadata, protowire.BytesType), part("a"))
	b = protowire.AppendVarint(tag(b, fieldQuotaMode, protowire.VarintType), 7)
	b = protowire.AppendBytes(tag(b, fieldQuotaMode, protowire.BytesType), []byte("x"))
	b = protowire.AppendVarint(tag(b, fieldMetadata, protowire.VarintType), 1)
	b = protowire.AppendBytes(tag(b, 99, protowire.BytesType), []byte("later"))
	b = protowire.AppendBytes(tag(b, fieldMetadata, protowire.BytesType), part("b"))
	d := &desc{Key: "k", RateLimit: &policy{Unit: 2, RequestsPerUnit: 1}}
	d.ProtoReflect().SetUnknown(b)
	r, _, err := LoadResources(context.Background(), [][]byte{encode(t, &conf{Domain: "d", Descriptors: []*desc{d}})},
		Options{})
	must.Succeed(t, err)
	rule := r.View()[0].Rules[0]
	if !rule.Quota || rule.Metadata.Fields["a"].GetStringValue() != "a" ||
		rule.Metadata.Fields["b"].GetStringValue() != "b" {
		t.Errorf("%+v", rule)
	}
}

// TestResources_unset: a value of metadata that is not set is null, since nothing else could be answered.
func TestResources_unset(t *testing.T) {
	d := &desc{Key: "k", RateLimit: &policy{Unit: 2, RequestsPerUnit: 1}}
	s := &structpb.Struct{Fields: map[string]*structpb.Value{"u": {},
		"l": structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{{}}})}}
	d.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, fieldMetadata, protowire.BytesType),
		encode(t, s)))
	r, _, err := LoadResources(context.Background(), [][]byte{encode(t, &conf{Domain: "d", Descriptors: []*desc{d}})},
		Options{})
	must.Succeed(t, err)
	text, err := json.Marshal(r.View()[0].Rules[0].Metadata)
	if want := `{"l":[null],"u":null}`; err != nil || strings.ReplaceAll(string(text), " ", "") != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
}

// TestResources_rejected holds what is reported for each error: resource, domain, descriptor.
func TestResources_rejected(t *testing.T) {
	f := func(list []*conf, want ...string) {
		t.Helper()
		resources := make([][]byte, len(list))
		for i, c := range list {
			resources[i] = encode(t, c)
		}
		r, _, err := LoadResources(context.Background(), resources, Options{})
		if err == nil || r != nil {
			t.Errorf("accepted, want %q", want)
			return
		}
		if d := cmp.Diff(strings.Join(want, "\n"), err.Error()); d != "" {
			t.Error(d)
		}
	}
	minute := &policy{Unit: 2, RequestsPerUnit: 1}
	one := func(d ...*desc) []*conf { return []*conf{{Name: "r", Domain: "d", Descriptors: d}} }
	f([]*conf{{Name: "r"}}, `r: domain is missing or empty; write the name that requests have, such as domain: shop`)
	f([]*conf{{}}, `resources[0]: domain is missing or empty; write the name that requests have, such as domain: shop`)
	f(one(&desc{Value: "v", RateLimit: minute}), `r: domain "d": descriptors[0] needs a key, such as key: remote_address`)
	f(one(&desc{Key: "k", Descriptors: []*desc{{Value: "v"}}}),
		`r: domain "d", descriptor k: descriptors[0] needs a key, such as key: remote_address`)
	f(one(&desc{Key: "k", Value: "v", RateLimit: &policy{RequestsPerUnit: 1}}),
		`r: domain "d", descriptor k_v: rate_limit needs a unit (second, minute, hour, day, week, month or year) or unlimited: true`)
	f(one(&desc{Key: "k", RateLimit: &policy{Unit: 8, RequestsPerUnit: 1}}),
		`r: domain "d", descriptor k: unit "8" is unknown; allowed are second, minute, hour, day, week, month or year`)
	f(one(&desc{Key: "k", RateLimit: &policy{Unit: -1, RequestsPerUnit: 1}}),
		`r: domain "d", descriptor k: unit "-1" is unknown; allowed are second, minute, hour, day, week, month or year`)
	f(one(&desc{Key: "k", RateLimit: &policy{Unit: 2, RequestsPerUnit: 3, Unlimited: true}}),
		`r: domain "d", descriptor k: unlimited: true takes no unit, but unit is "minute"`,
		`r: domain "d", descriptor k: unlimited: true takes no requests_per_unit, but it is 3`)
	f(one(&desc{Key: "k", RateLimit: &policy{Unit: 2, RequestsPerUnit: 1, Name: "n",
		Replaces: []*rlsconf.RateLimitReplace{{}, {Name: "n"}}}}),
		`r: domain "d", descriptor k: replaces[0] needs the name of a rule, such as {name: hourly}`,
		`r: domain "d", descriptor k: the rule replaces itself: "n" is its own name; write that of another rule`)
	f(one(&desc{Key: "k", Value: "v", RateLimit: minute}, &desc{Key: "x"}, &desc{Key: "k", Value: "v"}),
		`r: domain "d", descriptor k_v: this descriptor is already configured in r (descriptors[0]); key and value may stand once in a list`)
	f(one(newer(t, &desc{Key: "k", RateLimit: minute}, false,
		map[string]any{"a": []any{math.NaN()}, "b": math.Inf(1)})),
		`r: domain "d", descriptor k: metadata.a[0] is NaN, which JSON can't hold`,
		`r: domain "d", descriptor k: metadata.b is +Inf, which JSON can't hold`)
	f([]*conf{{Name: "b", Domain: "d"}, {Name: "a", Domain: "d"}},
		`b: domain "d": the domain is already configured in a; MERGE_DOMAIN_CONFIG=true lets files share one`)
	// All errors of all resources are reported together.
	f([]*conf{{Name: "b\n", Domain: "e", Descriptors: []*desc{{}}}, {Name: "a"}},
		`"b\n": domain "e": descriptors[0] needs a key, such as key: remote_address`, `a: domain is missing or empty; write the name that requests have, such as domain: shop`)

	g := func(b []byte, want string) {
		t.Helper()
		_, _, err := LoadResources(context.Background(), [][]byte{encode(t, &conf{Name: "good", Domain: "d"}), b},
			Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	g([]byte{0xff}, "resources[1]: not a RateLimitConfig: ")
	g(protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), []byte{0xff}), "invalid UTF-8")
	bad := &desc{Key: "k"}
	bad.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, fieldMetadata, protowire.BytesType),
		[]byte{1}))
	g(encode(t, &conf{Name: "r", Domain: "e", Descriptors: []*desc{bad}}),
		`r: domain "e", descriptor k: metadata is not a google.protobuf.Struct: `)
	deep := encode(t, &desc{Key: "k"})
	for range 2 * maxDepth {
		deep = append(encode(t, &desc{Key: "k"}),
			protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), deep)...)
	}
	g(protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), deep), "recursion")
}

// TestResources_merged: resources share a domain as files do, in the order of their names.
func TestResources_merged(t *testing.T) {
	minute := &policy{Unit: 2, RequestsPerUnit: 1}
	a := encode(t, &conf{Name: "a", Domain: "d", Descriptors: []*desc{{Key: "k", Value: "a*", RateLimit: minute}}})
	b := encode(t, &conf{Name: "b", Domain: "d", Descriptors: []*desc{{Key: "k", Value: "*a", RateLimit: minute}}})
	for _, order := range [][][]byte{{a, b}, {b, a}} {
		r, _, err := LoadResources(context.Background(), order, Options{Settings: Settings{MergeDomains: true}})
		must.Succeed(t, err)
		if got := fmt.Sprint(r.Domains()[0].Files, " ", r.View()[0].Rules[0].Key); got != "[a b] d.k_a*" {
			t.Error(got)
		}
	}
	r, _, err := LoadResources(context.Background(), nil, Options{})
	if err != nil || len(r.Domains()) != 0 {
		t.Errorf("no resources: %v, %v", r, err)
	}
}

// TestResources_unknownFields: limits of resources are fixed windows of entries with one value, whatever fields a newer
// schema may have that the linked one does not know.
func TestResources_unknownFields(t *testing.T) {
	var unknown []byte
	for number := protowire.Number(20); number < 40; number++ {
		unknown = protowire.AppendString(protowire.AppendTag(unknown, number, protowire.BytesType), "token_bucket")
		unknown = protowire.AppendVarint(protowire.AppendTag(unknown, number+20, protowire.VarintType), 7)
	}
	load := func(unknown []byte) []DomainView {
		d := &desc{Key: "k", RateLimit: &policy{Unit: 4, RequestsPerUnit: 5}}
		d.ProtoReflect().SetUnknown(unknown)
		d.RateLimit.ProtoReflect().SetUnknown(unknown)
		r, _, err := LoadResources(context.Background(),
			[][]byte{encode(t, &conf{Name: "r", Domain: "d", Descriptors: []*desc{d}})}, Options{})
		must.Succeed(t, err)
		return r.View()
	}
	if d := cmp.Diff(load(nil), load(unknown), protocmp.Transform()); d != "" {
		t.Errorf("unknown fields change rules: %s", d)
	}
}

// FuzzResource gives the loader any bytes. What is accepted can be searched, explained, shown and
// merged, and reads the same again; a refusal names the resource.
func FuzzResource(f *testing.F) {
	minute := &policy{Unit: 2, RequestsPerUnit: 1, Name: "n", Replaces: []*rlsconf.RateLimitReplace{{Name: "m"}}}
	f.Add(encode(f, &conf{Name: "r", Domain: "d", Descriptors: []*desc{
		{Key: "k", Value: "v*", ShadowMode: true, DetailedMetric: true, RateLimit: minute},
		newer(f, &desc{Key: "k", RateLimit: minute,
			Descriptors: []*desc{{Key: "x", RateLimit: &policy{Unlimited: true}}}},
			true, map[string]any{"a": []any{1.0, nil}}),
	}}))
	f.Add(encode(f, &conf{Name: "r\n", Descriptors: []*desc{{}, {Key: "k"}, {Key: "k", RateLimit: &policy{Unit: 9}}}}))
	f.Add([]byte{0xff})
	f.Add([]byte("\x0a\x01r\x12\x01d\x1a\x02\x0a\x09")) // the length of a key leads beyond its descriptor
	f.Add([]byte("\x18\x01\x1a\x03\x0a\x01k"))          // descriptors as a number, too
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<14 {
			return
		}
		r, warnings, err := LoadResources(context.Background(), [][]byte{b},
			Options{Settings: Settings{NearRatio: 0.8}})
		again, warnings2, err2 := LoadResources(context.Background(), [][]byte{b},
			Options{Settings: Settings{NearRatio: 0.8}})
		if fmt.Sprint(err) != fmt.Sprint(err2) || fmt.Sprint(warnings) != fmt.Sprint(warnings2) {
			t.Fatalf("read twice: %v %v\n%v %v", err, warnings, err2, warnings2)
		}
		whole := proto.UnmarshalOptions{RecursionLimit: maxDepth}.Unmarshal(b, new(conf)) == nil
		if taken := err == nil || !strings.Contains(err.Error(), "not a RateLimitConfig"); taken != whole {
			t.Fatalf("the library reads it: %v; taken apart: %v", whole, err)
		}
		if err != nil {
			refusal, ok := errors.AsType[*Rejection](err)
			if !ok || r != nil || len(refusal.Problems) == 0 {
				t.Fatalf("refused with %v and rules %v", err, r)
			}
			for _, p := range refusal.Problems {
				if p.File == "" || p.Message == "" || strings.Contains(p.String(), "\n") {
					t.Fatalf("bad problem %+v", p)
				}
			}
			return
		}
		if d := cmp.Diff(r.View(), again.View(), protocmp.Transform()); d != "" {
			t.Fatal(d)
		}
		must.Succeed(t, r.WriteText(io.Discard))
		must.Succeed(t, must.ErrOf(json.Marshal(r.View())))
		for _, d := range r.Domains() {
			d.root.each(func(s *step) { checkReachable(t, r, d, s) })
		}
	})
}

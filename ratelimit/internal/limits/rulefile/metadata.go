package rulefile

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/structpb"

	"gatehouse/ratelimit/internal/limits"
)

// metadata converts a YAML map with any keys to the protobuf Struct that dynamic metadata carries. It reports all
// errors in the map, not only the first.
func (r *reader) metadata(n *node) *structpb.Struct {
	if n.isNull() {
		return nil
	}
	if n.kind != mapNode {
		r.problem(n.pos, n.shown(), "metadata must be a map, not %s", n.whatText())
		return nil
	}
	return r.object(n, "metadata")
}

func (r *reader) object(n *node, path string) *structpb.Struct {
	out := &structpb.Struct{Fields: make(map[string]*structpb.Value, len(n.pairs))}
	for _, p := range n.pairs {
		k := p.key
		// Keys such as on and yes are booleans in YAML 1.1; take them as text, as JSON would show them.
		if s := k.scalar(); k.kind != textNode || s != stringScalar && s != boolScalar {
			r.problem(k.pos, k.shown(), "a key of %s must be a text, not %s (%s); put it in quotes", path, k.what(),
				k.shown())
			continue
		}
		if _, twice := out.Fields[k.text]; twice {
			r.problem(k.pos, k.text, "key %s stands twice in %s", limits.Quote(k.text), path)
			continue
		}
		if !utf8.ValidString(k.text) {
			r.problem(k.pos, k.text, "a key of %s is not UTF-8: %s", path, limits.Quote(k.text))
			continue
		}
		out.Fields[k.text] = r.value(p.value, path+"."+limits.OneLine(k.text))
	}
	return out
}

func (r *reader) value(n *node, path string) *structpb.Value {
	switch n.kind {
	case mapNode:
		return structpb.NewStructValue(r.object(n, path))
	case listNode:
		list := &structpb.ListValue{Values: make([]*structpb.Value, len(n.pairs))}
		for i, item := range n.pairs {
			list.Values[i] = r.value(item.value, fmt.Sprintf("%s[%d]", path, i))
		}
		return structpb.NewListValue(list)
	}
	switch n.scalar() {
	case nullScalar:
		return structpb.NewNullValue()
	case boolScalar:
		b, _ := yamlBool(n.text)
		return structpb.NewBoolValue(b)
	case intScalar:
		i, negative, _ := yamlInt(n.text)
		if !fits64(n.text) {
			r.problem(n.pos, n.text, "%s is %s, which does not fit into 64 bits; put it in quotes to keep its digits",
				path, limits.OneLine(n.text))
		}
		f := float64(i)
		if negative {
			f = -f
		}
		return structpb.NewNumberValue(f)
	case floatScalar:
		f, _ := yamlFloat(n.text)
		if math.IsInf(f, 0) || math.IsNaN(f) {
			r.problem(n.pos, n.text, "%s is %s, which JSON can't hold; put it in quotes", path, limits.OneLine(n.text))
		}
		return structpb.NewNumberValue(f)
	}
	if !utf8.ValidString(n.text) {
		r.problem(n.pos, n.text, "%s is not UTF-8: %s", path, limits.Quote(n.text))
		return structpb.NewStringValue(strings.ToValidUTF8(n.text, "?"))
	}
	return structpb.NewStringValue(n.text)
}

package rulefile

import (
	"fmt"
	"math"
	"strings"

	"gatehouse/ratelimit/internal/limits"
)

// maxLimits is the greatest number of limits in a rate_limits list. Each limit is a hit on the store.
const maxLimits = 8

func (r *reader) limit(n *node) *limits.Limit {
	if n.isNull() {
		return nil
	}
	l := &limits.Limit{Pos: n.pos}
	switch n.kind {
	case mapNode:
		r.limitFields(n, "rate_limit", limitKeys, l)
		return l
	case listNode:
		r.problem(n.pos, n.shown(), "rate_limit must be a map, not a list; for several limits write rate_limits")
	default:
		r.problem(n.pos, n.shown(), "rate_limit must be a map with %s, not %s", limits.OrList(limitKeys), n.whatText())
	}
	l.Unreadable = true
	return l
}

// limitList reads a rate_limits list. It reports an empty list and returns nil for it.
func (r *reader) limitList(n *node) *limits.LimitList {
	switch items := len(n.pairs); {
	case n.isNull():
		r.problem(n.pos, n.shown(), "rate_limits: null is empty; leave the line out, or list limits")
		return nil
	case n.kind != listNode:
		r.problem(n.pos, n.shown(), "rate_limits must be a list, not %s", n.what())
		return nil
	case items == 0:
		r.problem(n.pos, n.shown(), "rate_limits is empty; leave it out for an entry without limit")
		return nil
	case items > maxLimits:
		r.problem(n.pos, n.shown(), "rate_limits has %d items, at most %d are allowed", items, maxLimits)
		return nil
	}
	list := &limits.LimitList{Pos: n.pos, Items: make([]limits.Limit, len(n.pairs))}
	for i, p := range n.pairs {
		l, item := &list.Items[i], p.value
		l.Pos = item.pos
		where := fmt.Sprintf("rate_limits[%d]", i)
		if item.kind != mapNode {
			r.problem(item.pos, item.shown(), "%s must be a map with %s, not %s", where, limits.OrList(itemKeys),
				item.what())
			l.Unreadable = true
			continue
		}
		r.limitFields(item, where, itemKeys, l)
	}
	return list
}

// limitFields reads the fields of a limit from a YAML map. Messages name the limit by the text in where.
func (r *reader) limitFields(n *node, where string, allowed []string, l *limits.Limit) {
	ok := r.eachKey(n, where, allowed, func(key string, v *node) {
		var ok bool
		switch key {
		case "unit":
			l.Unit, ok = r.text(key, v)
			l.HasUnit, l.UnitPos = ok && !v.isNull(), v.pos
		case "requests_per_unit":
			l.PerUnit, ok = r.number(key, v, 0, math.MaxUint32)
			l.HasPerUnit, l.PerUnitPos = ok && !v.isNull(), v.pos
		case "unit_multiplier":
			l.Multiplier, ok = r.number(key, v, 1, math.MaxUint32)
			l.MultiplierPos = v.pos
		case "unlimited":
			l.Unlimited, ok = r.boolean(key, v)
		case "name":
			l.Name, ok = r.text(key, v)
			l.NamePos = v.pos
		case "replaces":
			l.Replaces, ok = r.replaces(v), true
		default:
			if l.Options == nil {
				l.Options = new(limits.LimitOptions)
			}
			ok = r.option(key, v, l.Options)
		}
		l.Unreadable = l.Unreadable || !ok
	})
	l.Unreadable = l.Unreadable || !ok
}

// option reads a field that few limits have.
func (r *reader) option(key string, v *node, o *limits.LimitOptions) (ok bool) {
	switch key {
	case "algorithm":
		o.Algorithm, ok = r.text(key, v)
		o.HasAlgorithm, o.AlgorithmPos = ok && !v.isNull(), v.pos
	case "burst":
		o.Burst, ok = r.number(key, v, 1, math.MaxUint32)
		o.BurstPos = v.pos
	case "calendar":
		o.Calendar, ok = r.text(key, v)
		o.HasCalendar, o.CalendarPos = ok && !v.isNull(), v.pos
	case "shadow_mode":
		o.Shadow, ok = r.boolean(key, v)
		o.HasShadow = !v.isNull()
	}
	return ok
}

// listKeys are the keys that an entry may have in place of value, and the keys that go with them.
var listKeys = []string{"values", "cidr", "not_cidr", "prefix_length", "group"}

// listField reads one of listKeys into e.Match.
func (r *reader) listField(e *limits.Entry, key string, v *node) {
	if e.Match == nil {
		if v.isNull() && (key == "group" || key == "prefix_length") {
			return // null is the same as a missing key
		}
		e.Match = &limits.Match{}
	}
	l, before := e.Match, r.wrong
	switch key {
	case "values":
		l.Values, l.ValuesPos = r.texts(key, "list values", limits.MaxValues, v), v.pos
	case "cidr":
		l.CIDR, l.CIDRPos = r.texts(key, "list prefixes", limits.MaxPrefixes, v), v.pos
	case "not_cidr":
		l.NotCIDR, l.NotCIDRPos = r.texts(key, "list prefixes", limits.MaxPrefixes, v), v.pos
	case "prefix_length":
		l.PrefixLengthPos = v.pos
		r.prefixLength(l, v)
	case "group":
		l.Group, _ = r.text(key, v)
		l.GroupPos = v.pos
	}
	l.Unreadable = l.Unreadable || r.wrong > before
}

// texts reads a list of texts. A list without items is reported. A null item becomes an empty text, which package
// limits refuses.
func (r *reader) texts(field, instead string, most int, list *node) []limits.Item {
	switch {
	case list.isNull():
		r.problem(list.pos, list.shown(), "%s: null is empty; leave the line out, or %s", field, instead)
		return nil
	case list.kind == textNode:
		r.problem(list.pos, list.shown(), "%s must be a list: [%s]", field, list.shown())
		return nil
	case list.kind != listNode:
		r.problem(list.pos, list.shown(), "%s must be a list, not %s", field, list.what())
		return nil
	case len(list.pairs) == 0:
		r.problem(list.pos, field, "%s is empty; leave it out, or %s", field, instead)
		return nil
	case len(list.pairs) > most:
		r.problem(list.pos, field, "%s has %d items, at most %d are allowed", field, len(list.pairs), most)
		return nil
	}
	out := make([]limits.Item, 0, len(list.pairs))
	for i, p := range list.pairs {
		item := p.value
		switch {
		case !r.report.Step():
			return out
		case item.kind == mapNode && strings.HasSuffix(field, "cidr"):
			r.problem(item.pos, item.shown(), "%s[%d] must be a prefix, not a map; quote addresses that end in a colon",
				field, i)
		case item.kind != textNode:
			r.problem(item.pos, item.shown(), "%s[%d] must be a text, not %s", field, i, item.what())
		case item.isNull():
			out = append(out, limits.Item{Pos: item.pos})
		default:
			out = append(out, limits.Item{Text: item.text, Pos: item.pos})
		}
	}
	return out
}

func (r *reader) prefixLength(l *limits.Match, n *node) {
	if n.isNull() {
		return
	}
	l.HasPrefixLength = true
	if n.kind != mapNode {
		r.problem(n.pos, n.shown(), "prefix_length must be a map with v4 or v6, not %s", n.whatText())
		return
	}
	r.eachKey(n, "prefix_length", lengthKeys, func(key string, v *node) {
		if key == "v4" {
			length, _ := r.number("prefix_length.v4", v, 1, 32)
			l.V4, l.V4Pos = uint8(length), v.pos
			return
		}
		length, _ := r.number("prefix_length.v6", v, 1, 128)
		l.V6, l.V6Pos = uint8(length), v.pos
	})
}

var lengthKeys = []string{"v4", "v6"}

// exclusive are the pairs of keys that an entry must not have together.
var exclusive = [][2]string{{"value", "values"}, {"value", "cidr"}, {"value", "not_cidr"}, {"values", "cidr"},
	{"values", "not_cidr"}}

// excluded reports each pair of exclusive keys that an entry has together.
func (r *reader) excluded(n *node) (wrong bool) {
	for _, keys := range exclusive {
		wrong = r.exclude(n, keys[0], keys[1]) || wrong
	}
	return wrong
}

// exclude reports the keys a and b if an entry has both.
func (r *reader) exclude(n *node, a, b string) bool {
	first, second := keyNode(n, a), keyNode(n, b)
	if first == nil || second == nil {
		return false
	}
	if second.pos.Line < first.pos.Line || second.pos.Line == first.pos.Line && second.pos.Column < first.pos.Column {
		first, second = second, first
	}
	r.problem(second.pos, second.text, "%s and %s exclude each other; the first is at line %d, column %d", a, b,
		first.pos.Line, first.pos.Column)
	return true
}

// keyNode returns the node of a key in a map; nil if the map lacks the key. A value or rate_limit that is null counts
// as missing.
func keyNode(n *node, key string) *node {
	for _, p := range n.pairs {
		if p.key.text == key && !((key == "value" || key == "rate_limit") && p.value.isNull()) {
			return p.key
		}
	}
	return nil
}

// listLabel returns the label of an entry's list of n texts. before is the label of another list of the entry.
func listLabel(field, first string, n int, before string) string {
	switch {
	case field == "values" || field == "cidr":
		return limits.ShownList("", first, n)
	case field == "not_cidr" && before == "":
		return limits.ShownList("not ", first, n)
	}
	return before
}

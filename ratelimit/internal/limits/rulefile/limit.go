package rulefile

import (
	"fmt"
	"math"

	"gatehouse/ratelimit/internal/limits"
)

// maxLimits is how many limits a rate_limits list may have: each is a hit on the store.
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

// limitList reads rate_limits. It returns nil for an empty list, which has been reported.
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

// limitFields reads the map of a limit.
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

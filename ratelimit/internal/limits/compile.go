package limits

import (
	"slices"
	"strings"

	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/stats"
)

// Above these numbers a map beats a scan (BenchmarkLevel).
const (
	scanValues = 8
	scanKeys   = 8
)

// unitByName are the units of spec 12 as files write them, in lower case.
var unitByName = map[string]rls.Unit{
	"second": rls.Second, "minute": rls.Minute, "hour": rls.Hour, "day": rls.Day,
	"week": rls.Week, "month": rls.Month, "year": rls.Year,
}

// unitNames are the same in the order of their size, for messages.
var unitNames = []string{"second", "minute", "hour", "day", "week", "month", "year"}

func unitOf(name string) rls.Unit {
	if u, ok := unitByName[name]; ok {
		return u
	}
	return unitByName[strings.ToLower(name)]
}

// compile makes rules of trees that check let pass.
func compile(domains []domainTree, o Options) *Rules {
	r := &Rules{o: o, domains: make(map[string]*Domain, len(domains))}
	for _, t := range domains {
		c := compiler{rules: r, ids: map[string]uint32{}, d: &Domain{Name: t.name, OnStoreFailure: t.failure, Files: t.files}}
		c.names(t.entries)
		if len(t.entries) > 0 {
			c.children(&c.d.root, t.entries, nil)
		}
		r.domains[t.name] = c.d
		r.sorted = append(r.sorted, c.d)
	}
	slices.SortFunc(r.sorted, func(a, b *Domain) int { return strings.Compare(a.Name, b.Name) })
	return r
}

type compiler struct {
	rules *Rules
	d     *Domain
	ids   map[string]uint32
}

// names gives every rule name of the domain its number.
func (c *compiler) names(entries []entry) {
	for i := range entries {
		e := &entries[i]
		if e.limit != nil && e.limit.name != "" && c.ids[e.limit.name] == 0 {
			c.d.names = append(c.d.names, e.limit.name)
			c.ids[e.limit.name] = uint32(len(c.d.names))
		}
		c.names(e.children)
	}
}

// children compiles the entries below one step. path leads to it and is reused by the callers.
func (c *compiler) children(parent *step, entries []entry, path []*step) {
	steps := make([]step, len(entries)) // one allocation for all siblings
	for i := range entries {
		e, s := &entries[i], &steps[i]
		*s = step{
			key: e.key, value: e.value, file: e.file, pos: e.pos, parent: parent,
			shadow: e.shadow, quota: e.quota, detailed: e.detailed, valueToMetric: e.valueToMetric, share: e.share,
		}
		_, s.pattern = parseValue(e.value)
		path := append(path, s)
		if e.limit != nil {
			s.rule = c.rule(e, s, path)
		}
		if len(e.children) > 0 {
			c.children(s, e.children, path)
		}
	}
	parent.below = branchOf(steps)
}

func (c *compiler) rule(e *entry, s *step, path []*step) *Rule {
	l := e.limit
	r := &Rule{
		Name: l.name, ID: c.ids[l.name], Unlimited: l.unlimited,
		Shadow: e.shadow, Quota: e.quota, Metadata: e.metadata, step: s,
	}
	if !l.unlimited {
		r.PerUnit, r.Unit, r.Multiplier = l.perUnit, unitOf(l.unit), max(l.multiplier, 1)
		r.Window = r.Unit.Seconds() * int64(r.Multiplier)
		r.Near = near(r.PerUnit, c.rules.o.NearRatio)
	}
	for _, x := range l.replaces {
		if id := c.ids[x.name]; id != 0 && !slices.Contains(r.Replaces, id) {
			r.Replaces = append(r.Replaces, id)
			c.d.HasReplaces = true
		}
	}
	for i, s := range path {
		if s.share {
			if r.shared == nil {
				r.shared = make([]string, len(path))
			}
			r.shared[i] = s.value
		}
	}
	parts, fixed := metricParts(c.d.Name, path, e.detailed)
	if r.metric = parts; parts == nil {
		r.Stats = c.handle(fixed)
	}
	return r
}

func (c *compiler) handle(key string) *stats.Rule {
	if c.rules.o.Stats == nil {
		return new(stats.Rule)
	}
	h := c.rules.o.Stats.Rule(key)
	c.rules.handles = append(c.rules.handles, h)
	return h
}

// branchOf sorts the entries below a step into one level per key.
func branchOf(steps []step) *branch {
	b := &branch{steps: steps}
	index := make(map[string]int)
	for i := range steps {
		child := &steps[i]
		at, ok := index[child.key]
		if !ok {
			at = len(b.levels)
			index[child.key] = at
			b.levels = append(b.levels, level{key: child.key})
		}
		l := &b.levels[at]
		switch {
		case child.value == "":
			l.anyVal = child
		case child.pattern != nil:
			l.wild = append(l.wild, child)
		default:
			l.few = append(l.few, choice{child.literal(), child})
		}
	}
	b.levels = slices.Clip(b.levels)
	for i := range b.levels {
		b.levels[i].finish()
	}
	if len(b.levels) > scanKeys {
		b.byKey = make(map[string]*level, len(b.levels))
		for i := range b.levels {
			b.byKey[b.levels[i].key] = &b.levels[i]
		}
	}
	return b
}

// finish adds the texts of patterns to the exact values, since a value that is literally the
// pattern matches exactly (spec 4.3), and makes a map of many values.
func (l *level) finish() {
	if len(l.few)+len(l.wild) > scanValues {
		l.many = make(map[string]*step, len(l.few)+len(l.wild))
		for _, c := range l.few {
			l.many[c.value] = c.step
		}
		l.few = nil
	}
	for _, w := range l.wild {
		if !w.pattern.escaped && l.exact(w.value) == nil {
			l.addExact(w.value, w)
		}
	}
	if len(l.wild) > 0 {
		all := make([]*pattern, len(l.wild))
		for i, w := range l.wild {
			all[i] = w.pattern
		}
		ix := indexPatterns(all)
		l.index = &ix
	}
}

func (l *level) addExact(value string, s *step) {
	if l.many != nil {
		l.many[value] = s
		return
	}
	l.few = append(l.few, choice{value, s})
}

// literal is the text that an exact entry's value stands for.
func (s *step) literal() string {
	text, _ := parseValue(s.value)
	return text
}

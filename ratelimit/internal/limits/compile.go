package limits

import (
	"iter"
	"slices"
	"strings"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/stats"
)

// A level's values, and a branch's keys, are scanned up to these numbers and looked up in a map beyond them. For so
// few, a scan is as fast as a map or faster (BenchmarkLevel: 4 values take 9 ns either way; 8 values take 14 ns by
// scan, 10 ns by map).
const (
	scanValues = 4
	scanKeys   = 4
)

// unitNames are the units as rule files write them, by size; units are the constants for them, in the same order.
var (
	unitNames = []string{"second", "minute", "hour", "day", "week", "month", "year"}
	units     = [...]rls.Unit{rls.Second, rls.Minute, rls.Hour, rls.Day, rls.Week, rls.Month, rls.Year}
)

func unitOf(name string) rls.Unit {
	if i := slices.Index(unitNames, strings.ToLower(name)); i >= 0 {
		return units[i]
	}
	return 0
}

// compile turns the trees of domains, which check has accepted, into rules. The rules are incomplete if rep has stopped
// the load.
func compile(domains []domainTree, o Options, rep *Report) *Rules {
	r := &Rules{o: o, domains: make(map[string]*Domain, len(domains))}
	for _, t := range domains {
		c := compiler{report: rep, rules: r, ids: map[string]uint32{}, keys: map[string]string{},
			d: &Domain{Name: strings.Clone(t.name), OnStoreFailure: t.failure, Files: t.files}}
		c.names(t.entries)
		if len(t.entries) > 0 {
			c.children(&c.d.root, t.entries, nil, true)
		}
		r.domains[c.d.Name] = c.d
		r.sorted = append(r.sorted, c.d)
	}
	slices.SortFunc(r.sorted, func(a, b *Domain) int { return strings.Compare(a.Name, b.Name) })
	return r
}

type compiler struct {
	report *Report
	rules  *Rules
	d      *Domain
	ids    map[string]uint32
	keys   map[string]string // one copy of each key of an entry
}

// key returns the load's one copy of a key. Matching compares the same few keys all the time, and a single copy of each
// stays in the processor's cache.
func (c *compiler) key(s string) string {
	have, ok := c.keys[s]
	if !ok {
		have = strings.Clone(s)
		c.keys[have] = have
	}
	return have
}

// names numbers the rule names of the domain.
func (c *compiler) names(entries []Entry) {
	for i := range entries {
		e := &entries[i]
		for i := range e.limits() {
			l := e.limit(i)
			if l.Name != "" && c.ids[l.Name] == 0 {
				c.d.names = append(c.d.names, strings.Clone(l.Name))
				c.ids[l.Name] = uint32(len(c.d.names))
			}
		}
		c.names(e.Children)
	}
}

// children compiles the entries nested in parent. path leads to parent; its memory may be reused after children has
// returned. If last is set, these entries are compiled for the last time, and each is emptied when it is done.
func (c *compiler) children(parent *step, entries []Entry, path []*step, last bool) {
	// Allocate once for all entries of the list.
	m := c.materials(parent, entries)
	steps := m.steps
	for i := range entries {
		e := &entries[i]
		n := e.steps()
		for j := range n {
			if !c.report.Step() {
				return
			}
			c.step(&m, e, j, path, last && j == n-1)
		}
		if last {
			*e = Entry{} // free the entry: a large set of rules must not be in memory twice, as a tree and compiled
		}
	}
	parent.below = branchOf(steps)
	c.rules.searched = max(c.rules.searched, parent.below.searched())
	c.rules.lookups = max(c.rules.lookups, parent.below.lookups())
}

// step compiles the i-th step of an entry, which has one step for each value of a list.
func (c *compiler) step(m *materials, e *Entry, i int, path []*step, last bool) {
	s := m.step(len(e.valueOf(i)))
	s.key, s.file, s.pos, s.parent = c.key(e.Key), e.File, e.Pos, m.parent
	s.Attributes, s.PathAttributes = e.Attributes, e.PathAttributes
	if s.match = e.compiledMatch(); s.match == nil {
		_, s.pattern = parseValue(s.value)
	}
	further := 0
	if s.Share && s.match != nil && s.match.networks != nil {
		further = len(s.match.networks.cidr) - 1
	}
	for j := range further { // with share_threshold, each further prefix is a step and rule of its own
		if j == 0 {
			s.match.further = make([]step, further)
		}
		x := &s.match.further[j]
		*x = *s
		x.match = s.match.only(j + 1)
	}
	for j := range further {
		c.below(m, &s.match.further[j], e, path, false)
	}
	c.below(m, s, e, path, last)
}

// below compiles the rule of a step and the entries nested below it.
func (c *compiler) below(m *materials, s *step, e *Entry, path []*step, last bool) {
	path = append(path, s)
	if e.Limit != nil {
		s.rule = m.rule()
		c.entry(s.rule, e, path)
	}
	if len(e.Children) > 0 {
		c.children(s, e.Children, path, last)
	}
}

// materials are the steps, rules and texts for one list of entries. They are allocated together, and each entry takes
// its own.
type materials struct {
	parent *step
	steps  []step
	rules  []Rule
	// values has copies of the values of all steps, one after another: the entries' own values would keep the text of a
	// whole file in memory.
	values string
}

func (c *compiler) materials(parent *step, entries []Entry) (m materials) {
	var b strings.Builder
	steps, rules := 0, 0
	for i := range entries {
		e := &entries[i]
		steps += e.steps()
		if e.Limit != nil {
			rules += e.copies()
		}
		for j := range e.steps() {
			b.WriteString(e.valueOf(j))
		}
	}
	return materials{parent, make([]step, steps), make([]Rule, rules),
		strings.Clone(b.String())} // a clone has no spare capacity
}

// step returns the next unused step, with a value of the given length.
func (m *materials) step(bytes int) *step {
	s := &m.steps[0]
	s.value = m.values[:bytes]
	m.steps, m.values = m.steps[1:], m.values[bytes:]
	return s
}

func (m *materials) rule() *Rule {
	r := &m.rules[0]
	m.rules = m.rules[1:]
	return r
}

// entry compiles the limits of the entry at the end of path: the first into r, the others into r.Further.
func (c *compiler) entry(r *Rule, e *Entry, path []*step) {
	metric, fixed := metricParts(c.d.Name, path, e.Detailed)
	base := Rule{Attributes: e.Attributes, Metadata: e.Metadata, step: path[len(path)-1]}
	if metric == nil {
		base.Stats = c.handle(func(r *stats.Registry) *stats.Rule { return r.Rule(fixed) })
	}
	*r = base
	first := ruleLevels{metric: metric, keys: keysOf(path)}
	if e.List == nil {
		c.limit(r, e.Limit, first, false)
		return
	}
	further := make([]Rule, len(e.List.Items)-1)
	r.Further = make([]*Rule, len(further))
	c.rules.further = max(c.rules.further, len(further))
	var room [8]string
	labels, fixedSeen := room[:0], false
	for i := range e.List.Items {
		if i > 0 {
			r.Further[i-1], further[i-1] = &further[i-1], base
		}
		rule, levels := r, first
		if i > 0 {
			rule = r.Further[i-1]
		}
		levels.list = &listLimit{index: uint8(i), label: e.List.Items[i].label(labels)}
		labels = append(labels, levels.list.label)
		if metric == nil {
			label := levels.list.label
			levels.list.stats = c.handle(func(r *stats.Registry) *stats.Rule { return r.Limit(fixed, label) })
		}
		c.limit(rule, &e.List.Items[i], levels, fixedSeen)
		fixedSeen = fixedSeen || rule.tag == 0
	}
}

// limit compiles one limit into r, in which the attributes of the entry are set already. fixedSeen is as in tagOf.
func (c *compiler) limit(r *Rule, l *Limit, levels ruleLevels, fixedSeen bool) {
	r.Name, r.ID, r.Unlimited = strings.Clone(l.Name), c.ids[l.Name], l.Unlimited
	for _, x := range l.Replaces {
		if id := c.ids[x.Name]; id != 0 {
			levels.replaces = append(levels.replaces, id)
		}
	}
	slices.Sort(levels.replaces)
	levels.replaces = slices.Compact(levels.replaces)
	levels.replaced = replacedBits(levels.replaces)
	if !l.Unlimited {
		c.window(r, l, &levels)
		r.tag = tagOf(r.Algorithm, levels.calendar != nil, fixedSeen)
	}
	if !levels.empty() {
		kept := levels // a copy, so that only the few rules that need it allocate
		r.levels = &kept
	}
}

// window compiles the window and the algorithm of a limit into r, and its calendar into levels.
func (c *compiler) window(r *Rule, l *Limit, levels *ruleLevels) {
	r.PerUnit, r.Unit, r.Multiplier = l.PerUnit, unitOf(l.Unit), max(l.Multiplier, 1)
	r.Window = r.Unit.Seconds() * int64(r.Multiplier)
	o := l.options()
	r.Algorithm = o.algorithm()
	if o.HasShadow {
		r.Shadow = o.Shadow
	}
	most := r.PerUnit
	if r.Algorithm == counter.TokenBucket {
		r.Burst = l.burst()
		most = r.Burst
	}
	r.Near = near(most, c.rules.o.NearRatio)
	if o.Calendar != "" {
		zone, _ := c.report.zone(o.Calendar) // the error is impossible: check has loaded the zone
		levels.calendar = &calendarWindow{name: strings.Clone(o.Calendar), zone: zone,
			unit: calendarUnits[r.Unit]}
	}
}

// keysOf returns, for each level of a path, the text that counter keys have in place of the request's value; nil if
// every level has the value itself.
func keysOf(path []*step) (keys []keyPart) {
	for i, s := range path {
		if k := s.keyPart(); k != (keyPart{}) {
			if keys == nil {
				keys = make([]keyPart, len(path))
			}
			keys[i] = k
		}
	}
	return keys
}

// handle returns a rule's counters. It gets them by calling the function of with the registry of statistics, and notes
// that the rules need them. Without a registry it returns counters that are never read.
func (c *compiler) handle(of func(*stats.Registry) *stats.Rule) *stats.Rule {
	if c.rules.o.Stats == nil {
		return new(stats.Rule)
	}
	h := of(c.rules.o.Stats)
	c.rules.handles = append(c.rules.handles, h)
	return h
}

// branchOf sorts the steps compiled from one list of entries into levels, one for each key.
func branchOf(steps []step) *branch {
	b := &branch{steps: steps}
	var order []string
	groups := map[string][]*step{}
	for i := range steps {
		s := &steps[i]
		if groups[s.key] == nil {
			order = append(order, s.key)
		}
		groups[s.key] = append(groups[s.key], s)
	}
	b.first.fill(order[0], groups[order[0]])
	if len(order) == 1 {
		return b
	}
	b.more = &moreLevels{list: make([]level, len(order)-1)}
	for i, key := range order[1:] {
		b.more.list[i].fill(key, groups[key])
	}
	if len(b.more.list) > scanKeys {
		b.more.byKey = make(map[string]*level, len(b.more.list))
		for i := range b.more.list {
			b.more.byKey[b.more.list[i].key] = &b.more.list[i]
		}
	}
	return b
}

// levels returns the levels of a branch, one for each key, in configuration order.
func (b *branch) levels() iter.Seq[*level] {
	return func(yield func(*level) bool) {
		if !yield(&b.first) || b.more == nil {
			return
		}
		for i := range b.more.list {
			if !yield(&b.more.list[i]) {
				return
			}
		}
	}
}

// searched returns the greatest number of patterns that one value may have to be searched for in a level of b: patterns
// with a text between two stars.
func (b *branch) searched() (most int) {
	for l := range b.levels() {
		if l.wild != nil {
			most = max(most, l.wild.patterns.searched())
		}
	}
	return most
}

// lookups returns the greatest number of prefix sets in which one address may have to be looked up in a level of b.
func (b *branch) lookups() (most int) {
	for l := range b.levels() {
		most = max(most, l.networks.lookups())
	}
	return most
}

// fill compiles the steps of one key into the level. The texts of patterns are among the exact values, too: a request's
// value that is equal to a pattern's text, stars included, matches exactly.
func (l *level) fill(key string, steps []*step) {
	l.key = key
	l.networks = networksOf(steps)
	l.exempts = !slices.ContainsFunc(steps, func(s *step) bool {
		return s.below != nil || s.rule != nil && !s.rule.Unlimited
	})
	var wild []*step
	exact := 0
	for _, s := range steps {
		switch {
		case s.match != nil:
			exact += len(s.match.values)
		case s.value == "":
			l.anyVal = s.target()
		case s.pattern != nil:
			wild = append(wild, s)
			exact++
		default:
			exact++
		}
	}
	if exact > scanValues {
		l.many = make(map[string]target, exact)
	}
	for _, s := range steps {
		switch {
		case s.match != nil:
			for _, value := range s.match.values {
				l.addExact(value, s)
			}
		case s.value != "" && s.pattern == nil:
			l.addExact(s.literal(), s)
		}
	}
	if wild == nil {
		return
	}
	l.wild = &wildcards{targets: make([]target, len(wild))}
	all := make([]*pattern, len(wild))
	for i, s := range wild {
		all[i], l.wild.targets[i] = s.pattern, s.target()
		if !s.pattern.escaped && l.exact(s.value).step == nil {
			l.addExact(s.value, s)
		}
	}
	l.wild.patterns = indexPatterns(all)
}

func (l *level) addExact(value string, s *step) {
	if l.many != nil {
		l.many[value] = s.target()
		return
	}
	l.few = append(l.few, choice{value, s.target()})
}

func (s *step) target() target { return target{s.below, s.rule, s} }

// literal returns the text that a request's value must equal to match this step exactly.
func (s *step) literal() string {
	text, _ := parseValue(s.value)
	return text
}

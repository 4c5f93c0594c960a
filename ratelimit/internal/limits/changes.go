package limits

import (
	"slices"

	"google.golang.org/protobuf/proto"
)

// Changes is the difference between two sets of rules, which the log line of a reload shows.
type Changes struct {
	Added, Removed, Changed int
	// First has the first maxChanges differences. Each is +, - or ~ (added, removed, changed), then domain, descriptor
	// and limit.
	First []string

	before, after *Domain // the domain that is being compared, as it was and as it is
	differing     int     // how many of the entries above the present entry match other values than before
}

const maxChanges = 10

// ChangesSince compares the rules with the rules before a reload, descriptor by descriptor.
func (r *Rules) ChangesSince(before *Rules) Changes {
	var c Changes
	for _, d := range r.sorted {
		var old []step
		if c.before, c.after = before.Domain(d.Name), d; c.before != nil {
			old = c.before.root.children()
		}
		c.compare(d.Name, old, d.root.children())
	}
	for _, d := range before.sorted {
		if r.Domain(d.Name) == nil {
			c.compare(d.Name, d.root.children(), nil)
		}
	}
	c.before, c.after = nil, nil
	return c
}

func (s *step) children() []step {
	if s.below == nil {
		return nil
	}
	return s.below.steps
}

// compare compares two versions of one list of entries, before and after a reload.
func (c *Changes) compare(domain string, before, after []step) {
	same := func(a, b step) bool { return a.key == b.key && a.value == b.value }
	if slices.EqualFunc(before, after, same) {
		for i := range after {
			c.pair(domain, &before[i], &after[i])
		}
		return
	}
	type name struct{ key, value string }
	left := make(map[name]*step, len(before))
	for i := range before {
		left[name{before[i].key, before[i].value}] = &before[i]
	}
	for i := range after {
		n := name{after[i].key, after[i].value}
		c.pair(domain, left[n], &after[i])
		delete(left, n)
	}
	for i := range before {
		if s := &before[i]; left[name{s.key, s.value}] != nil {
			c.pair(domain, s, nil)
		}
	}
}

// pair compares an entry before and after a reload. before is nil if the entry is new, and after is nil if it was
// removed.
func (c *Changes) pair(domain string, before, after *step) {
	var was, is *Rule
	var below [2][]step
	if before != nil {
		was, below[0] = before.rule, before.children()
	}
	if after != nil {
		is, below[1] = after.rule, after.children()
	}
	if before != nil && after != nil && !sameMatch(before, after) {
		c.differing++
		defer func() { c.differing-- }()
	}
	switch {
	case was == nil && is == nil:
	case was == nil:
		c.Added++
		c.note("+", domain, after, is.limitsText())
	case is == nil:
		c.Removed++
		c.note("-", domain, before, was.limitsText())
	case c.differing > 0 || !c.sameLimits(was, is):
		c.Changed++
		text := is.limitsText()
		if old := was.limitsText(); old != text {
			text = old + " -> " + text
		}
		c.note("~", domain, after, text)
	}
	if len(below[0])+len(below[1]) > 0 {
		c.compare(domain, below[0], below[1])
	}
}

func (c *Changes) note(mark, domain string, s *step, text string) {
	if len(c.First) < maxChanges {
		c.First = append(c.First, mark+" "+OneLine(domain)+" "+OneLine(s.path())+": "+text)
	}
}

// sameLimits reports whether all limits of two rules, the same descriptor's before and after a reload, are equal.
func (c *Changes) sameLimits(was, is *Rule) bool {
	if was.Listed() != is.Listed() || len(was.Further) != len(is.Further) {
		return false
	}
	same := func(a, b *Rule) bool {
		return sameRule(a, b) && slices.Equal(c.before.replacedBy(a), c.after.replacedBy(b))
	}
	return same(was, is) && slices.EqualFunc(was.Further, is.Further, same)
}

// sameRule reports whether two rules, the same descriptor's before and after a reload, decide alike and print alike.
func sameRule(a, b *Rule) bool {
	return a.PerUnit == b.PerUnit && a.Unit == b.Unit && a.Multiplier == b.Multiplier && a.Name == b.Name &&
		a.Algorithm == b.Algorithm && a.Burst == b.Burst && a.Calendar() == b.Calendar() &&
		a.Unlimited == b.Unlimited && a.Attributes == b.Attributes && a.step.PathAttributes == b.step.PathAttributes &&
		proto.Equal(a.Metadata, b.Metadata)
}

// replacedBy returns, sorted, the names of the rules that r replaces.
func (d *Domain) replacedBy(r *Rule) (names []string) {
	for _, id := range r.rare().replaces {
		names = append(names, d.names[id-1])
	}
	slices.Sort(names)
	return names
}

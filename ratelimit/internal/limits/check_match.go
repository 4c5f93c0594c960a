package limits

import (
	"fmt"
	"math"

	"gatehouse/ratelimit/internal/limits/network"
)

// match checks the lists (values, cidr, not_cidr) that an entry has in place of one value.
func (c *checker) match(e *Entry) {
	l := e.Match
	if l.Unreadable {
		return
	}
	c.values(e)
	c.group(e)
	l.cidr = c.prefixes(e, "cidr", l.CIDR)
	l.notCIDR = c.prefixes(e, "not_cidr", l.NotCIDR)
	if len(l.CIDR) == 0 && len(l.NotCIDR) > 0 {
		l.cidr = []network.Prefix{network.All4, network.All6}
	}
	c.prefixLength(e)
	if len(l.cidr) == max(len(l.CIDR), 1) && len(l.notCIDR) == len(l.NotCIDR) && len(l.CIDR) > 0 {
		c.exceptions(e)
	}
}

func (c *checker) values(e *Entry) {
	first := make(map[string]int, len(e.Match.Values))
	for i, v := range e.Match.Values {
		text, pattern := parseValue(v.Text)
		at := c.at(e, v.Pos)
		switch before, twice := first[text]; {
		case pattern != nil:
			c.report.Problem(at, v.Text,
				`values[%d] %s has a wildcard; write \* for a star, or an entry with value: %s`, i,
				Quote(v.Text), OneLine(v.Text))
		case v.Text == "":
			c.report.Problem(at, "", "values[%d] is empty; an entry without value takes any value", i)
		case twice:
			c.report.Problem(at, v.Text, "values[%d] %s stands twice; the first is values[%d]", i, Quote(v.Text),
				before)
		default:
			first[text] = i
		}
	}
}

func (c *checker) group(e *Entry) {
	switch l := e.Match; {
	case e.hasValues() && e.Share && l.Group == "":
		c.report.Problem(c.at(e, e.switchPos[shareThreshold]), "share_threshold",
			"values with share_threshold need group, the text that stands for them in keys")
	case l.Group != "" && !(e.hasValues() && e.Share):
		c.report.Problem(c.at(e, l.GroupPos), l.Group, "group needs values with share_threshold")
	}
}

// prefixes parses the texts of an entry's list of networks. It reports texts that are no networks, and leaves them out
// of the result.
func (c *checker) prefixes(e *Entry, list string, items []Item) []network.Prefix {
	if len(items) == 0 {
		return nil
	}
	out := make([]network.Prefix, 0, len(items))
	var first map[network.Prefix]Pos
	if len(items) > 1 {
		first = make(map[network.Prefix]Pos, len(items))
	}
	for i, item := range items {
		if !c.report.Step() {
			return out
		}
		at := c.at(e, item.Pos)
		p, mapped, ok := network.ParsePrefix(item.Text)
		switch before, twice := first[p]; {
		case !ok:
			c.report.Problem(at, item.Text,
				"%s[%d] %s is no IP prefix; write an address and its length, such as 10.0.0.0/8 or 2001:db8::/32",
				list, i, Quote(item.Text))
		case mapped:
			c.report.Problem(at, item.Text, "%s[%d] %s is an IPv4 prefix; write %s", list, i, item.Text, p.Masked())
		case p != p.Masked():
			c.report.Problem(at, item.Text, "%s[%d] %s has bits beyond its length; write %s", list, i, item.Text,
				p.Masked())
		case twice:
			c.prefixTwice(at, p, where(Place{File: e.File, Pos: before}))
		default:
			if first != nil {
				first[p] = item.Pos
			}
			out = append(out, p)
		}
	}
	return out
}

func (c *checker) prefixTwice(at Place, p network.Prefix, first string) {
	c.report.Problem(at, p.String(), "prefix %v is already configured in %s; a prefix may stand once in a list", p,
		first)
}

func (c *checker) prefixLength(e *Entry) {
	l := e.Match
	if !l.HasPrefixLength {
		return
	}
	at := c.at(e, l.PrefixLengthPos)
	switch {
	case !e.hasNetworks():
		c.report.Problem(at, "prefix_length", "prefix_length needs cidr or not_cidr")
		return
	case e.Share:
		c.report.Problem(at, "prefix_length", "prefix_length and share_threshold exclude each other")
		return
	}
	for i, item := range l.CIDR {
		p, _, ok := network.ParsePrefix(item.Text)
		if !ok {
			continue
		}
		field, length, pos := "v4", &l.V4, l.V4Pos
		if p.Is6() {
			field, length, pos = "v6", &l.V6, l.V6Pos
		}
		if *length != 0 && int(*length) < p.Bits() {
			c.report.Problem(c.at(e, pos), field, "prefix_length.%s is %d, which is wider than cidr[%d] %s", field,
				*length, i, item.Text)
			*length = 0 // report each of the two lengths, v4 and v6, only once
		}
	}
}

// exceptions warns about prefixes of not_cidr and cidr in one entry that make each other useless.
func (c *checker) exceptions(e *Entry) {
	l := e.Match
	if len(l.notCIDR) == 0 {
		return
	}
	in, except := network.NewSet(l.cidr), network.NewSet(l.notCIDR)
	together := network.NewSet(network.Merge(l.notCIDR))
	used := make([]bool, len(l.notCIDR))
	for i, p := range l.cidr {
		by := except.Containing(p)
		if by < 0 {
			if together.Containing(p) >= 0 {
				c.report.Warning(c.at(e, l.CIDR[i].Pos), l.CIDR[i].Text,
					"cidr[%d] %s never matches: prefixes of not_cidr take all of it", i, l.CIDR[i].Text)
			}
			continue
		}
		c.report.Warning(c.at(e, l.CIDR[i].Pos), l.CIDR[i].Text,
			"cidr[%d] %s never matches: not_cidr[%d] takes all of it", i, l.CIDR[i].Text, by)
		for ; by >= 0 && !used[by]; by = except.Shorter(by) {
			used[by] = true
		}
	}
	for i, p := range l.notCIDR {
		if !used[i] && in.Containing(p) < 0 {
			c.report.Warning(c.at(e, l.NotCIDR[i].Pos), l.NotCIDR[i].Text,
				"not_cidr[%d] %s has no effect: no prefix of cidr contains it", i, l.NotCIDR[i].Text)
		}
	}
}

// valuesTaken reports values of an entry's list that another entry with the same key has, too. seen has the values of
// the entries before it.
func (c *checker) valuesTaken(e *Entry, seen map[pairKey]taken) {
	for i, v := range e.Match.Values {
		text, _ := parseValue(v.Text)
		k := pairKey{e.Key, text, false}
		if first, known := seen[k]; !known {
			seen[k] = taken{e, v.Pos}
		} else if first.entry != e { // a duplicate within one list has been reported already
			c.report.Problem(c.at(e, v.Pos), v.Text,
				"values[%d] %s is already configured in %s; key and value may stand once in a list", i, Quote(v.Text),
				first)
		}
	}
}

// taken is the entry, and the position in it, where a value was seen first.
type taken struct {
	entry *Entry
	pos   Pos
}

func (t taken) String() string { return whereEntry(t.entry, t.pos) }

// prefixKey is a key and a prefix as a map key, by which equal prefixes of entries with the same key are found.
type prefixKey struct {
	key    string
	prefix network.Prefix
}

// prefixesTaken reports prefixes that several entries of one list have under the same key.
func (c *checker) prefixesTaken(list []Entry) {
	if len(list) == 1 {
		return
	}
	seen := make(map[prefixKey]taken, len(list))
	for i := range list {
		e := &list[i]
		if !e.hasNetworks() {
			continue
		}
		for j, p := range e.Match.cidr {
			if !c.report.Step() {
				return
			}
			pos := e.Match.NotCIDRPos
			if len(e.Match.CIDR) == len(e.Match.cidr) {
				pos = e.Match.CIDR[j].Pos
			}
			k := prefixKey{e.Key, p}
			if first, known := seen[k]; known {
				c.prefixTwice(c.at(e, pos), p, first.String())
			} else {
				seen[k] = taken{e, pos}
			}
		}
	}
}

// keyText is a text of an entry that appears in counter keys: a value, or a text that stands for several values.
type keyText struct {
	taken
	text, name string // name is the text's field, such as value or values[3]
	kind       string
}

const (
	aGroup   = "the group"
	aValue   = "the value"
	aPattern = "the pattern"
	aPrefix  = "the prefix"
	anAddr   = "an address"
)

// keyTexts returns all texts of an entry that appear in counter keys.
func (e *Entry) keyTexts() (out []keyText) {
	add := func(text, name, kind string, pos Pos) { out = append(out, keyText{taken{e, pos}, text, name, kind}) }
	switch l := e.Match; {
	case e.hasValues():
		if l.Group != "" {
			add(l.Group, "group", aGroup, l.GroupPos)
		}
		for i, v := range l.Values {
			text, _ := parseValue(v.Text)
			add(text, fmt.Sprintf("values[%d]", i), aValue, v.Pos)
		}
	case e.hasNetworks() && e.Share:
		for i, p := range l.cidr {
			if len(l.CIDR) == len(l.cidr) {
				add(p.String(), fmt.Sprintf("cidr[%d]", i), aPrefix, l.CIDR[i].Pos)
			} else {
				add(p.String(), "prefix", aPrefix, l.NotCIDRPos)
			}
		}
	case e.Match == nil && e.Value != "":
		if text, pattern := parseValue(e.Value); pattern == nil {
			add(text, "value", aValue, e.Pos)
		} else {
			add(e.Value, "value", aPattern, e.Pos)
		}
	}
	return out
}

// keyTexts reports entries with the same key that have an equal text of different kinds, such as a value and a group:
// they would share a counter.
func (c *checker) keyTexts(list []Entry) {
	first, byAddress := map[pairKey]keyText{}, map[string]taken{}
	for i := range list {
		e := &list[i]
		if !c.report.Step() {
			return
		}
		if e.hasNetworks() && !e.Share && byAddress[e.Key].entry == nil {
			byAddress[e.Key] = taken{e, e.Pos}
		}
		for _, t := range e.keyTexts() {
			k := pairKey{key: e.Key, value: t.text}
			switch before, known := first[k]; {
			case !known:
				first[k] = t
			case t.kind == aGroup, before.kind == aGroup, t.kind != before.kind &&
				(t.kind == aPrefix || before.kind == aPrefix):
				c.textTaken(t, before.kind, before.taken)
			}
		}
	}
	for _, t := range first {
		if _, _, address := network.ParsePrefix(t.text); address && t.kind == aGroup &&
			byAddress[t.entry.Key].entry != nil {
			c.textTaken(t, anAddr, byAddress[t.entry.Key])
		}
	}
}

func (c *checker) textTaken(t keyText, kind string, by taken) {
	c.report.Problem(c.at(t.entry, t.pos), t.text,
		"%s %s is also %s of %s; groups, values, patterns and prefixes of one key must differ", t.name, Quote(t.text),
		kind, by)
}

// made counts the steps (compiled entries) that lists of values and networks make: a list with n items multiplies by n
// the limits of its entry and of all entries nested in it, where an entry without a limit counts as one. It also
// returns the list that makes the most steps. Entries that have no list and are not nested in an entry with a list do
// not count.
func (c *checker) made(entries []Entry, below bool) (n int, most mostMade) {
	for i := range entries {
		e := &entries[i]
		if !c.report.Step() {
			return n, most
		}
		lists := e.hasValues() && !e.Share || e.hasNetworks() && e.Share
		c.path = append(c.path, e)
		steps, at := c.made(e.Children, below || lists)
		c.path = c.path[:len(c.path)-1]
		if below || lists {
			own := 1
			if e.List != nil {
				own = len(e.List.Items)
			}
			steps = times(e.copies(), plus(steps, own))
		}
		switch {
		case e.hasValues() && lists:
			at = mostMade{steps, "values", c.at(e, e.Match.ValuesPos)}
		case lists:
			at = mostMade{steps, "prefixes", c.at(e, e.Match.CIDRPos)}
		}
		if n = plus(n, steps); at.steps > most.steps {
			most = at
		}
	}
	return n, most
}

// mostMade is the list that makes the most steps, and how many it makes.
type mostMade struct {
	steps int
	what  string
	at    Place
}

// manySteps is the number from which steps are no longer counted: sums and products stop at it instead of overflowing.
const manySteps = math.MaxInt32

func plus(a, b int) int { return min(a+b, manySteps) }

func times(a, b int) int {
	if b > manySteps/max(a, 1) {
		return manySteps
	}
	return a * b
}

// multiplied reports a domain whose lists make more than maxMade steps.
func (c *checker) multiplied(entries []Entry) {
	if n, most := c.made(entries, false); n > maxMade {
		c.report.Problem(most.at, fmt.Sprint(n),
			"%s of nested entries make %d rules; at most %d per domain are allowed", most.what, n, maxMade)
	}
}

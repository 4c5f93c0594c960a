package limits

import (
	"fmt"
	"strings"
	"time"
)

// domainTree is all entries of one domain, from one file or, when merged, several.
type domainTree struct {
	name    string
	files   []string
	failure FailureMode
	entries []entry

	failurePlace place // where failure was said
	first        place // where the domain was said first
}

// check judges what documents mean, whose form reader has judged, and joins those of one domain. What
// it returns may be compiled only when the report holds no problem.
func check(docs []document, merge bool, rep *report) []domainTree {
	var out []domainTree
	index := map[string]int{}
	for i := range docs {
		doc := &docs[i]
		at := place{file: doc.file, pos: doc.pos}
		c := checker{file: doc.file, domain: doc.domain, report: rep}
		c.entries(doc.entries)
		if doc.domain == "" {
			if !doc.unreadable {
				rep.problem(at, "", "domain is missing or empty")
			}
			c.siblings(doc.entries)
			continue
		}
		at.domain = doc.domain
		n, seen := index[doc.domain]
		if !seen {
			index[doc.domain] = len(out)
			out = append(out, domainTree{
				name: doc.domain, files: []string{doc.file}, failure: doc.failure, entries: doc.entries,
				failurePlace: place{file: doc.file, pos: doc.failurePos, domain: doc.domain}, first: at,
			})
			continue
		}
		d := &out[n]
		if !merge {
			rep.problem(at, doc.domain, "the domain is already configured in %s; MERGE_DOMAIN_CONFIG=true lets files share one", where(d.first))
			c.siblings(doc.entries)
			continue
		}
		d.join(doc, rep)
	}
	for i := range out {
		c := checker{domain: out[i].name, report: rep}
		c.siblings(out[i].entries)
		c.names(out[i].entries)
	}
	return out
}

// join adds a further file of the domain.
func (d *domainTree) join(doc *document, rep *report) {
	d.files = append(d.files, doc.file)
	d.entries = append(d.entries, doc.entries...)
	if doc.failure == FailureUnset {
		return
	}
	here := place{file: doc.file, pos: doc.failurePos, domain: d.name}
	switch d.failure {
	case FailureUnset:
		d.failure, d.failurePlace = doc.failure, here
	case doc.failure:
	default:
		rep.problem(here, doc.failure.String(), "on_store_failure is %s here and %s in %s; files of one domain must agree", doc.failure, d.failure, where(d.failurePlace))
	}
}

// where is file:line:column.
func where(p place) string {
	if p.pos.line == 0 {
		return p.file
	}
	return fmt.Sprintf("%s:%d:%d", p.file, p.pos.line, p.pos.column)
}

// whereEntry is where of something in an entry; resources have no lines, so there it is the entry's
// place in its list.
func whereEntry(e *entry, p pos) string {
	if p.line == 0 {
		return fmt.Sprintf("%s (descriptors[%d])", e.file, e.index)
	}
	return where(place{file: e.file, pos: p})
}

// checker walks the entries of one domain.
type checker struct {
	file   string // of the document; entries of merged domains know their own
	domain string
	path   []*entry
	report *report
}

func (c *checker) at(e *entry, p pos) place {
	file := c.file
	if e != nil {
		file = e.file
	}
	return place{file: file, pos: p, domain: c.domain, path: c.dotted(e)}
}

// dotted is the path of an entry below those being walked; nil stands for the last of them.
func (c *checker) dotted(e *entry) string {
	labels := make([]string, 0, len(c.path)+1)
	for _, up := range c.path {
		labels = append(labels, up.label())
	}
	if e != nil {
		labels = append(labels, e.label())
	}
	return strings.Join(labels, ".")
}

// entries judges each entry of a list and all below it.
func (c *checker) entries(list []entry) {
	for i := range list {
		if !c.report.step() {
			return
		}
		e := &list[i]
		if e.key == "" && !e.keyUnreadable {
			c.report.problem(c.at(nil, e.pos), "", "descriptors[%d] needs a key", i)
		}
		c.flags(e)
		if e.limit != nil {
			c.limit(e)
		}
		c.path = append(c.path, e)
		c.entries(e.children)
		c.siblings(e.children)
		c.path = c.path[:len(c.path)-1]
	}
}

// flags judges the attributes beside key and value.
func (c *checker) flags(e *entry) {
	_, p := parseValue(e.value)
	if e.share && p == nil {
		c.report.problem(c.at(e, e.sharePos), e.value, "share_threshold needs a value with a wildcard; %s has no *", e.shownValue())
	}
	if strings.Contains(e.key, "*") {
		c.report.warning(c.at(e, e.pos), e.key, "the star in key %s is an ordinary character; wildcards work in values only", quote(e.key))
	}
	if e.limit == nil {
		for _, f := range []struct {
			set  bool
			pos  pos
			name string
		}{{e.shadow, e.shadowPos, "shadow_mode"}, {e.quota, e.quotaPos, "quota_mode"}, {e.detailed, e.detailedPos, "detailed_metric"}} {
			if f.set {
				c.report.warning(c.at(e, f.pos), f.name, "%s has no effect on a descriptor without rate_limit", f.name)
			}
		}
		return
	}
	if e.limit.unlimited {
		if e.quota {
			c.report.warning(c.at(e, e.quotaPos), "quota_mode", "quota_mode has no effect on an unlimited rule")
		}
		if e.shadow {
			c.report.warning(c.at(e, e.shadowPos), "shadow_mode", "shadow_mode has no effect on an unlimited rule")
		}
	}
}

func (e *entry) shownValue() string {
	if e.value == "" {
		return "a descriptor without value"
	}
	return quote(e.value)
}

func (c *checker) limit(e *entry) {
	l := e.limit
	if l.unlimited {
		c.unlimited(e)
	} else {
		switch {
		case l.hasUnit && unitOf(l.unit) == 0:
			c.report.problem(c.at(e, l.unitPos), l.unit, "unit %s is unknown; %s%s", quote(l.unit), allow(unitNames), didYouMean(l.unit, unitNames))
		case !l.hasUnit && !l.unreadable:
			c.report.problem(c.at(e, l.pos), "", "rate_limit needs a unit (%s) or unlimited: true", orList(unitNames))
		}
		if !l.hasPerUnit && !l.unreadable {
			c.report.problem(c.at(e, l.pos), "", "rate_limit needs requests_per_unit (0 blocks everything) or unlimited: true")
		}
	}
	for i, x := range l.replaces {
		switch x.name {
		case "":
			c.report.problem(c.at(e, x.pos), "", "replaces[%d] needs the name of a rule", i)
		case l.name:
			c.report.problem(c.at(e, x.pos), x.name, "the rule replaces itself: %s is its own name", quote(x.name))
		}
	}
}

func (c *checker) unlimited(e *entry) {
	l := e.limit
	if l.hasUnit {
		c.report.problem(c.at(e, l.unitPos), l.unit, "unlimited: true takes no unit, but unit is %s", quote(l.unit))
	}
	if l.hasPerUnit {
		c.report.problem(c.at(e, l.perUnitPos), fmt.Sprint(l.perUnit), "unlimited: true takes no requests_per_unit, but it is %d", l.perUnit)
	}
	if l.multiplier != 0 {
		c.report.problem(c.at(e, l.multiplierPos), fmt.Sprint(l.multiplier), "unlimited: true takes no unit_multiplier, but it is %d", l.multiplier)
	}
}

// pairKey is what makes two siblings the same: key and value compared apart.
type pairKey struct {
	key, value string
	wild       bool
}

// siblings finds entries of one list with equal key and value, and wildcards that never get a turn.
func (c *checker) siblings(list []entry) {
	if len(list) < 2 {
		return
	}
	seen := make(map[pairKey]*entry, len(list))
	var wild map[string][]*entry
	for i := range list {
		e := &list[i]
		if !c.report.step() {
			return
		}
		if e.key == "" {
			continue
		}
		text, p := parseValue(e.value)
		k := pairKey{e.key, text, false}
		if p != nil {
			k = pairKey{e.key, e.value, true}
			if wild == nil {
				wild = map[string][]*entry{}
			}
			wild[e.key] = append(wild[e.key], e)
		}
		if first := seen[k]; first != nil {
			c.report.problem(c.at(e, e.pos), e.label(), "this descriptor is already configured in %s; key and value may stand once in a list", whereEntry(first, first.pos))
			continue
		}
		seen[k] = e
	}
	for i := range list { // in file order, so that messages are too
		if group := wild[list[i].key]; len(group) > 1 && group[0] == &list[i] {
			c.covered(group)
		}
	}
}

// maxCovered bounds the comparisons of patterns by which a load finds those that never match, some 6 ns
// each: 50,000 patterns that begin with a star make a billion.
const maxCovered = 5_000_000

// covered warns about wildcards that an earlier one leaves nothing to match, and about many that cost a
// call much.
func (c *checker) covered(group []*entry) {
	patterns := make([]*pattern, len(group))
	for i, e := range group {
		_, patterns[i] = parseValue(e.value)
	}
	ix := indexPatterns(patterns)
	c.costly(group, &ix)
	left := maxCovered
	for i, e := range group {
		if !c.report.step() {
			return
		}
		// 0xff stands in no text, so only a star of the earlier pattern can take it in.
		text := patterns[i].joined("\xff")
		if left -= min(ix.candidates(text), i+1) * (1 + len(text)/256); left < 0 {
			c.report.warning(c.at(e, e.valuePos), e.value, "whether this and the %d patterns of key %s after it ever match is not checked: they are too many that begin alike", len(group)-1-i, quote(e.key))
			return
		}
		if first := ix.first(text); first < i {
			up := group[first]
			if up.value == e.value {
				continue // a duplicate, which is an error of its own
			}
			c.report.warning(c.at(e, e.valuePos), e.value, "%s never matches: %s in %s takes everything before it", quote(e.value), quote(up.value), whereEntry(up, up.valuePos))
		}
	}
}

// What one pattern with a text between two stars costs a call with a value of 60 KiB, the most that
// Envoy lets into headers, and from which sum on a load says so (BenchmarkPatterns_inside).
const (
	costInside   = 8 * time.Microsecond
	costReported = time.Millisecond
)

// costly warns when the patterns of a key that must be searched for in a value are many.
func (c *checker) costly(group []*entry, ix *patterns) {
	n := ix.searched()
	cost := time.Duration(n) * costInside
	if cost < costReported {
		return
	}
	for i, e := range group {
		if len(ix.all[i].middle) > 0 {
			c.report.warning(c.at(e, e.valuePos), e.value, "%d patterns of key %s from here on hold a text between two stars; a value of 60 KiB is searched for each, which costs a call up to about %v", n, quote(e.key), cost.Round(time.Millisecond))
			return
		}
	}
}

// names looks at the names of a domain's rules and at which rule replaces which.
func (c *checker) names(list []entry) {
	g := replaceGraph{checker: c, rules: map[string]*entry{}}
	g.collect(list)
	if !c.report.stopped() {
		g.warn()
	}
}

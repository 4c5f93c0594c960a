package limits

import (
	"fmt"
	"strings"
	"time"
)

// domainTree has all entries of one domain: the entries of one file or, with MERGE_DOMAIN_CONFIG, of several files.
type domainTree struct {
	name    string
	files   []string
	failure FailureMode
	entries []Entry

	failurePlace Place // the position of on_store_failure
	first        Place // the position where the domain is named first
}

// check checks the meaning of documents, whose form package rulefile has checked, and joins the documents of one
// domain. The result may be compiled only if the report has no problem.
func check(docs []Document, o Options, rep *Report) []domainTree {
	var out []domainTree
	index := map[string]int{}
	for i := range docs {
		doc := &docs[i]
		at := Place{File: doc.File, Pos: doc.Pos}
		c := checker{file: doc.File, domain: doc.Domain, memcached: o.Memcached, report: rep}
		c.entries(doc.Entries)
		if doc.Domain == "" {
			if !doc.Unreadable {
				rep.Problem(at, "", "domain is missing or empty; write the name that requests have, such as domain: shop")
			}
			c.siblings(doc.Entries)
			continue
		}
		at.Domain = doc.Domain
		n, seen := index[doc.Domain]
		if !seen {
			index[doc.Domain] = len(out)
			out = append(out, domainTree{
				name: doc.Domain, files: []string{doc.File}, failure: doc.Failure, entries: doc.Entries,
				failurePlace: Place{File: doc.File, Pos: doc.FailurePos, Domain: doc.Domain}, first: at,
			})
			continue
		}
		d := &out[n]
		if !o.MergeDomains {
			rep.Problem(at, doc.Domain,
				"the domain is already configured in %s; MERGE_DOMAIN_CONFIG=true lets files share one", where(d.first))
			c.siblings(doc.Entries)
			continue
		}
		d.join(doc, rep)
	}
	for i := range out {
		c := checker{domain: out[i].name, report: rep}
		c.siblings(out[i].entries)
		c.multiplied(out[i].entries)
		c.names(out[i].entries)
	}
	return out
}

// join adds the entries of another file to the domain.
func (d *domainTree) join(doc *Document, rep *Report) {
	d.files = append(d.files, doc.File)
	d.entries = append(d.entries, doc.Entries...)
	if doc.Failure == FailureUnset {
		return
	}
	here := Place{File: doc.File, Pos: doc.FailurePos, Domain: d.name}
	switch d.failure {
	case FailureUnset:
		d.failure, d.failurePlace = doc.Failure, here
	case doc.Failure:
	default:
		rep.Problem(here, doc.Failure.String(),
			"on_store_failure is %s here and %s in %s; files of one domain must agree",
			doc.Failure, d.failure, where(d.failurePlace))
	}
}

// where returns the text file:line:column for a place.
func where(p Place) string {
	if p.Pos.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Pos.Line, p.Pos.Column)
}

// whereEntry returns the text file:line:column for a position in an entry. An entry of an xDS resource has no line; for
// it whereEntry returns the resource and the entry's index in its list.
func whereEntry(e *Entry, p Pos) string {
	if p.Line == 0 {
		return fmt.Sprintf("%s (descriptors[%d])", e.File, e.Index)
	}
	return where(Place{File: e.File, Pos: p})
}

// checker checks the entries of one domain, which it walks from the top down.
type checker struct {
	file      string // the document's file; entries of merged domains have files of their own
	domain    string
	memcached bool // the counters are in memcached, see Options.Memcached
	path      []*Entry
	report    *Report
}

func (c *checker) at(e *Entry, p Pos) Place {
	file := c.file
	if e != nil {
		file = e.File
	}
	return Place{File: file, Pos: p, Domain: c.domain, Path: c.dotted(e)}
}

// dotted returns the dotted path of the entry e, which lies directly below the entries in c.path; for a nil e, the path
// of the last entry of c.path.
func (c *checker) dotted(e *Entry) string {
	labels := make([]string, 0, len(c.path)+1)
	for _, up := range c.path {
		labels = append(labels, up.Label())
	}
	if e != nil {
		labels = append(labels, e.Label())
	}
	return strings.Join(labels, ".")
}

// entries checks each entry of a list and all entries nested in it.
func (c *checker) entries(list []Entry) {
	for i := range list {
		if !c.report.Step() {
			return
		}
		e := &list[i]
		if e.Key == "" && !e.KeyUnreadable {
			c.report.Problem(c.at(nil, e.Pos), "", "descriptors[%d] needs a key, such as key: remote_address", i)
		}
		c.flags(e)
		c.unlikely(e)
		if e.Match != nil {
			c.match(e)
		}
		if e.Limit != nil {
			c.limits(e)
		}
		c.path = append(c.path, e)
		c.entries(e.Children)
		c.siblings(e.Children)
		c.path = c.path[:len(c.path)-1]
	}
}

// flags checks the attributes of an entry other than its key and value.
func (c *checker) flags(e *Entry) {
	_, p := parseValue(e.Value)
	if e.Share && p == nil && e.Match == nil {
		c.report.Problem(c.at(e, e.switchPos[shareThreshold]), e.Value,
			"share_threshold needs a value with a wildcard; %s has no *", e.shownValue())
	}
	if strings.Contains(e.Key, "*") {
		c.report.Warning(c.at(e, e.Pos), e.Key,
			"the star in key %s is an ordinary character; wildcards work in values only", Quote(e.Key))
	}
	if e.Limit == nil {
		c.idle(e, "a descriptor without rate_limit", func(s *switchRow) bool { return s.needsLimit })
	} else if e.Limit.Unlimited {
		c.idle(e, "an unlimited rule", func(s *switchRow) bool { return s.needsCounting })
	}
}

// idle warns about switches that are on but have no effect on an entry of the given kind. The function without selects
// the switches to look at.
func (c *checker) idle(e *Entry, kind string, without func(*switchRow) bool) {
	for i := range switches {
		name := switches[i].name
		if on, pos := e.Switch(name); *on && without(&switches[i]) {
			c.report.Warning(c.at(e, *pos), name, "%s has no effect on %s", name, kind)
		}
	}
}

func (e *Entry) shownValue() string {
	if e.Value == "" {
		return "a descriptor without value"
	}
	return Quote(e.Value)
}

// limit checks one limit of an entry. Messages name the limit by the text in where.
func (c *checker) limit(e *Entry, l *Limit, where string) {
	orUnlimited := " or unlimited: true"
	if e.List != nil {
		orUnlimited = ""
	}
	if l.Unlimited {
		c.unlimited(e)
	} else {
		switch {
		case l.HasUnit && unitOf(l.Unit) == 0:
			c.report.Problem(c.at(e, l.UnitPos), l.Unit, "unit %s is unknown%s", Quote(l.Unit),
				Choices(l.Unit, unitNames, unitNames))
		case !l.HasUnit && !l.Unreadable:
			c.report.Problem(c.at(e, l.Pos), "", "%s needs a unit (%s)%s", where, OrList(unitNames), orUnlimited)
		}
		if !l.HasPerUnit && !l.Unreadable {
			c.report.Problem(c.at(e, l.Pos), "", "%s needs requests_per_unit (0 blocks everything)%s", where,
				orUnlimited)
		}
		if l.Options != nil {
			c.options(e, l)
		}
	}
	for i, x := range l.Replaces {
		switch x.Name {
		case "":
			c.report.Problem(c.at(e, x.Pos), "", "replaces[%d] needs the name of a rule, such as {name: hourly}", i)
		case l.Name:
			c.report.Problem(c.at(e, x.Pos), x.Name, "the rule replaces itself: %s is its own name; write that "+
				"of another rule", Quote(x.Name))
		}
	}
}

// unlimited reports fields that make no sense in a limit with unlimited: true.
func (c *checker) unlimited(e *Entry) {
	l, o := e.Limit, e.Limit.options()
	number := func(field string, value uint32, given bool, pos Pos) {
		if given {
			c.report.Problem(c.at(e, pos), fmt.Sprint(value), "unlimited: true takes no %s, but it is %d", field, value)
		}
	}
	text := func(field, value string, given bool, pos Pos) {
		if given {
			c.report.Problem(c.at(e, pos), value, "unlimited: true takes no %s, but it is %s", field, Quote(value))
		}
	}
	if l.HasUnit {
		c.report.Problem(c.at(e, l.UnitPos), l.Unit, "unlimited: true takes no unit, but unit is %s", Quote(l.Unit))
	}
	number("requests_per_unit", l.PerUnit, l.HasPerUnit, l.PerUnitPos)
	number("unit_multiplier", l.Multiplier, l.Multiplier != 0, l.MultiplierPos)
	text("algorithm", o.Algorithm, o.HasAlgorithm, o.AlgorithmPos)
	number("burst", o.Burst, o.Burst != 0, o.BurstPos)
	text("calendar", o.Calendar, o.HasCalendar, o.CalendarPos)
}

// pairKey is a key and a value as a map key, by which duplicates among the entries of one list are found.
type pairKey struct {
	key, value string
	wild       bool
}

// siblings reports entries of one list with equal key and value, and warns about wildcards that never match.
func (c *checker) siblings(list []Entry) {
	if len(list) < 2 && (len(list) == 0 || list[0].Match == nil) {
		return
	}
	seen := make(map[pairKey]taken, len(list))
	var wild map[string][]*Entry
	networks, keyTexts := false, false
	for i := range list {
		e := &list[i]
		if !c.report.Step() {
			return
		}
		if e.Key == "" {
			continue
		}
		if e.Match != nil {
			if e.Match.Unreadable {
				continue
			}
			networks = networks || e.hasNetworks()
			keyTexts = keyTexts || e.Share
			c.valuesTaken(e, seen)
			continue
		}
		text, p := parseValue(e.Value)
		k := pairKey{e.Key, text, false}
		if p != nil {
			k = pairKey{e.Key, e.Value, true}
			if wild == nil {
				wild = map[string][]*Entry{}
			}
			wild[e.Key] = append(wild[e.Key], e)
		}
		if first, known := seen[k]; known {
			c.report.Problem(c.at(e, e.Pos), e.Label(),
				"this descriptor is already configured in %s; key and value may stand once in a list", first)
			continue
		}
		seen[k] = taken{e, e.Pos}
	}
	if networks {
		c.prefixesTaken(list)
	}
	if keyTexts {
		c.keyTexts(list)
	}
	for i := range list { // go through the list again, not through the map: messages come in the order of the file
		if group := wild[list[i].Key]; len(group) > 1 && group[0] == &list[i] {
			c.covered(group)
		}
	}
}

// maxCovered bounds how many comparisons of patterns, some 6 ns each, a load spends to find patterns that never match.
// Without a bound, 50,000 patterns that begin with a star would take a billion comparisons.
const maxCovered = 5_000_000

// covered warns about wildcards of one key that never match because an earlier wildcard matches all their values, and
// about many wildcards that are costly to match.
func (c *checker) covered(group []*Entry) {
	patterns := make([]*pattern, len(group))
	for i, e := range group {
		_, patterns[i] = parseValue(e.Value)
	}
	ix := indexPatterns(patterns)
	c.costly(group, &ix)
	left := maxCovered
	for i, e := range group {
		if !c.report.Step() {
			return
		}
		// Compare the earlier pattern with this pattern's text, with 0xff for each star. No valid text contains 0xff,
		// so only a star of the earlier pattern can match it.
		text := patterns[i].joined("\xff")
		if left -= min(ix.candidates(text), i+1) * (1 + len(text)/256); left < 0 {
			c.report.Warning(c.at(e, e.ValuePos), e.Value,
				"whether this and the %d patterns of key %s after it ever match is not checked: they are too many "+
					"that begin alike",
				len(group)-1-i, Quote(e.Key))
			return
		}
		if first := ix.first(text); first < i {
			up := group[first]
			if up.Value == e.Value {
				continue // a duplicate, which is reported as an error
			}
			c.report.Warning(c.at(e, e.ValuePos), e.Value, "%s never matches: %s in %s takes everything before it",
				Quote(e.Value), Quote(up.Value), whereEntry(up, up.ValuePos))
		}
	}
}

// costInside is how long a pattern with a text between two stars takes to search a value of 60 KiB, the most that Envoy
// accepts in headers. If all patterns together take costReported or more, a load warns (BenchmarkPatterns_inside).
const (
	costInside   = 8 * time.Microsecond
	costReported = time.Millisecond
)

// costly warns if a key has so many patterns with a text between two stars that searching a value for all of them takes
// long.
func (c *checker) costly(group []*Entry, ix *patterns) {
	n := ix.searched()
	cost := time.Duration(n) * costInside
	if cost < costReported {
		return
	}
	for i, e := range group {
		if len(ix.all[i].middle) > 0 {
			c.report.Warning(c.at(e, e.ValuePos), e.Value,
				"%d patterns of key %s from here on hold a text between two stars; a value of 60 KiB is searched for "+
					"each, which costs a call up to about %v", n, Quote(e.Key), cost.Round(time.Millisecond))
			return
		}
	}
}

// names checks the names of a domain's rules, and the replaces lists, by which rules replace rules of other names.
func (c *checker) names(list []Entry) {
	g := replaceGraph{checker: c, rules: map[string]namedLimit{}}
	g.collect(list)
	if !c.report.Stopped() {
		g.warn()
	}
}

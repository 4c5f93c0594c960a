package limits

import (
	"time"

	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/stats"
)

// Rules is a compiled configuration. It never changes: a reload makes new Rules.
type Rules struct {
	// searched is the greatest number of patterns that one value may have to be searched for. These are patterns with a
	// text between two stars.
	searched int
	// lookups is the greatest number of prefix sets in which one address may have to be looked up.
	lookups int
	// further is the greatest number of limits that an entry has in addition to its first limit.
	further int
	much    bool // the rules were read from muchText bytes or more
	o       Options
	domains map[string]*Domain
	sorted  []*Domain
	handles []*stats.Rule
	zones   []string // the time zones of calendars, sorted
}

// Much reports whether reading the rules has left so much garbage that the memory should be returned to the operating
// system at once.
func (r *Rules) Much() bool { return r.much }

// Domain returns the rules of the domain with a name; nil if the domain is not configured.
func (r *Rules) Domain(name string) *Domain { return r.domains[name] }

// Domains returns all domains, sorted by name. The slice belongs to the Rules: do not change it.
func (r *Rules) Domains() []*Domain { return r.sorted }

// StatsHandles returns the statistics of all rules whose metric key is the same for all requests; stats.Registry.Retain
// keeps them.
func (r *Rules) StatsHandles() []*stats.Rule { return r.handles }

// Zones returns the time zones that calendars use, sorted. The slice belongs to the Rules: do not change it.
func (r *Rules) Zones() []string { return r.zones }

// Domain is the rules of one domain.
type Domain struct {
	Name           string
	OnStoreFailure FailureMode
	// Files are the files that configure the domain. There are several only with MERGE_DOMAIN_CONFIG.
	Files []string

	root  step
	names []string // names[id-1] is the rule name whose number is id
}

// Cost estimates how long matching a request of that many bytes may take at most. Every byte is compared, and searched
// for each pattern that has a text between two stars. An entry with an address has at least nine bytes, and is looked
// up in sets of prefixes. A descriptor has at least seven bytes, and for each further limit of a list a counter key is
// built from all its texts and the limit is judged. The factors, in ns, are from BenchmarkFind,
// BenchmarkPatterns_inside, BenchmarkNetworks and BenchmarkAppendKey.
func (r *Rules) Cost(bytes int) time.Duration {
	return time.Duration(bytes*5+bytes/9*r.lookups*200+(bytes*2+bytes/7*80)*r.further) +
		time.Duration(int64(bytes)*int64(r.searched)*int64(costInside)/(60<<10))
}

// step is one compiled entry of the configuration. Find does not read it, since target has what Find needs.
type step struct {
	rule  *Rule   // nil if the entry has no rate_limit
	below *branch // the steps of the nested entries; nil if there are none

	parent     *step // the step in which this step is nested; nil only for a domain's root
	key, value string
	pattern    *pattern   // nil unless value has a star
	match      *stepMatch // what the step matches instead of value; nil if it matches value
	file       string
	pos        Pos

	Attributes
	PathAttributes
}

// target is the result of matching one entry of a request. It holds what Find needs for the next entry, so that each
// level costs one table look-up and follows no further pointers: in a large configuration each pointer is a miss of the
// processor's cache (BenchmarkFind with 100,000 rules: 400 ns through steps, 90 to 140 ns with targets).
type target struct {
	below *branch
	rule  *Rule
	step  *step
}

// branch has the steps of the entries nested in one entry, in a level for each key. Most branches have a single key.
type branch struct {
	first level
	more  *moreLevels // the levels of all keys but the first
	steps []step      // the steps of all levels, in configuration order
}

type moreLevels struct {
	list  []level
	byKey map[string]*level // the levels of all keys in list; nil if scanning list is faster
}

// level has the entries of one branch that share a key.
type level struct {
	key    string
	anyVal target
	many   map[string]target // by exact value, when there are many; otherwise nil
	few    []choice          // by exact value, when there are few; scanned
	wild   *wildcards        // nil if no value has a star
	// networks has the entries with cidr or not_cidr; nil if there are none.
	networks *networks
	// exempts reports that the entries only exempt values from limits: each is unlimited, or has neither a limit nor
	// nested entries.
	exempts bool
}

type choice struct {
	value  string
	target target
}

// wildcards has the values with stars of a level, in configuration order, and the target of each.
type wildcards struct {
	patterns
	targets []target
}

// Find returns the rule that decides a descriptor. It matches the descriptor's entries one after the other with
// configured entries, level by level; the result is the rule of the configured entry that matches the last of the
// descriptor's entries. Find returns nil if an entry matches nothing, if the last configured entry has no rate_limit,
// and for a descriptor without entries.
func (d *Domain) Find(entries []rls.Entry) *Rule {
	return find(d.root.below, entries)
}

func find(b *branch, entries []rls.Entry) *Rule {
	var to target
	for i := range entries {
		l := b.level(entries[i].Key)
		if l == nil {
			return nil
		}
		if to = l.choose(entries[i].Value); to.step == nil {
			return nil
		}
		b = to.below
	}
	return to.rule
}

func (b *branch) level(key string) *level {
	if b == nil {
		return nil
	}
	if b.first.key == key {
		return &b.first
	}
	if b.more == nil {
		return nil
	}
	if b.more.byKey != nil {
		return b.more.byKey[key]
	}
	for i := range b.more.list {
		if b.more.list[i].key == key {
			return &b.more.list[i]
		}
	}
	return nil
}

// choose returns the target for a request's value: of the entry with the exact value, otherwise of the longest network
// that contains it, otherwise of the first wildcard that matches, otherwise of the entry without a value, which matches
// any. The choice is final: if it leads to no rule, no other entry of the level is tried.
func (l *level) choose(value string) target {
	if to := l.exact(value); to.step != nil {
		return to
	}
	if l.networks != nil {
		if to := l.networks.find(value); to.step != nil {
			return to
		}
	}
	if l.wild != nil {
		if i := l.wild.first(value); i < len(l.wild.targets) {
			return l.wild.targets[i]
		}
	}
	return l.anyVal
}

func (l *level) exact(value string) target {
	if l.many != nil {
		return l.many[value]
	}
	for i := range l.few {
		if l.few[i].value == value {
			return l.few[i].target
		}
	}
	return target{}
}

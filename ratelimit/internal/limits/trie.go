package limits

import (
	"time"

	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/stats"
)

// Rules is a compiled configuration. It never changes: a reload makes new Rules.
type Rules struct {
	// searched is for how many patterns with a text between two stars, at most, a value is searched.
	searched int
	// lookups is in how many sets of prefixes, at most, an address is looked up.
	lookups int
	// further is how many limits, at most, an entry has after its first.
	further int
	much    bool // the rules were much text
	o       Options
	domains map[string]*Domain
	sorted  []*Domain
	handles []*stats.Rule
	zones   []string // of calendars, sorted
}

// Much reports whether reading the rules has left so much garbage that its memory should be given back at once.
func (r *Rules) Much() bool { return r.much }

// Domain returns the rules of a domain; nil if the domain is not configured.
func (r *Rules) Domain(name string) *Domain { return r.domains[name] }

// Domains returns all domains, sorted by name. The slice belongs to the Rules.
func (r *Rules) Domains() []*Domain { return r.sorted }

// StatsHandles returns the counters of all rules whose metric key is fixed, for Registry.Retain.
func (r *Rules) StatsHandles() []*stats.Rule { return r.handles }

// Zones returns the time zones that calendars use, sorted. The slice belongs to the Rules.
func (r *Rules) Zones() []string { return r.zones }

// Domain is the rules of one domain.
type Domain struct {
	Name           string
	OnStoreFailure FailureMode
	// Files are the files that configure the domain: one, unless files are merged.
	Files []string

	root  step
	names []string // names[id-1] is the rule name with that number
}

// Cost estimates how long it takes, at most, to match a request of so many bytes. Every byte is compared, and searched
// for each of the patterns that its key may require to be searched for. An entry with an address, of nine bytes at
// least, is looked up in sets of prefixes (BenchmarkFind, BenchmarkPatterns_inside, BenchmarkNetworks). For each
// descriptor, of seven bytes at least, each further limit of a list has a key of all the texts (BenchmarkAppendKey) and
// is judged.
func (r *Rules) Cost(bytes int) time.Duration {
	return time.Duration(bytes*5+bytes/9*r.lookups*200+(bytes*2+bytes/7*80)*r.further) +
		time.Duration(int64(bytes)*int64(r.searched)*int64(costInside)/(60<<10))
}

// step is one compiled entry of the configuration. Find does not read it: target has what Find needs.
type step struct {
	rule  *Rule   // nil without rate_limit
	below *branch // nil without nested descriptors

	parent     *step // nil only for a domain's root
	key, value string
	pattern    *pattern   // nil unless value has a wildcard
	match      *stepMatch // nil for an entry with one value
	file       string
	pos        Pos

	Attributes
	PathAttributes
}

// target is where an entry of a request leads. It holds what Find needs next, so that each level costs one look into
// its table and no further pointers: in a large configuration each pointer is a miss of the processor's cache
// (BenchmarkFind with 100,000 rules: 400 ns through steps, 90 to 140 with targets).
type target struct {
	below *branch
	rule  *Rule
	step  *step
}

// branch is the entries below one step, one level for each key. Most branches have a single key.
type branch struct {
	first level
	more  *moreLevels // the levels of further keys
	steps []step      // all entries in configuration order
}

type moreLevels struct {
	list  []level
	byKey map[string]*level // of all levels; nil when a scan is faster
}

// level is the entries of one branch that share a key.
type level struct {
	key    string
	anyVal target
	many   map[string]target // exact values, when there are many
	few    []choice          // exact values, scanned
	wild   *wildcards        // nil without wildcards
	// networks are the entries with cidr or not_cidr; nil if there are none.
	networks *networks
	// exempts reports that the entries only exempt values: each is unlimited, or has neither a limit nor nested
	// entries.
	exempts bool
}

type choice struct {
	value  string
	target target
}

// wildcards is the patterns of a level in configuration order.
type wildcards struct {
	patterns
	targets []target
}

// Find returns the rule that decides a descriptor: the rule of the configured entry to which the descriptor's last
// entry leads. It returns nil when the walk ends early, when the configured entry has no rate_limit, and for a
// descriptor without entries.
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

// choose picks the entry for a value: exact, otherwise the longest network, otherwise the first wildcard that matches,
// otherwise the entry for any value. The choice is final, wherever it leads: no entry that was passed over is tried
// later.
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

package limits

import (
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/stats"
)

// Rules is a compiled configuration. It never changes: a reload makes a new one.
type Rules struct {
	o       Options
	domains map[string]*Domain
	sorted  []*Domain
	handles []*stats.Rule
}

// Domain returns the rules of a domain, nil for one that is not configured.
func (r *Rules) Domain(name string) *Domain { return r.domains[name] }

// Domains returns all domains, sorted by name. The slice belongs to the Rules.
func (r *Rules) Domains() []*Domain { return r.sorted }

// StatsHandles returns the counters of all rules whose metric key is fixed, for Registry.Retain.
func (r *Rules) StatsHandles() []*stats.Rule { return r.handles }

// Domain is the rules of one domain.
type Domain struct {
	Name           string
	OnStoreFailure FailureMode
	// HasReplaces says that some rule replaces another, so that a request needs the second pass
	// of spec 4.8.
	HasReplaces bool
	// Files are where the domain is configured, one unless files are merged.
	Files []string

	root  step
	names []string // names[id-1] is the rule name with that number
}

// step is one compiled entry: a place in the trie that a request's entry leads to. It also keeps
// what the configuration said, for /rlconfig and explain.
type step struct {
	below *branch // nil without nested descriptors
	rule  *Rule   // nil without rate_limit

	parent                                        *step // nil only for a domain's root
	key, value                                    string
	pattern                                       *pattern // nil unless value has a wildcard
	file                                          string
	pos                                           pos
	shadow, quota, detailed, valueToMetric, share bool
}

// branch is the entries below one step.
type branch struct {
	levels []level
	byKey  map[string]*level // nil when a scan of levels is faster
	steps  []step            // all entries in configuration order
}

// level is the entries of one step that share a key.
type level struct {
	key    string
	few    []choice         // exact values, scanned
	many   map[string]*step // exact values, when there are many
	wild   []*step          // wildcards in configuration order
	index  *patterns        // of wild, nil without
	anyVal *step
}

type choice struct {
	value string
	step  *step
}

// Find returns the rule that decides a descriptor: the one of the step that its last entry leads
// to. It is nil when the walk ends early, when that step has no rate_limit, and for a descriptor
// without entries (spec 4.1).
func (d *Domain) Find(entries []rls.Entry) *Rule {
	return d.root.find(entries)
}

func (s *step) find(entries []rls.Entry) *Rule {
	for i := range entries {
		l := s.level(entries[i].Key)
		if l == nil {
			return nil
		}
		if s = l.choose(entries[i].Value); s == nil {
			return nil
		}
	}
	return s.rule
}

func (s *step) level(key string) *level {
	b := s.below
	if b == nil {
		return nil
	}
	if b.byKey != nil {
		return b.byKey[key]
	}
	for i := range b.levels {
		if b.levels[i].key == key {
			return &b.levels[i]
		}
	}
	return nil
}

// choose picks the entry for a value: exact, else the first wildcard that matches, else the entry
// for any value. What is chosen stays chosen, wherever it leads (spec 4.1, 6).
func (l *level) choose(value string) *step {
	if s := l.exact(value); s != nil {
		return s
	}
	if l.index != nil {
		if i := l.index.first(value); i < len(l.wild) {
			return l.wild[i]
		}
	}
	return l.anyVal
}

func (l *level) exact(value string) *step {
	if l.many != nil {
		return l.many[value]
	}
	for i := range l.few {
		if l.few[i].value == value {
			return l.few[i].step
		}
	}
	return nil
}

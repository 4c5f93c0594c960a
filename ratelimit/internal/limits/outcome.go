package limits

import "gatehouse/ratelimit/internal/rls"

// Outcome says how the walk of a descriptor through the domain ends: what Explain says in full. It allocates nothing.
func (d *Domain) Outcome(entries []rls.Entry) Outcome {
	outcome, _ := d.outcome(entries)
	return outcome
}

// Forgotten says whether the configuration has no answer for a descriptor that no rule decides. Where the walk ends in
// NoMatch at entries that only exempt values, it has one if a rule decides another descriptor of the request: that
// descriptor stands for all who are not exempt.
func (d *Domain) Forgotten(entries []rls.Entry, otherDecided bool) bool {
	outcome, exempts := d.outcome(entries)
	return outcome.Unmatched() && !(exempts && otherDecided)
}

// outcome is Outcome, and whether the walk ends in NoMatch at entries that only exempt values.
func (d *Domain) outcome(entries []rls.Entry) (_ Outcome, exempts bool) {
	if len(entries) == 0 {
		return NoEntries, false
	}
	s := &d.root
	for i := range entries {
		if s.below == nil {
			return TooDeep, false
		}
		l := s.below.level(entries[i].Key)
		if l == nil {
			return NoMatch, false
		}
		if s = l.choose(entries[i].Value).step; s == nil {
			return NoMatch, l.exempts
		}
	}
	switch {
	case s.rule == nil && s.below == nil:
		return Whitelisted, false
	case s.rule == nil:
		return TooShallow, false
	case s.rule.Unlimited:
		return Unlimited, false
	}
	return Limited, false
}

// maxNearestKeys is how many keys NearestKey compares: a page may call it for each of thousands of descriptors.
const maxNearestKeys = 1000

// NearestKey is the configured key that is spelled nearly like the one at which the walk of a descriptor ends; empty
// where it does not end at a key that is unknown, or none is near.
func (d *Domain) NearestKey(entries []rls.Entry) string {
	s := &d.root
	for i := range entries {
		if s.below == nil {
			return ""
		}
		l := s.below.level(entries[i].Key)
		if l == nil {
			compared := 0
			return nearestWord(entries[i].Key, s.keys(), &compared, maxNearestKeys)
		}
		if s = l.choose(entries[i].Value).step; s == nil {
			return ""
		}
	}
	return ""
}

// Unmatched says whether the configuration has no answer for the descriptor: there is no limit, and no entry that
// says so on purpose.
func (o Outcome) Unmatched() bool {
	return o == NoMatch || o == TooDeep || o == TooShallow || o == NoEntries
}

// Path is the dotted path of the rule's entry, the domain first; empty for a limit that the caller brings along.
func (r *Rule) Path(domain string) string {
	if r.step == nil {
		return ""
	}
	return string(r.step.appendKey(nil, domain))
}

// At is where the rule's entry is configured, as file:line:column; empty for a limit that the caller brings along.
func (r *Rule) At() string {
	if r.step == nil {
		return ""
	}
	return r.step.at()
}

// AppendPath appends Path to dst.
func (r *Rule) AppendPath(dst []byte, domain string) []byte {
	if r.step == nil {
		return dst
	}
	return r.step.appendKey(dst, domain)
}

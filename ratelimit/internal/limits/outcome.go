package limits

import "gatehouse/ratelimit/internal/rls"

// Outcome returns how the matching of a descriptor with the domain's entries ends, without allocating. Explain also
// says why.
func (d *Domain) Outcome(entries []rls.Entry) Outcome {
	outcome, _ := d.outcome(entries)
	return outcome
}

// Forgotten reports whether the configuration seems to have overlooked a descriptor that no rule decides. If several
// entries of a level do nothing but exempt values from limits, a value that matches none of them is not overlooked if a
// rule decides another descriptor of the request: this rule covers all values that are not exempt.
func (d *Domain) Forgotten(entries []rls.Entry, otherDecided bool) bool {
	outcome, exempts := d.outcome(entries)
	return outcome.Unmatched() && !(exempts && otherDecided)
}

// outcome returns the Outcome, and whether the descriptor matches none of several entries that do nothing but exempt
// values from limits.
func (d *Domain) outcome(entries []rls.Entry) (_ Outcome, exempts bool) {
	if len(entries) == 0 {
		return NoEntries, false
	}
	s, left, l := d.walk(entries)
	switch {
	case left > 0 && l != nil:
		return NoMatch, l.exempts
	case left > 0 && s.below != nil:
		return NoMatch, false
	case left > 0:
		return TooDeep, false
	case s.rule == nil && s.below == nil:
		return Whitelisted, false
	case s.rule == nil:
		return TooShallow, false
	case s.rule.Unlimited:
		return Unlimited, false
	}
	return Limited, false
}

// walk matches entries from the first on, as far as they match. s is the step that matched last, left is the number of
// remaining entries, and l is the level for the key of the next entry; nil if nothing is configured for the key.
func (d *Domain) walk(entries []rls.Entry) (s *step, left int, l *level) {
	s = &d.root
	for i := range entries {
		if s.below != nil {
			l = s.below.level(entries[i].Key)
		}
		if s.below == nil || l == nil {
			return s, len(entries) - i, nil
		}
		next := l.choose(entries[i].Value).step
		if next == nil {
			return s, len(entries) - i, l
		}
		s = next
	}
	return s, 0, nil
}

// maxNearestKeys is how many keys NearestKey compares with a request's key. The bound is low because a page may call
// NearestKey for each of thousands of descriptors.
const maxNearestKeys = 1000

// NearestKey returns, for a descriptor with an unknown key, the configured key whose spelling is nearest to it. It
// returns the empty text if the descriptor has no unknown key, or no configured key is near.
func (d *Domain) NearestKey(entries []rls.Entry) string {
	s, left, l := d.walk(entries)
	if left == 0 || l != nil || s.below == nil {
		return ""
	}
	compared := 0
	return nearestWord(entries[len(entries)-left].Key, s.keys(), &compared, maxNearestKeys)
}

// Unmatched reports whether the configuration has no answer for the descriptor: neither a limit nor an entry that
// exempts it on purpose.
func (o Outcome) Unmatched() bool {
	return o == NoMatch || o == TooDeep || o == TooShallow || o == NoEntries
}

// Path returns the dotted path of the rule's entry, beginning with the domain; empty for a limit that came with the
// request.
func (r *Rule) Path(domain string) string { return string(r.AppendPath(nil, domain)) }

// At returns where the rule's entry is configured, as file:line:column; empty for a limit that came with the request.
func (r *Rule) At() string {
	if r.step == nil {
		return ""
	}
	return r.step.at()
}

// AppendPath appends to dst the text that Path returns.
func (r *Rule) AppendPath(dst []byte, domain string) []byte {
	if r.step == nil {
		return dst
	}
	return r.step.appendKey(dst, domain)
}

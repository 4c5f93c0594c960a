package limits

import "gatehouse/ratelimit/internal/rls"

// Outcome says how the walk of a descriptor through the domain ends: what Explain says in full. It allocates nothing.
func (d *Domain) Outcome(entries []rls.Entry) Outcome {
	if len(entries) == 0 {
		return NoEntries
	}
	s := &d.root
	for i := range entries {
		if s.below == nil {
			return TooDeep
		}
		l := s.below.level(entries[i].Key)
		if l == nil {
			return NoMatch
		}
		if s = l.choose(entries[i].Value).step; s == nil {
			return NoMatch
		}
	}
	switch {
	case s.rule == nil && s.below == nil:
		return Whitelisted
	case s.rule == nil:
		return TooShallow
	case s.rule.Unlimited:
		return Unlimited
	}
	return Limited
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

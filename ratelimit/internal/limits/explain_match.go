package limits

// triedNetworks returns, for an explanation, the networks of a level that contain the address in value, the longest
// prefix first, up to the chosen network; and how many networks do not contain it.
func (l *level) triedNetworks(value string) (out []Try) {
	if l.networks == nil {
		return nil
	}
	tries, address := l.networks.tries(value)
	if !address {
		return []Try{{Kind: kindNetwork, Count: l.networks.set.Len(), NoAddress: true}}
	}
	for i, t := range tries {
		if i >= maxShown && t.takenOut != "" {
			continue
		}
		out = append(out, Try{Kind: kindNetwork, Value: t.prefix.String(), At: t.step.at(), Matched: t.takenOut == "",
			TakenOutBy: t.takenOut})
		if t.takenOut == "" {
			return out
		}
	}
	if n := l.networks.set.Len() - len(out); n > 0 {
		out = append(out, Try{Kind: kindNetwork, Count: n})
	}
	return out
}

// networkSteps returns the steps of a level whose networks contain the address in value.
func (l *level) networkSteps(value string) (out []*step) {
	if l.networks == nil {
		return nil
	}
	tries, _ := l.networks.tries(value)
	for _, t := range tries {
		if t.takenOut == "" {
			out = append(out, t.step)
		}
	}
	return out
}

// networkWhy returns the reason why a network was chosen, for an explanation.
func (l *level) networkWhy(tried []Try) string {
	for _, t := range tried {
		if t.TakenOutBy != "" {
			return "longest network that contains the address and does not take it out by not_cidr; no exact value " +
				"matches"
		}
	}
	return "longest network that contains the address; no exact value matches"
}

// orNetwork returns the words that mention networks in a message about a value that nothing matches; empty if the level
// has no networks.
func (l *level) orNetwork(joint string) string {
	if l.networks == nil {
		return ""
	}
	return joint + " network"
}

// relation returns the words that connect a request's value with the text that stands for it in counter keys.
func (s *step) relation() string {
	switch {
	case s.match == nil:
		return "that match"
	case s.match.networks == nil:
		return "of group"
	}
	return "in"
}

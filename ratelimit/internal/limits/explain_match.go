package limits

// triedNetworks returns the networks of a level that contain an address, the longest first, up to the chosen one, and
// how many networks do not contain it.
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

// networkSteps returns the entries of a level whose networks contain an address.
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

// networkWhy says why a network was chosen.
func (l *level) networkWhy(tried []Try) string {
	for _, t := range tried {
		if t.TakenOutBy != "" {
			return "longest network that contains the address and does not take it out by not_cidr; no exact value " +
				"matches"
		}
	}
	return "longest network that contains the address; no exact value matches"
}

// orNetwork mentions networks among the candidates that do not match, if the level has any.
func (l *level) orNetwork(joint string) string {
	if l.networks == nil {
		return ""
	}
	return joint + " network"
}

// relation names the relation of values to the text that stands for them in counter keys.
func (s *step) relation() string {
	switch {
	case s.match == nil:
		return "that match"
	case s.match.networks == nil:
		return "of group"
	}
	return "in"
}

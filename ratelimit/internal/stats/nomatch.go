package stats

import "strings"

// NoMatchPrefix begins the names of the counters of unmatched descriptors; the domain follows.
const NoMatchPrefix = "ratelimit.service.no_match."

// NoMatch returns the counters of unmatched descriptors for the domains in force. Counters of domains that are no
// longer listed are flushed for as long as a running request may still add to them, and then forgotten.
func (r *Registry) NoMatch(domains []string) map[string]*Counter {
	counters := make(map[string]*Counter, len(domains))
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.list {
		if strings.HasPrefix(s.Name, NoMatchPrefix) {
			s.fixed = false
		}
	}
	for _, domain := range domains {
		s := r.addLocked(NoMatchPrefix+string(appendKey(nil, []byte(domain))), nil, KindCounter)
		s.fixed = true
		counters[domain] = s.counter
	}
	return counters
}

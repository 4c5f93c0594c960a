package limits

import (
	"slices"
	"strings"

	"gatehouse/ratelimit/internal/limits/network"
)

// Match has the values or networks that an entry matches if it does not match a single value.
type Match struct {
	Values, CIDR, NotCIDR          []Item
	ValuesPos, CIDRPos, NotCIDRPos Pos
	Group                          string
	GroupPos                       Pos
	// V4 and V6 are the fields of prefix_length, in bits; 0 if a field is missing.
	V4, V6                        uint8
	HasPrefixLength               bool
	PrefixLengthPos, V4Pos, V6Pos Pos
	Unreadable                    bool // a list was refused, so do not report missing fields as well

	shown         string           // the result of the method shown, once it has been called
	cidr, notCIDR []network.Prefix // cidr and not_cidr as parsed by check; an entry with networks always has a cidr
	networks      *networkList     // compiled once and shared, if the entry is compiled for several values of a parent
}

// Item is a text in a list of the configuration.
type Item struct {
	Text string
	Pos  Pos
}

// These constants bound how much the lists of one entry may hold, and how many steps lists may make in a domain.
const (
	MaxValues   = 1000
	MaxPrefixes = 10_000
	maxMade     = 100_000 // steps of one domain, as checker.made counts them
)

// hasValues reports whether the entry has a values list.
func (e *Entry) hasValues() bool { return e.Match != nil && len(e.Match.Values) > 0 }

// hasNetworks reports whether the entry matches addresses by their networks.
func (e *Entry) hasNetworks() bool {
	return e.Match != nil && len(e.Match.CIDR)+len(e.Match.NotCIDR) > 0
}

// shown returns the entry's value or, for an entry with lists, the text that stands for the lists in labels and paths.
func (e *Entry) shown() string {
	m := e.Match
	switch {
	case m == nil:
		return e.Value
	case m.shown != "":
	case len(m.Values) > 0 && m.Group != "":
		m.shown = m.Group
	case len(m.Values) > 0:
		m.shown = ShownList("", m.Values[0].Text, len(m.Values))
	case len(m.CIDR) > 0:
		m.shown = ShownList("", m.CIDR[0].Text, len(m.CIDR))
	case len(m.NotCIDR) > 0:
		m.shown = ShownList("not ", m.NotCIDR[0].Text, len(m.NotCIDR))
	default:
		return e.Value
	}
	return m.shown
}

// ShownList returns the text that stands for a list of n texts, in braces: the text in first and, if there are more
// texts, ",…". The text in not precedes them; it marks a list that is not_cidr.
func ShownList(not, first string, n int) string {
	more := ""
	if n > 1 {
		more = ",…"
	}
	return "{" + not + first + more + "}"
}

// steps returns how many steps the entry is compiled to in its level: one for each value of its values list, or a
// single one if the values share a counter.
func (e *Entry) steps() int {
	if e.hasValues() && !e.Share {
		return len(e.Match.Values)
	}
	return 1
}

// copies returns how many steps the entry is compiled to in all: like steps but, with share_threshold, one for each
// prefix.
func (e *Entry) copies() int {
	if e.hasNetworks() && e.Share {
		return len(e.Match.cidr)
	}
	return e.steps()
}

// valueOf returns the value of the entry's ith step.
func (e *Entry) valueOf(i int) string {
	if e.hasValues() && !e.Share {
		return e.Match.Values[i].Text
	}
	return e.shown()
}

// stepMatch has the values or networks that a step matches if it does not match a single value: a list of values with
// one counter, or networks.
type stepMatch struct {
	values   []string // the values that share the counter
	networks *networkList
	key      keyPart
	further  []step // with share_threshold: the steps of all prefixes but the first
}

// networkList has the networks of one entry.
type networkList struct {
	cidr, notCIDR []network.Prefix
	implied       bool         // cidr is not configured, so that all addresses match
	except        *network.Set // the prefixes in notCIDR; nil if it is empty
	// level is set only in the first entry with networks of each key, for all entries of the key.
	level *levelSet
}

// levelSet has the prefixes of all entries of one key, and for each prefix the index of its entry.
type levelSet struct {
	set    *network.Set
	owners []int32
}

// keyPart is the text that counter keys have in place of the value of a request's entry. The zero keyPart stands for
// the value itself.
type keyPart struct {
	text   string // if not empty, the same text for all values
	v4, v6 uint8  // for networks: the number of bits to which addresses are cut
}

func (k keyPart) isValue() bool { return k == keyPart{} }

// keyPart returns the text that counter keys have in place of a value that the step matches.
func (s *step) keyPart() keyPart {
	switch {
	case s.match != nil:
		return s.match.key
	case s.Share:
		return keyPart{text: s.value}
	}
	return keyPart{}
}

// appendAddress appends the text that counter keys have in place of an address: the address, cut to the configured
// length.
func (k keyPart) appendAddress(dst []byte, value string) []byte {
	a, ok := network.ParseAddr(value)
	if !ok {
		return append(dst, value...) // value is no address, so Find has not returned this rule for it
	}
	if a.Is6() {
		return a.First(int(k.v6)).AppendTo(dst)
	}
	return a.First(int(k.v4)).AppendTo(dst)
}

// compiledMatch returns the values or networks that the entry's step matches; nil if the step matches a single value.
func (e *Entry) compiledMatch() *stepMatch {
	switch {
	case e.hasValues() && e.Share:
		l := &stepMatch{values: make([]string, len(e.Match.Values)), key: keyPart{text: strings.Clone(e.Match.Group)}}
		for i, v := range e.Match.Values {
			text, _ := parseValue(v.Text)
			l.values[i] = strings.Clone(text)
		}
		return l
	case e.hasNetworks():
		n := e.Match.networks
		if n == nil {
			n = &networkList{cidr: e.Match.cidr, notCIDR: e.Match.notCIDR, implied: len(e.Match.CIDR) == 0}
			if len(n.notCIDR) > 0 {
				n.except = network.NewSet(n.notCIDR)
			}
			e.Match.networks = n
		}
		l := &stepMatch{networks: n}
		if e.Share {
			l.key.text = n.cidr[0].String()
			return l
		}
		l.key.v4, l.key.v6 = 32, 128
		if e.Match.V4 != 0 {
			l.key.v4 = e.Match.V4
		}
		if e.Match.V6 != 0 {
			l.key.v6 = e.Match.V6
		}
		return l
	}
	return nil
}

// only returns a copy of l with a single prefix, whose index is i. It is for share_threshold, where each prefix has a
// counter of its own.
func (l *stepMatch) only(i int) *stepMatch {
	own := *l
	own.key.text, own.further = l.networks.cidr[i].String(), nil
	return &own
}

// sameMatch reports whether two steps with the same key and value match the same list of values, or the same networks.
func sameMatch(a, b *step) bool {
	if a.match == nil || b.match == nil {
		return a.match == b.match
	}
	m, n := a.match.networks, b.match.networks
	if m == nil || n == nil {
		return m == n && slices.Equal(a.match.values, b.match.values)
	}
	return slices.Equal(m.cidr, n.cidr) && slices.Equal(m.notCIDR, n.notCIDR) && a.match.key == b.match.key
}

// networks has the entries of a level that match addresses by cidr or not_cidr.
type networks struct {
	*levelSet
	entries []networkEntry
}

type networkEntry struct {
	target target
	except *network.Set // nil without not_cidr
}

// networksOf compiles the steps of a level that match networks; it returns nil if there are none.
func networksOf(steps []*step) *networks {
	var n networks
	var first *networkList
	for _, s := range steps {
		if s.match == nil || s.match.networks == nil {
			continue
		}
		if first == nil {
			first = s.match.networks
		}
		n.add(s)
		for i := range s.match.further {
			n.add(&s.match.further[i])
		}
	}
	if first == nil {
		return nil
	}
	if first.level == nil {
		first.level = levelSetOf(steps)
	}
	n.levelSet = first.level
	return &n
}

func (n *networks) add(s *step) {
	n.entries = append(n.entries, networkEntry{s.target(), s.match.networks.except})
}

// levelSetOf gathers the prefixes of a level, in the order of the entries that networksOf makes.
func levelSetOf(steps []*step) *levelSet {
	var l levelSet
	var prefixes []network.Prefix
	entry := int32(-1)
	for _, s := range steps {
		if s.match == nil || s.match.networks == nil {
			continue
		}
		for i, p := range s.match.networks.cidr {
			if i == 0 || s.Share { // with share_threshold, each prefix of s belongs to an entry of its own
				entry++
			}
			prefixes = append(prefixes, p)
			l.owners = append(l.owners, entry)
		}
	}
	l.set = network.NewSet(prefixes)
	return &l
}

// find returns the entry with the longest prefix that contains the address in value. Entries whose not_cidr contains
// the address are passed over. It returns the zero target if there is none, or if value is no address.
func (n *networks) find(value string) target {
	a, ok := network.ParseAddr(value)
	if !ok {
		return target{}
	}
	for i := n.set.Longest(a); i >= 0; i = n.set.Shorter(i) {
		e := &n.entries[n.owners[i]]
		if e.except == nil || !e.except.Contains(a) {
			return e.target
		}
	}
	return target{}
}

// networkTry is a prefix that contains an address, for an explanation.
type networkTry struct {
	prefix   network.Prefix
	step     *step
	takenOut string // the prefix of not_cidr that also contains the address; empty if none does
}

// tries returns all prefixes that contain the address in value, the longest first. address is false if value is no
// address.
func (n *networks) tries(value string) (out []networkTry, address bool) {
	a, ok := network.ParseAddr(value)
	if !ok {
		return nil, false
	}
	for i := n.set.Longest(a); i >= 0; i = n.set.Shorter(i) {
		e := &n.entries[n.owners[i]]
		t := networkTry{prefix: n.set.Prefix(i), step: e.target.step}
		if e.except != nil {
			if x := e.except.Longest(a); x >= 0 {
				t.takenOut = e.except.Prefix(x).String()
			}
		}
		out = append(out, t)
	}
	return out, true
}

// lookups returns the greatest number of prefix sets in which one address is looked up.
func (n *networks) lookups() int {
	if n == nil {
		return 0
	}
	for i := range n.entries {
		if n.entries[i].except != nil {
			return 1 + n.set.Nested()
		}
	}
	return 1
}

// matchMetricPart returns the part of a metric key for a step with networks or a group of values. It has the first
// prefix, whichever prefix a request matches, unless the key contains the requests' values.
func (s *step) matchMetricPart(detailed bool) metricPart {
	n := s.match.networks
	part := make([]byte, 0, 64)
	part = append(append(part, '.'), s.key...)
	if n != nil && (detailed || s.ValueToMetric) && s.match.key.text == "" {
		return metricPart{string(part), addressAlways}
	}
	part = append(part, '_')
	from := len(part)
	switch {
	case n == nil, detailed, s.ValueToMetric:
		part = append(part, s.match.key.text...)
	case n.implied:
		part = n.notCIDR[0].AppendTo(part)
	default:
		part = n.cidr[0].AppendTo(part)
	}
	if n != nil {
		metricAddress(part[from:])
	}
	return metricPart{string(part), noValue}
}

// metricAddress replaces the characters of an address or prefix that would separate the parts of a metric name.
func metricAddress(text []byte) {
	for i, c := range text {
		if c == '.' || c == ':' {
			text[i] = '_'
		}
	}
}

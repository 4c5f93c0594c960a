package limits

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gatehouse/ratelimit/internal/printable"
	"gatehouse/ratelimit/internal/rls"
)

// Explanation describes how one descriptor of a request is matched against the rules: at each level the configured
// entries that were tried, the entry that was chosen and why, and finally the outcome.
type Explanation struct {
	Domain  string      `json:"domain"`
	Entries []EntryView `json:"entries"`
	// Outcome is the result as one word, for programs: one of the constants below.
	Outcome Outcome `json:"outcome"`
	// Reason is the result as a sentence, for people.
	Reason string `json:"reason"`
	Steps  []Step `json:"steps,omitempty"`
	// Rule is the rule that decides; nil if the descriptor has no limit. For a rate_limits list it is the first limit.
	Rule *RuleView `json:"rule,omitempty"`
	// Limits are all limits of a rate_limits list, including the first; nil if the entry has no such list.
	Limits []LimitExplanation `json:"limits,omitempty"`
	// CounterKey is the rule's key in the store. Explain leaves the placeholder <window start> in it; ExplainAt puts
	// the start of the window there instead.
	CounterKey string `json:"counter_key,omitempty"`
	// Window is the present window of a rule with a calendar, in the zone's local time. Only ExplainAt sets it.
	Window    string `json:"window,omitempty"`
	MetricKey string `json:"metric_key,omitempty"`
	// Notes say what else matters, such as limits that were passed over and rules that replace this rule.
	Notes []string `json:"notes,omitempty"`

	// Decides is Rule as Find returns it, for callers that look up the rule's counter.
	Decides *Rule `json:"-"`
}

// Outcome says how the matching of a descriptor ended.
type Outcome string

// These are the outcomes. With any outcome but Limited and Unlimited, the descriptor has no rule and is answered with
// OK.
const (
	Limited       Outcome = "limited"
	Unlimited     Outcome = "unlimited"
	Whitelisted   Outcome = "whitelisted"    // the entry that matched has neither rate_limit nor nested entries
	TooShallow    Outcome = "too_shallow"    // the entry that matched has no limit, but entries nested in it have
	TooDeep       Outcome = "too_deep"       // the request has more entries than the configuration has levels
	NoMatch       Outcome = "no_match"       // no configured entry matches the key and value
	NoEntries     Outcome = "no_entries"     // the request's descriptor is empty
	UnknownDomain Outcome = "unknown_domain" // the domain has no configuration
)

// EntryView is one entry of a request's descriptor, whose key and value may be any bytes.
type EntryView rls.Entry

// MarshalJSON writes {"key":…,"value":…}, with \xNN for bytes that are not UTF-8.
func (e EntryView) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // whether HTML is escaped is left to the encoder of the whole explanation
	err := enc.Encode(rls.Entry{Key: printable.Text(e.Key), Value: printable.Text(e.Value)})
	return b.Bytes(), err
}

// Step says how one entry of a request's descriptor was matched.
type Step struct {
	Entry EntryView `json:"entry"`
	// Tried are the configured entries that were considered, in order of precedence, up to the chosen entry.
	Tried []Try `json:"tried,omitempty"`
	// Chosen is the dotted path of the entry that was chosen; empty if none matched.
	Chosen string `json:"chosen,omitempty"`
	At     string `json:"at,omitempty"` // file:line:column of the chosen entry
	Why    string `json:"why"`
}

// Try is one configured entry, a candidate, that was considered for a request's entry.
type Try struct {
	Kind string `json:"kind"` // exact, network, wildcard or any value
	// Count, if set, is the number of candidates for which this Try stands; none of them matches.
	Count   int    `json:"count,omitempty"`
	Value   string `json:"value,omitempty"`
	At      string `json:"at,omitempty"`
	Matched bool   `json:"matched"`
	// TakenOutBy is the prefix of the candidate's not_cidr that contains the address, so that the candidate does not
	// match.
	TakenOutBy string `json:"taken_out_by,omitempty"`
	// NoAddress is set if the candidate has networks but the request's value is no IP address.
	NoAddress bool `json:"no_address,omitempty"`
}

// These are the kinds of candidates, in order of precedence.
const (
	kindExact    = "exact"
	kindNetwork  = "network"
	kindWildcard = "wildcard"
	kindAny      = "any value"
)

// maxShown is the greatest number of wildcards, and of keys, that an explanation lists.
const maxShown = 20

// Explain matches a descriptor as Find does and describes each step. It counts no hit and changes nothing.
func (r *Rules) Explain(domain string, entries []rls.Entry) Explanation {
	x := Explanation{Domain: printable.Text(domain)}
	for _, e := range entries {
		x.Entries = append(x.Entries, EntryView(e))
	}
	d := r.Domain(domain)
	switch {
	case d == nil:
		x.Outcome = UnknownDomain
		x.Reason = fmt.Sprintf("no rules are configured for domain %s%s", Quote(domain),
			nearMiss(domain, slices.Sorted(maps.Keys(r.domains))))
		return x
	case len(entries) == 0:
		x.Outcome, x.Reason = NoEntries, "a descriptor without entries matches nothing"
		return x
	}
	s := x.walk(d, entries)
	if s == nil {
		return x
	}
	x.end(r, d, s, entries)
	return x
}

// ExplainAt is Explain with counter keys for the window that contains now, which is in Unix seconds.
func (r *Rules) ExplainAt(domain string, entries []rls.Entry, now int64) Explanation {
	x := r.Explain(domain, entries)
	rule := x.Decides
	if rule == nil || rule.Unlimited {
		return x
	}
	x.CounterKey, x.Window = r.keyAt(rule, domain, entries, now), rule.calendarText(now)
	for i := range x.Limits {
		l := &x.Limits[i]
		l.CounterKey, l.Window = r.keyAt(l.Decides, domain, entries, now), l.Decides.calendarText(now)
	}
	return x
}

// keyAt returns the counter key of a rule for the window that contains now.
func (r *Rules) keyAt(rule *Rule, domain string, entries []rls.Entry, now int64) string {
	start, _ := rule.Span(now)
	return printable.Text(string(r.AppendKey(nil, rule, domain, entries, start)))
}

// keyOfAny returns the counter key of a rule with <window start> in place of the start of a window.
func (r *Rules) keyOfAny(rule *Rule, domain string, entries []rls.Entry) string {
	key := printable.Text(string(r.AppendKey(nil, rule, domain, entries, 0)))
	if rule.windowless() {
		return key
	}
	tag := ""
	if !r.o.EscapedKeys {
		tag = string(rule.appendTag(nil))
	}
	return key[:len(key)-len(tag)-1] + "<window start>" + tag
}

// walk matches the request's entries one after the other and records each step. It returns the step that the last entry
// matched; if matching ends earlier, it records why and returns nil.
func (x *Explanation) walk(d *Domain, entries []rls.Entry) *step {
	s := &d.root
	var path []*step // the steps chosen so far
	for i, e := range entries {
		next := x.level(s, d, e)
		if next == nil {
			x.fail(s, i, entries)
			x.backtracking(d, path, entries)
			return nil
		}
		if s.rule != nil {
			x.note("the rate_limit of %s (%s) is passed by: the descriptor goes deeper", s.path(), s.at())
		}
		s = next
		path = append(path, s)
	}
	if s.rule == nil {
		x.backtracking(d, path, entries)
	}
	return s
}

// level matches e against the entries below s, records how, and returns the chosen step; nil if none matches.
func (x *Explanation) level(s *step, d *Domain, e rls.Entry) *step {
	st := Step{Entry: EntryView(e)}
	defer func() { x.Steps = append(x.Steps, st) }()
	l := s.below.level(e.Key)
	if l == nil {
		st.Why = "no entry here has the key " + Quote(e.Key) + nearMiss(e.Key, s.keys())
		return nil
	}
	chosen := l.choose(e.Value).step
	st.Tried = l.tried(e.Value, chosen)
	if chosen == nil {
		st.Why = fmt.Sprintf("no entry with key %s takes the value %s%s", Quote(e.Key), Quote(e.Value),
			nearMiss(e.Value, l.values()))
		return nil
	}
	st.Chosen, st.At = chosen.path(), chosen.at()
	switch {
	case l.exact(e.Value).step == chosen && chosen.pattern != nil:
		st.Why = "the value is the very text of the pattern, which counts as exact"
	case l.exact(e.Value).step == chosen:
		st.Why = "exact value"
	case chosen.match != nil:
		st.Why = l.networkWhy(st.Tried)
	case chosen.pattern != nil && len(l.wild.targets) > 1:
		st.Why = "first wildcard in configuration order that matches; no exact value" + l.orNetwork(" or") + " does"
	case chosen.pattern != nil:
		st.Why = "wildcard matches; no exact value" + l.orNetwork(" or") + " does"
	default:
		st.Why = "entry for any value; no exact value" + l.orNetwork(",") + " or wildcard matches"
	}
	return chosen
}

// tried lists the candidates of a level for a value in the order in which they are considered, up to the chosen one.
func (l *level) tried(value string, chosen *step) []Try {
	if exact := l.exact(value).step; exact != nil {
		if exact.pattern == nil && exact.match != nil {
			return []Try{{Kind: kindExact, Value: value, At: exact.at(), Matched: true}}
		}
		return []Try{{Kind: kindExact, Value: exact.value, At: exact.at(), Matched: true}}
	}
	var out []Try
	if n := l.exactCount(); n > 0 {
		out = append(out, Try{Kind: kindExact, Count: n})
	}
	out = append(out, l.triedNetworks(value)...)
	if chosen != nil && chosen.match != nil {
		return out
	}
	wild := l.wildSteps()
	for i, w := range wild {
		if i == maxShown && w != chosen {
			out = append(out, Try{Kind: kindWildcard, Count: len(wild) - i})
			if chosen != nil && chosen.pattern != nil {
				out = append(out, Try{Kind: kindWildcard, Value: chosen.value, At: chosen.at(), Matched: true})
			}
			break
		}
		out = append(out, Try{Kind: kindWildcard, Value: w.value, At: w.at(), Matched: w == chosen})
		if w == chosen {
			return out
		}
	}
	if chosen != nil && chosen == l.anyVal.step {
		out = append(out, Try{Kind: kindAny, At: chosen.at(), Matched: true})
	}
	return out
}

// exactCount returns how many exact values the level has. The texts of patterns are among its values, but do not count.
func (l *level) exactCount() (n int) {
	for _, c := range l.few {
		if c.target.step.pattern == nil {
			n++
		}
	}
	for _, to := range l.many {
		if to.step.pattern == nil {
			n++
		}
	}
	return n
}

func (l *level) wildSteps() []*step {
	if l.wild == nil {
		return nil
	}
	out := make([]*step, len(l.wild.targets))
	for i, to := range l.wild.targets {
		out[i] = to.step
	}
	return out
}

// fail records why no entry below s matches entry i of the request.
func (x *Explanation) fail(s *step, i int, entries []rls.Entry) {
	if s.below == nil {
		x.Outcome = TooDeep
		x.Reason = fmt.Sprintf("too deep: %s (%s) has no nested descriptors, and the request goes on with %s", s.path(),
			s.at(), entryText(entries[i]))
		return
	}
	x.Outcome = NoMatch
	x.Reason = fmt.Sprintf("entry %d, %s: %s", i+1, entryText(entries[i]), x.Steps[i].Why)
	if s.below.level(entries[i].Key) == nil {
		keys := s.keys()
		more := ""
		if len(keys) > maxShown {
			keys, more = keys[:maxShown], ", …"
		}
		x.note("the keys at this level are: %s%s", strings.Join(keys, ", "), more)
		// This error is frequent: the rule exists, but the request's entries are in another order.
		if s.parent == nil && i == 0 && len(entries) > 1 && s.below.level(entries[len(entries)-1].Key) != nil {
			x.note("the order of entries matters, and key %s stands at this level", Quote(entries[len(entries)-1].Key))
		}
	}
}

// end records the outcome for the step that the last entry of the request matched.
func (x *Explanation) end(r *Rules, d *Domain, s *step, entries []rls.Entry) {
	rule := s.rule
	switch {
	case rule == nil && s.below == nil:
		x.Outcome = Whitelisted
		x.Reason = fmt.Sprintf("whitelisted: %s (%s) has neither rate_limit nor nested descriptors", s.path(), s.at())
		return
	case rule == nil:
		x.Outcome = TooShallow
		x.Reason = fmt.Sprintf(
			"too shallow: %s (%s) has no rate_limit of its own, its limits are deeper (next key: %s)",
			s.path(), s.at(), OrList(firstWords(s.keys())))
		return
	}
	x.Outcome = Limited
	if rule.Unlimited {
		x.Outcome = Unlimited
	}
	x.Decides = rule
	v := rule.view(d)
	x.Rule = &v
	x.Reason = fmt.Sprintf("%s (%s) decides: %s", s.path(), s.at(), rule.limitsText())
	if rule.Listed() {
		for limit := range rule.Limits() {
			x.Limits = append(x.Limits, LimitExplanation{RuleView: limit.view(d), Decides: limit,
				CounterKey: r.keyOfAny(limit, d.Name, entries)})
		}
	}
	if !rule.Unlimited {
		x.CounterKey = r.keyOfAny(rule, d.Name, entries)
		x.MetricKey = printable.Text(string(rule.appendAnyMetricKey(nil, d.Name, entries)))
	}
	if !rule.Listed() {
		x.attributes(d, rule, "")
	}
	for i := range x.Limits {
		x.attributes(d, x.Limits[i].Decides, fmt.Sprintf("limit %d: ", i+1))
	}
}

// attributes adds notes on attributes that change the meaning of a rule. Each note begins with the text in of, which
// names the limit in a list of limits.
func (x *Explanation) attributes(d *Domain, rule *Rule, of string) {
	if !rule.Unlimited {
		for i, note := range rule.notes() {
			if i != shadowMode {
				x.note("%s", note)
			} else {
				x.note("%s%s", of, note)
			}
		}
	}
	for i, s := range rule.path() {
		if text := s.keyPart().text; text != "" {
			x.note("share_threshold: all values %s %s at entry %d share one counter", s.relation(), Quote(text), i+1)
		}
	}
	for _, id := range rule.rare().replaces {
		x.note("%sreplaces the rules named %s when they match another descriptor of the same request", of,
			Quote(d.names[id-1]))
	}
	if rule.ID == 0 || rule.Unlimited {
		return
	}
	d.root.each(func(s *step) {
		if s.rule.anyReplaces(rule.ID) {
			x.note("%sdropped when another descriptor of the same request matches %s (%s), which replaces %s", of,
				s.path(), s.at(), Quote(rule.Name))
		}
	})
}

// backtracking adds a note if an entry that was passed over would have led to a rule. Find never returns to such an
// entry: the choice at one level is final.
func (x *Explanation) backtracking(d *Domain, path []*step, entries []rls.Entry) {
	s := &d.root
	for i, chosen := range path {
		l := s.below.level(entries[i].Key)
		for _, other := range append(append(l.networkSteps(entries[i].Value), l.wildSteps()...), l.anyVal.step) {
			if other == nil || other == chosen || other.pattern != nil && !other.pattern.match(entries[i].Value) {
				continue
			}
			if rule := find(other.below, entries[i+1:]); rule != nil {
				x.note("%s (%s) would lead to a rate_limit in %s, but %s was chosen at entry %d and stays chosen: "+
					"there is no backtracking", other.path(), other.at(), rule.step.at(), chosen.path(), i+1)
				return
			}
		}
		s = chosen
	}
}

func (x *Explanation) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if len(x.Notes) < maxShown && !slices.Contains(x.Notes, text) { // the limits of one list may have equal notes
		x.Notes = append(x.Notes, text)
	}
}

// path returns the dotted path of the step's entry, without the domain.
func (s *step) path() string {
	return strings.TrimPrefix(string(s.appendKey(nil, "")), ".")
}

// keys returns the different keys of the entries below a step, in configuration order.
func (s *step) keys() []string {
	if s.below == nil {
		return nil
	}
	var out []string
	for l := range s.below.levels() {
		out = append(out, l.key)
	}
	return out
}

// values returns the exact values of a level, sorted.
func (l *level) values() []string {
	out := slices.Collect(maps.Keys(l.many))
	for _, c := range l.few {
		out = append(out, c.value)
	}
	slices.Sort(out)
	return out
}

func firstWords(words []string) []string {
	if len(words) > maxShown {
		words = append(slices.Clone(words[:maxShown]), "…")
	}
	return words
}

// nearMiss returns the known text that differs from word only by case or surrounding space. If there is no such text,
// it returns the known text whose spelling is nearest.
func nearMiss(word string, known []string) string {
	if len(known) > 10_000 {
		known = known[:10_000]
	}
	for _, k := range known {
		if strings.EqualFold(strings.TrimSpace(k), strings.TrimSpace(word)) {
			if strings.EqualFold(k, word) {
				return fmt.Sprintf("; %s differs only in case", Quote(k))
			}
			return fmt.Sprintf("; %s differs in space around it", Quote(k))
		}
	}
	return DidYouMean(word, known)
}

func entryText(e rls.Entry) string { return fmt.Sprintf("(%s, %s)", Quote(e.Key), Quote(e.Value)) }

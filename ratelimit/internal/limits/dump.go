package limits

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"unicode"

	"google.golang.org/protobuf/types/known/structpb"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/limits/network"
)

// WriteText writes one line for each rule, with domains sorted and rules in configuration order. The line has the
// format of envoyproxy/ratelimit, followed by attributes that envoyproxy/ratelimit does not have, where they are not
// the default.
func (r *Rules) WriteText(w io.Writer) error {
	b := bufio.NewWriter(w)
	var line []byte
	r.each(func(d *Domain, rule *Rule) {
		line = rule.appendLine(line[:0], d.Name)
		b.Write(line)
	})
	return b.Flush()
}

// Count returns the number of rules, which is the number of lines that WriteText writes.
func (r *Rules) Count() (n int) {
	r.each(func(*Domain, *Rule) { n++ })
	return n
}

// each calls f for every rule, in the order in which WriteText lists them.
func (r *Rules) each(f func(*Domain, *Rule)) {
	for _, d := range r.sorted {
		d.root.each(func(s *step) {
			for rule := range s.rule.Limits() {
				f(d, rule)
			}
		})
	}
}

// appendLine appends the line that WriteText writes for the rule.
func (r *Rule) appendLine(line []byte, domain string) []byte {
	line = r.appendPath(line, domain)
	if bytes.ContainsFunc(line, unicode.IsControl) { // unquoted, a line feed in a key could make it look like two rules
		line = strconv.AppendQuote(nil, string(line))
	}
	line = fmt.Appendf(line, ": unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t", r.Unit, r.PerUnit,
		r.Shadow, r.Quota)
	if r.Multiplier > 1 {
		line = fmt.Appendf(line, ", unit_multiplier: %d", r.Multiplier)
	}
	if r.Algorithm != counter.FixedWindow {
		line = fmt.Appendf(line, ", algorithm: %s", r.Algorithm)
	}
	if r.Burst > 0 && r.Burst != r.PerUnit {
		line = fmt.Appendf(line, ", burst: %d", r.Burst)
	}
	if zone := r.Calendar(); zone != "" {
		line = fmt.Appendf(line, ", calendar: %s", zone)
	}
	return append(line, '\n')
}

// appendPath appends the dotted path of the rule's entry and, for a limit of a rate_limits list, its index in the list.
func (r *Rule) appendPath(dst []byte, domain string) []byte {
	dst = r.step.appendKey(dst, domain)
	if r.Listed() {
		dst = append(dst, '[')
		dst = strconv.AppendUint(dst, uint64(r.levels.list.index), 10)
		dst = append(dst, ']')
	}
	return dst
}

// each calls f for every step below s, in configuration order, parents before children.
func (s *step) each(f func(*step)) {
	if s.below == nil {
		return
	}
	for i := range s.below.steps {
		f(&s.below.steps[i])
		s.below.steps[i].each(f)
	}
}

// appendKey appends the full dotted key of an entry, domain.key_value.key, as it is configured.
func (s *step) appendKey(dst []byte, domain string) []byte {
	if s.parent == nil {
		return append(dst, domain...)
	}
	dst = s.parent.appendKey(dst, domain)
	dst = append(dst, '.')
	dst = append(dst, s.key...)
	if s.value != "" {
		dst = append(dst, '_')
		dst = append(dst, s.value...)
	}
	return dst
}

// at returns file:line:column of the entry.
func (s *step) at() string { return where(Place{File: s.file, Pos: s.pos}) }

// DomainView is a domain as the debug port's /rlconfig?format=json shows it.
type DomainView struct {
	Domain         string     `json:"domain"`
	OnStoreFailure string     `json:"on_store_failure,omitempty"`
	Files          []string   `json:"files"`
	Rules          []RuleView `json:"rules"`
}

// RuleView is one rule, or one whitelist entry (an entry without limit), with all its attributes.
type RuleView struct {
	Key             string           `json:"key"`
	Descriptors     []DescriptorView `json:"descriptors"`
	Whitelist       bool             `json:"whitelist,omitempty"`
	Unlimited       bool             `json:"unlimited,omitempty"`
	Unit            string           `json:"unit,omitempty"`
	UnitMultiplier  uint32           `json:"unit_multiplier,omitempty"`
	RequestsPerUnit uint32           `json:"requests_per_unit"`
	WindowSeconds   int64            `json:"window_seconds,omitempty"`
	Algorithm       string           `json:"algorithm,omitempty"`
	Burst           uint32           `json:"burst,omitempty"`
	Calendar        string           `json:"calendar,omitempty"`
	Name            string           `json:"name,omitempty"`
	Replaces        []string         `json:"replaces,omitempty"`
	Attributes
	Metadata *structpb.Struct `json:"metadata,omitempty"`
	File     string           `json:"file"`
	Line     int              `json:"line,omitempty"`
	Column   int              `json:"column,omitempty"`
}

// DescriptorView is one entry on the path to a rule, with the attributes that matter in every entry of the path.
type DescriptorView struct {
	Key   string `json:"key"`
	Value string `json:"value,omitempty"`
	MatchView
	PathAttributes
}

// MatchView has the values or networks that an entry matches if it does not match a single value. Values is set only
// for values that share a counter; without a shared counter, each value is shown as a rule of its own.
type MatchView struct {
	Values       []string          `json:"values,omitempty"`
	Group        string            `json:"group,omitempty"`
	CIDR         []string          `json:"cidr,omitempty"`
	NotCIDR      []string          `json:"not_cidr,omitempty"`
	PrefixLength *PrefixLengthView `json:"prefix_length,omitempty"`
}

// PrefixLengthView has the lengths to which addresses are cut before they are counted; 0 means they are not cut.
type PrefixLengthView struct {
	V4 uint8 `json:"v4,omitempty"`
	V6 uint8 `json:"v6,omitempty"`
}

// View returns the whole configuration for JSON: rules and whitelist entries, domains sorted.
func (r *Rules) View() []DomainView {
	out := make([]DomainView, 0, len(r.sorted))
	for _, d := range r.sorted {
		v := DomainView{Domain: d.Name, OnStoreFailure: d.OnStoreFailure.String(), Files: d.Files, Rules: []RuleView{}}
		d.root.each(func(s *step) {
			if s.rule == nil && s.below == nil {
				v.Rules = append(v.Rules, s.view(d))
			}
			for rule := range s.rule.Limits() {
				view := rule.view(d)
				if rule.Burst == rule.PerUnit {
					view.Burst = 0 // the burst is the default and is not shown
				}
				v.Rules = append(v.Rules, view)
			}
		})
		out = append(out, v)
	}
	return out
}

func (s *step) view(d *Domain) RuleView {
	v := RuleView{
		Key:  string(s.appendKey(nil, d.Name)),
		File: s.file, Line: int(s.pos.Line), Column: int(s.pos.Column),
		Attributes: s.Attributes,
		Whitelist:  s.rule == nil && s.below == nil,
	}
	for up := s; up.parent != nil; up = up.parent {
		most := maxAbove
		if up == s {
			most = MaxPrefixes
		}
		v.Descriptors = append(v.Descriptors, up.descriptor(most))
	}
	slices.Reverse(v.Descriptors)
	return v
}

// view returns the rule with all attributes of its entry, for JSON.
func (r *Rule) view(d *Domain) RuleView {
	v := r.step.view(d)
	v.Key, v.Attributes = string(r.appendPath(nil, d.Name)), r.Attributes
	v.Unlimited, v.RequestsPerUnit, v.WindowSeconds = r.Unlimited, r.PerUnit, r.Window
	v.Name, v.Metadata = r.Name, r.Metadata
	if !r.Unlimited {
		v.Unit, v.UnitMultiplier = r.Unit.String(), r.Multiplier
	}
	if r.Algorithm != counter.FixedWindow {
		v.Algorithm, v.Burst = r.Algorithm.String(), r.Burst
	}
	if v.Calendar = r.Calendar(); v.Calendar != "" {
		v.WindowSeconds = 0 // not shown: the windows of a calendar differ in length
	}
	for _, id := range r.rare().replaces {
		v.Replaces = append(v.Replaces, d.names[id-1])
	}
	return v
}

// maxAbove is how many values and prefixes of an entry are shown again for each rule nested in it. The entry may have
// 10,000 of them.
const maxAbove = 100

// descriptor returns the view of the step's entry. The parameter most bounds the values and the prefixes in it.
func (s *step) descriptor(most int) DescriptorView {
	v := DescriptorView{Key: s.key, Value: s.value, PathAttributes: s.PathAttributes}
	l := s.match
	if l == nil {
		return v
	}
	v.Value, v.Values = "", cut(l.values, most)
	n := l.networks
	if n == nil {
		v.Group = s.value
		return v
	}
	if !n.implied {
		v.CIDR = prefixTexts(n.cidr, most)
	}
	v.NotCIDR = prefixTexts(n.notCIDR, most)
	var length PrefixLengthView
	if !s.Share && l.key.v4 < 32 {
		length.V4 = l.key.v4
	}
	if !s.Share && l.key.v6 < 128 {
		length.V6 = l.key.v6
	}
	if length != (PrefixLengthView{}) {
		v.PrefixLength = &length
	}
	return v
}

func prefixTexts(list []network.Prefix, most int) (out []string) {
	for i := range min(len(list), most+1) {
		out = append(out, list[i].String())
	}
	return cut(out, most)
}

// cut returns the texts of a list, but no more of them than the number in most. If it leaves texts out, the last text
// says how many.
func cut(list []string, most int) []string {
	if len(list) <= most {
		return list
	}
	return append(list[:most-1:most-1], "…")
}

// windowText returns the limit in words, without its algorithm: "5 per MINUTE", "5 per 10 × MINUTE", "unlimited".
func (r *Rule) windowText() string {
	switch {
	case r.Unlimited:
		return "unlimited"
	case r.Multiplier > 1:
		return fmt.Sprintf("%d per %d × %s", r.PerUnit, r.Multiplier, r.Unit)
	}
	return fmt.Sprintf("%d per %s", r.PerUnit, r.Unit)
}

// limitText returns the limit in words, with its algorithm: "5 per SECOND (token_bucket, burst 20)".
func (r *Rule) limitText() string {
	if how := r.how(); how != "" {
		return r.windowText() + " (" + how + ")"
	}
	return r.windowText()
}

// how returns, in words, in which way the limit differs from a plain fixed window: its algorithm, burst or calendar. It
// returns the empty text for a plain fixed window.
func (r *Rule) how() string {
	switch {
	case r.Algorithm == counter.SlidingWindow:
		return r.Algorithm.String()
	case r.Algorithm == counter.TokenBucket:
		return fmt.Sprintf("%s, burst %d", r.Algorithm, r.Burst)
	case r.Calendar() != "":
		return "calendar " + OneLine(r.Calendar())
	}
	return ""
}

// limitsText returns all limits of the rule's entry in words: "10 per SECOND (token_bucket, burst 20) and 1000 per
// HOUR".
func (r *Rule) limitsText() string {
	text := r.limitText()
	for _, further := range r.Further {
		text += " and " + further.limitText()
	}
	return text
}

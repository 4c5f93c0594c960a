package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"gatehouse/ratelimit/internal/limits"
)

const diffUsage = "usage: ratelimit diff [-format text|json] [-escaped] OLD NEW\n" +
	"example: ratelimit diff /etc/ratelimit/config new.yaml\n"

// diff is the command diff, which compares two sets of rules. It returns 0 if they are equal, 1 if they differ, and 2
// for bad usage or invalid rules.
func diff(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := newFlags("diff", diffUsage, stderr)
	format := flags.String("format", "text", "text or json")
	escaped := flags.Bool("escaped", false, "CACHE_KEY_FORMAT=escaped")
	var options limits.Options
	mergeFlag(flags, &options.Settings)
	if err := flags.Parse(args); err != nil {
		return flagExit(err)
	}
	if flags.NArg() != 2 || *format != "text" && *format != "json" {
		flags.Usage()
		return exitUsage
	}
	var sets [2]*limits.Rules
	for i := range sets {
		var ok bool
		if sets[i], ok = loadRules(ctx, "diff", flags.Arg(i), options, stderr); !ok {
			return exitUsage
		}
	}
	d := compareRules(sets[0].View(), sets[1].View(), *escaped)
	if *format == "json" {
		if err := writeJSON(stdout, d); err != nil {
			return failed("diff", err, stderr)
		}
	} else {
		d.print(stdout)
	}
	if d.same() {
		return exitOK
	}
	return exitFailed
}

func (d *ruleDiff) print(w io.Writer) {
	for _, r := range d.Added {
		fmt.Fprintf(w, "added    %s (%s): %s\n", limits.OneLine(r.Key), placeOf(&r), limitOf(&r))
	}
	for _, r := range d.Removed {
		fmt.Fprintf(w, "removed  %s (%s): %s\n", limits.OneLine(r.Key), placeOf(&r), limitOf(&r))
	}
	for _, c := range d.Changed {
		fmt.Fprintf(w, "changed  %s (%s)", limits.OneLine(c.Rule), c.Place)
		if c.Counters != "" {
			fmt.Fprintf(w, ": counters %s", c.Counters)
		}
		fmt.Fprintln(w)
		for _, f := range c.Fields {
			fmt.Fprintf(w, "         %s: %s -> %s\n", f.Field, shownField(f.Before), shownField(f.After))
		}
	}
	fmt.Fprintf(w, "%d added, %d removed, %d changed, %d the same\n", len(d.Added), len(d.Removed), len(d.Changed),
		d.Same)
}

func placeOf(r *limits.RuleView) string { return fmt.Sprintf("%s:%d:%d", r.File, r.Line, r.Column) }

// limitOf returns a rule's limit in short form, such as 5 per MINUTE.
func limitOf(r *limits.RuleView) string {
	switch {
	case r.Whitelist:
		return "no limit"
	case r.Unlimited:
		return "unlimited"
	case r.UnitMultiplier > 1:
		return fmt.Sprintf("%d per %d %s", r.RequestsPerUnit, r.UnitMultiplier, r.Unit)
	}
	return fmt.Sprintf("%d per %s", r.RequestsPerUnit, r.Unit)
}

// shownField returns the value of a field as JSON; "none" if the field is not set.
func shownField(v any) string {
	if v == nil {
		return "none"
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

// ruleDiff has the differences between two sets of rules, in the order in which the rules are configured.
type ruleDiff struct {
	Added   []limits.RuleView `json:"added"`
	Removed []limits.RuleView `json:"removed"`
	Changed []changedRule     `json:"changed"`
	Same    int               `json:"same"`
}

// changedRule is a rule that is in both sets and has changed, in its fields or in the counters that it uses.
type changedRule struct {
	Rule   string         `json:"rule"`
	Place  string         `json:"place"` // where the newer set has the rule
	Fields []changedField `json:"fields"`
	// Counters says what happens to the counts that the rule has in the store: it is one of the constants below, or
	// empty if one of the two versions of the rule does not count.
	Counters string `json:"counters,omitempty"`
}

const (
	countersGoOn  = "go on"
	countersAnew  = "start anew"
	countersShare = "are newly shared or split"
)

type changedField struct {
	Field  string `json:"field"`
	Before any    `json:"before"`
	After  any    `json:"after"`
}

func (d *ruleDiff) same() bool { return len(d.Added)+len(d.Removed)+len(d.Changed) == 0 }

// counted is a rule with two texts that identify its counters.
type counted struct {
	limits.RuleView
	window  string // kind and length of the windows: if it changes, the rule has other counters
	sharing string // which requests share a counter
}

// compareRules compares two configurations rule by rule. escaped is set if counter keys have the escaped layout.
func compareRules(before, after []limits.DomainView, escaped bool) *ruleDiff {
	d := &ruleDiff{Added: []limits.RuleView{}, Removed: []limits.RuleView{}, Changed: []changedRule{}}
	old, oldOrder := countersOf(before, escaped)
	now, order := countersOf(after, escaped)
	for _, id := range order {
		is := now[id]
		was, known := old[id]
		if !known {
			d.Added = append(d.Added, is.RuleView)
			continue
		}
		c := changedRule{Rule: is.Key, Place: placeOf(&is.RuleView), Fields: fieldsChanged(&was.RuleView, &is.RuleView)}
		counts := func(r *counted) bool { return !r.Whitelist && !r.Unlimited }
		switch {
		case !counts(was) || !counts(is):
		case was.window != is.window:
			c.Counters = countersAnew
		case was.sharing != is.sharing:
			c.Counters = countersShare
		default:
			c.Counters = countersGoOn
		}
		if len(c.Fields) == 0 && (c.Counters == countersGoOn || c.Counters == "") {
			d.Same++
			continue
		}
		d.Changed = append(d.Changed, c)
	}
	for _, id := range oldOrder {
		if now[id] == nil {
			d.Removed = append(d.Removed, old[id].RuleView)
		}
	}
	return d
}

// countersOf returns the rules of all domains with the texts that identify their counters, and their order. The rules
// of one rate_limits list follow each other.
func countersOf(domains []limits.DomainView, escaped bool) (rules map[string]*counted, order []string) {
	rules = map[string]*counted{}
	for _, domain := range domains {
		fixedSeen, entry := false, ""
		for _, r := range domain.Rules {
			one := &counted{RuleView: r}
			levels := make([]string, 0, len(r.Descriptors))
			for i := range r.Descriptors {
				level := &r.Descriptors[i]
				levels = append(levels, level.Key+"\x00"+level.Value)
				one.sharing += level.Key + "\x00" + sharedBy(level, escaped) + "\x01"
			}
			here := r.File + "\x00" + strings.Join(levels, "\x01") + fmt.Sprint(r.Line, ":", r.Column)
			if here != entry {
				entry, fixedSeen = here, false
			}
			fixed := r.Algorithm == "" && r.Calendar == "" && !r.Unlimited && !r.Whitelist
			one.window = fmt.Sprint(r.Algorithm, " ", r.Unit, " ", r.UnitMultiplier, " ", r.Calendar, " ",
				fixed && fixedSeen && !escaped)
			fixedSeen = fixedSeen || fixed
			id := domain.Domain + "\x02" + r.Key + "\x02" + strings.Join(levels, "\x01")
			rules[id] = one
			order = append(order, id)
		}
	}
	return rules, order
}

// sharedBy returns a text that says which values of one entry of a rule's path share a counter.
func sharedBy(l *limits.DescriptorView, escaped bool) string {
	networks := len(l.CIDR)+len(l.NotCIDR) > 0
	switch {
	case l.Group != "":
		return mark(escaped, "~") + l.Group
	case networks && l.Share:
		return "each prefix"
	case networks && l.PrefixLength != nil:
		return fmt.Sprintf("addresses cut to %d and %d", l.PrefixLength.V4, l.PrefixLength.V6)
	case networks:
		return mark(escaped, "addresses")
	case l.Share:
		return mark(escaped, "~") + l.Value
	case l.Value == "" || strings.Contains(strings.ReplaceAll(l.Value, `\*`, ""), "*"): // the value is a pattern
		return "each value"
	}
	return mark(escaped, "=") + l.Value
}

// mark returns text if counter keys have the escaped layout, otherwise the empty text: the default layout does not
// write such marks.
func mark(escaped bool, text string) string {
	if escaped {
		return text
	}
	return ""
}

// fieldsChanged returns the fields in which two versions of a rule differ, sorted by name.
func fieldsChanged(before, after *limits.RuleView) []changedField {
	was, is := fieldsOf(before), fieldsOf(after)
	all := maps.Clone(was)
	maps.Copy(all, is)
	list := []changedField{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !reflect.DeepEqual(was[name], is[name]) {
			list = append(list, changedField{Field: name, Before: was[name], After: is[name]})
		}
	}
	return list
}

// fieldsOf returns the fields of a rule with the names that the page /rlconfig gives them. The names of fields of an
// entry on the rule's path begin with the entry's key. The rule's place and fields that follow from other fields are
// left out.
func fieldsOf(r *limits.RuleView) map[string]any {
	fields := asMap(r)
	for _, name := range []string{"key", "descriptors", "window_seconds", "file", "line", "column"} {
		delete(fields, name)
	}
	if r.Unlimited || r.Whitelist {
		delete(fields, "requests_per_unit")
	}
	if r.UnitMultiplier == 1 {
		delete(fields, "unit_multiplier")
	}
	for i := range r.Descriptors {
		level := asMap(&r.Descriptors[i])
		delete(level, "key")
		delete(level, "value")
		for name, v := range level {
			if i < len(r.Descriptors)-1 {
				name = fmt.Sprintf("%s.%s", r.Descriptors[i].Key, name)
			}
			fields[name] = v
		}
	}
	return fields
}

func asMap(v any) map[string]any {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot happen: views are plain data
	}
	fields := map[string]any{}
	if err := json.Unmarshal(b, &fields); err != nil {
		panic(err)
	}
	return fields
}

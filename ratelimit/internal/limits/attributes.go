package limits

import "iter"

// The on/off attributes of an entry, its switches, are fields of two structs, which the configuration tree, the
// compiled entries and the views share. To add a switch, add to one of the structs a field that has the switch's name
// as its tag; add a constant, a row in switches and a case in switchOf. That is enough for the code that reads YAML,
// checks, shows and explains rules, which loops over switches, and for compile, which copies the structs whole. Only
// dump.go and rulefile/resource.go, which reads a control plane's resources, name their switches one by one.

// Attributes are the switches that only matter in the entry that decides a descriptor.
type Attributes struct {
	Shadow   bool `json:"shadow_mode,omitempty"`
	Quota    bool `json:"quota_mode,omitempty"`
	Detailed bool `json:"detailed_metric,omitempty"`
}

// PathAttributes are the switches that matter in every entry on the way to the entry that decides a descriptor.
type PathAttributes struct {
	ValueToMetric bool `json:"value_to_metric,omitempty"`
	Share         bool `json:"share_threshold,omitempty"`
}

// switchRow describes one switch, an attribute of an entry that is true or false.
type switchRow struct {
	name string
	// The switch has no effect, and check warns, where the entry has no rate_limit (needsLimit) or an unlimited one
	// (needsCounting).
	needsLimit, needsCounting bool
	// note is the text that explain prints for a rule that counts and has the switch on; if note is empty, explain
	// prints nothing.
	note string
}

const (
	shadowMode = iota
	quotaMode
	detailedMetric
	valueToMetric
	shareThreshold
)

// switches has a row for each switch, in the order in which messages list them.
var switches = [...]switchRow{
	shadowMode: {name: "shadow_mode", needsLimit: true, needsCounting: true,
		note: "shadow_mode: over the limit is counted but answered OK"},
	quotaMode: {name: "quota_mode", needsLimit: true, needsCounting: true,
		note: "quota_mode: the request is over only when all its quota descriptors are"},
	detailedMetric: {name: "detailed_metric", needsLimit: true},
	valueToMetric:  {name: "value_to_metric"},
	shareThreshold: {name: "share_threshold"},
}

// SwitchNames returns the names of the switches, the YAML keys of an entry whose values are true or false.
func SwitchNames() []string {
	names := make([]string, len(switches))
	for i := range switches {
		names[i] = switches[i].name
	}
	return names
}

// Switch returns pointers to the entry's switch of that name and to the switch's position in the file; nil for any
// other key.
func (e *Entry) Switch(name string) (value *bool, pos *Pos) {
	for i := range switches {
		if switches[i].name == name {
			return switchOf(&e.Attributes, &e.PathAttributes, i), &e.switchPos[i]
		}
	}
	return nil, nil
}

// switchOf returns a pointer to the field of the switch with number i.
func switchOf(a *Attributes, p *PathAttributes, i int) *bool {
	switch i {
	case shadowMode:
		return &a.Shadow
	case quotaMode:
		return &a.Quota
	case detailedMetric:
		return &a.Detailed
	case valueToMetric:
		return &p.ValueToMetric
	}
	return &p.Share
}

// notes returns the notes that explain prints for the switches that are on in the rule, each with the switch's number.
func (r *Rule) notes() iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		path := r.step.PathAttributes
		for i := range switches {
			if on := *switchOf(&r.Attributes, &path, i); on && switches[i].note != "" && !yield(i, switches[i].note) {
				return
			}
		}
	}
}

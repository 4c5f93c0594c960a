package limits

import "iter"

// The switches of an entry are in two structs, which the tree, compiled entries and views share. A further switch is a
// field in one of the structs, with its name as the tag, a constant, a row in switches and a case in switchOf: compile
// copies the structs whole, and the code that reads YAML, checks, shows and explains rules walks switches. The line of
// dump.go and the resources of a control plane (rulefile/resource.go) name the switches that they have.

// Attributes are the switches that apply where an entry decides a descriptor.
type Attributes struct {
	Shadow   bool `json:"shadow_mode,omitempty"`
	Quota    bool `json:"quota_mode,omitempty"`
	Detailed bool `json:"detailed_metric,omitempty"`
}

// PathAttributes are the switches that apply to every path through an entry.
type PathAttributes struct {
	ValueToMetric bool `json:"value_to_metric,omitempty"`
	Share         bool `json:"share_threshold,omitempty"`
}

// switchRow describes one switch.
type switchRow struct {
	name string
	// needsLimit and needsCounting cause a warning where the entry has no rate_limit, or an unlimited one.
	needsLimit, needsCounting bool
	// note is what explain says of a counting rule with the switch on; empty for none.
	note string
}

const (
	shadowMode = iota
	quotaMode
	detailedMetric
	valueToMetric
	shareThreshold
)

// switches are in the order in which messages list them.
var switches = [...]switchRow{
	shadowMode: {name: "shadow_mode", needsLimit: true, needsCounting: true,
		note: "shadow_mode: over the limit is counted but answered OK"},
	quotaMode: {name: "quota_mode", needsLimit: true, needsCounting: true,
		note: "quota_mode: the request is over only when all its quota descriptors are"},
	detailedMetric: {name: "detailed_metric", needsLimit: true},
	valueToMetric:  {name: "value_to_metric"},
	shareThreshold: {name: "share_threshold"},
}

// SwitchNames returns the keys of an entry whose values are true or false.
func SwitchNames() []string {
	names := make([]string, len(switches))
	for i := range switches {
		names[i] = switches[i].name
	}
	return names
}

// Switch returns a switch of the entry by its name, and where to store its position; nil for any other key.
func (e *Entry) Switch(name string) (value *bool, pos *Pos) {
	for i := range switches {
		if switches[i].name == name {
			return switchOf(&e.Attributes, &e.PathAttributes, i), &e.switchPos[i]
		}
	}
	return nil, nil
}

// switchOf returns the field of a switch.
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

// notes returns what explain says of the rule's switches, by the switches' numbers.
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

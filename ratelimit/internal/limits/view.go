package limits

import (
	"fmt"
	"strings"
)

// LimitView says, for JSON, which limit has decided: an entry may have several limits, even with the same number of
// requests. It is empty if no rule, or an unlimited rule, has decided.
type LimitView struct {
	Unit           string `json:"unit,omitempty"`
	UnitMultiplier uint32 `json:"unit_multiplier,omitempty"` // omitted if it is 1
	Algorithm      string `json:"algorithm,omitempty"`
	Name           string `json:"name,omitempty"`
	// Place is the limit's number in its rate_limits list, from 1, and Of is the length of the list. Both are 0 for a
	// limit that is not in such a list.
	Place int `json:"place,omitempty"`
	Of    int `json:"of,omitempty"`
}

// LimitView returns the fields that distinguish the rule from the other limits of its entry. r may be nil.
func (r *Rule) LimitView() LimitView {
	if r == nil || r.Unlimited {
		return LimitView{}
	}
	v := LimitView{Unit: r.Unit.String(), Algorithm: r.Algorithm.String(), Name: r.Name}
	if r.Multiplier > 1 {
		v.UnitMultiplier = r.Multiplier
	}
	if r.Listed() {
		v.Place, v.Of = int(r.levels.list.index)+1, 1+len(r.step.rule.Further)
	}
	return v
}

// Text returns the limit in words, such as: 10 a minute, sliding_window, `burst-guard`, 2 of 3. If the parameter more
// is not empty, its text is added after the algorithm.
func (v *LimitView) Text(requests uint32, more string) string {
	unit := strings.ToLower(v.Unit)
	text := fmt.Sprintf("%d a %s, %s", requests, unit, v.Algorithm)
	if v.UnitMultiplier > 1 {
		text = fmt.Sprintf("%d in %d %ss, %s", requests, v.UnitMultiplier, unit, v.Algorithm)
	} else if unit == "hour" {
		text = fmt.Sprintf("%d an hour, %s", requests, v.Algorithm)
	}
	if more != "" {
		text += ", " + more
	}
	if v.Name != "" {
		text += ", `" + visible(v.Name) + "`"
	}
	if v.Of > 0 {
		text += fmt.Sprintf(", %d of %d", v.Place, v.Of)
	}
	return text
}

package limits

import (
	"fmt"
	"strings"
)

// LimitView says which limit decided: one entry may have several, even with the same number. It is empty for no rule
// and for an unlimited rule.
type LimitView struct {
	Unit           string `json:"unit,omitempty"`
	UnitMultiplier uint32 `json:"unit_multiplier,omitempty"` // where it is not 1
	Algorithm      string `json:"algorithm,omitempty"`
	Name           string `json:"name,omitempty"`
	// Place is the limit's place in a rate_limits list, from 1, and Of the length of the list; both are 0 without a
	// list.
	Place int `json:"place,omitempty"`
	Of    int `json:"of,omitempty"`
}

// LimitView returns what distinguishes the limit from others. The rule may be nil.
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

// Text returns the limit in words: 10 a minute, sliding_window, `burst-guard`, 2 of 3. more is a text to add after the
// algorithm; empty for none.
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

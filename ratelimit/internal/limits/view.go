package limits

import (
	"fmt"
	"strings"
)

// LimitView says which limit decided: of one entry there may be several, of one number. It is empty for no rule and for
// an unlimited one.
type LimitView struct {
	Unit           string `json:"unit,omitempty"`
	UnitMultiplier uint32 `json:"unit_multiplier,omitempty"` // where it is not 1
	Algorithm      string `json:"algorithm,omitempty"`
	Name           string `json:"name,omitempty"`
	// Place is the limit's place in a rate_limits list, from 1, and Of how many the list has; 0 of a limit that stands
	// alone.
	Place int `json:"place,omitempty"`
	Of    int `json:"of,omitempty"`
}

// LimitView is what tells the limit from others. The rule may be nil.
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

// Text is the limit in words: 10 a minute, sliding_window, `burst-guard`, 2 of 3. more is what else stands behind the
// algorithm, empty for nothing.
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

package decide

import "gatehouse/ratelimit/internal/rls"

// Verdict is the verdict of one limit of a list on a descriptor.
type Verdict struct {
	Status rls.Status
	Delta  Delta
	// Over reports that the limit is exceeded, in shadow mode or not.
	Over, Shadow bool
}

// JudgeLimit is Judge for one limit of a list.
func JudgeLimit(o Outcome, globalShadow bool) (v Verdict) {
	v.Over, v.Shadow = o.Over(), o.Rule.Shadow
	v.Delta = Judge(o, globalShadow, &v.Status)
	return v
}

// TighterThan reports whether v, which comes after w in their list, decides the descriptor instead of w. Limits that
// are over and not in shadow mode come first, then other limits not in shadow mode, then limits in shadow mode that are
// over. Among several that are over the longest reset decides; among others the least remaining, and then the longest
// reset.
func (v *Verdict) TighterThan(w *Verdict) bool {
	if v.Shadow != w.Shadow {
		return w.Shadow
	}
	if v.Over != w.Over {
		return v.Over
	}
	if !v.Over && v.Status.Remaining != w.Status.Remaining {
		return v.Status.Remaining < w.Status.Remaining
	}
	return v.Status.Reset > w.Status.Reset
}

// Refuses reports whether the limit makes the descriptor's code OVER_LIMIT, whatever the other limits say.
func (v *Verdict) Refuses() bool { return v.Over && !v.Shadow }

package decide

import "gatehouse/ratelimit/internal/rls"

// Verdict is what one limit of a list says about a descriptor.
type Verdict struct {
	Status rls.Status
	Delta  Delta
	// Over says that the limit is exceeded, in shadow mode or not.
	Over, Shadow bool
}

// JudgeLimit is Judge for one limit of a list.
func JudgeLimit(o Outcome, globalShadow bool) (v Verdict) {
	v.Over, v.Shadow = o.Over(), o.Rule.Shadow
	v.Delta = Judge(o, globalShadow, &v.Status)
	return v
}

// TighterThan says whether v, which stands behind w in their list, decides the descriptor rather than w: limits that
// are over and not in shadow mode go first, then those not in shadow mode, then those that would be over. Among several
// that are over the longest reset decides, among others what remains, and then the longest reset.
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

// Refuses says whether the limit makes the descriptor's code OVER_LIMIT, whatever the others say.
func (v *Verdict) Refuses() bool { return v.Over && !v.Shadow }

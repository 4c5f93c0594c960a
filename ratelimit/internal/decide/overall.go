package decide

import (
	"math"
	"strconv"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
)

// Overall joins the statuses of a request into one code: over when a descriptor outside of quota mode is over, or when
// all descriptors in quota mode are. rules[i] is the rule of statuses[i], nil where none applies. Under globalQuota
// every descriptor but an unlimited one is in quota mode, so that an unmatched descriptor counts as an alternative that
// has quota left.
func Overall(statuses []rls.Status, rules []*limits.Rule, globalQuota bool) rls.Code {
	quotas, quotasOver := 0, 0
	for i := range statuses {
		over := statuses[i].Code == rls.OverLimit
		switch {
		case inQuotaMode(rules[i], globalQuota):
			quotas++
			if over {
				quotasOver++
			}
		case over:
			return rls.OverLimit
		}
	}
	if quotas > 0 && quotas == quotasOver {
		return rls.OverLimit
	}
	return rls.OK
}

func inQuotaMode(rule *limits.Rule, globalQuota bool) bool {
	if rule == nil {
		return globalQuota
	}
	return !rule.Unlimited && (globalQuota || rule.Quota)
}

// HeaderNames are the names of the three headers.
type HeaderNames struct {
	// Header with the limit.
	Limit string `env:"LIMIT_LIMIT_HEADER" envDefault:"RateLimit-Limit"`
	// Header with the hits that remain.
	Remaining string `env:"LIMIT_REMAINING_HEADER" envDefault:"RateLimit-Remaining"`
	// Header with the seconds to the end of the window.
	Reset string `env:"LIMIT_RESET_HEADER" envDefault:"RateLimit-Reset"`
}

// Headers appends the three headers that describe the tightest limit: the last descriptor that is over its limit and
// not in quota mode, otherwise the first with the least remaining. It appends none where no descriptor has a limit.
func Headers(dst []rls.Header, names HeaderNames, statuses []rls.Status, rules []*limits.Rule,
	globalQuota bool) []rls.Header {
	var chosen *rls.Status
	least := uint32(math.MaxUint32)
	for i := range statuses {
		st := &statuses[i]
		if st.HasLimit && st.Remaining < least {
			chosen, least = st, st.Remaining
		}
		if st.HasLimit && st.Code == rls.OverLimit && !inQuotaMode(rules[i], globalQuota) {
			chosen, least = st, 0
		}
	}
	if chosen == nil {
		return dst
	}
	return append(dst,
		rls.Header{Key: names.Limit, Value: strconv.FormatUint(uint64(chosen.PerUnit), 10)},
		rls.Header{Key: names.Remaining, Value: strconv.FormatUint(uint64(chosen.Remaining), 10)},
		rls.Header{Key: names.Reset, Value: strconv.FormatInt(chosen.Reset, 10)})
}

// RetryAfter returns how many seconds a request that is over its limit should wait: the longest reset of the
// descriptors that refuse it, or the shortest where only descriptors in quota mode do. ok is false where that is not
// known.
//
// unanswered[i] reports that a failure mode made the answer to descriptor i, which says nothing about the counter.
// unanswered may be shorter than statuses.
func RetryAfter(statuses []rls.Status, rules []*limits.Rule, unanswered []bool,
	globalQuota bool) (seconds int64, ok bool) {
	var longest, shortest int64
	refused := false
	for i := range statuses {
		st := &statuses[i]
		if !st.HasLimit || st.Code != rls.OverLimit {
			continue
		}
		known := i >= len(unanswered) || !unanswered[i]
		switch {
		case !inQuotaMode(rules[i], globalQuota):
			refused = true
			if known {
				longest = max(longest, st.Reset)
			}
		case known && (shortest == 0 || st.Reset < shortest):
			shortest = st.Reset
		}
	}
	if refused {
		return longest, longest > 0
	}
	return shortest, shortest > 0
}

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

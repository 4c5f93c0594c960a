package decide

import (
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
)

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

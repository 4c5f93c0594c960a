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

package decide

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"

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

// MaxMembers is how many limits of one request, from the first on, the draft headers describe.
const MaxMembers = 16

// Member is one limit of a request in the draft headers.
type Member struct {
	Rule *limits.Rule
	// Window is the length of the limit's window in seconds.
	Window int64
	// Remaining is the limit's limit_remaining, and Until the seconds until one more hit than that would pass.
	Remaining uint32
	Until     int64
}

// DraftHeaders appends the RateLimit-Policy and RateLimit fields of draft-ietf-httpapi-ratelimit-headers-11, with one
// item per member in the given order; nothing without members.
//
// Both fields are structured: lists of strings with parameters (RFC 9651, sections 3.1 and 3.3.3).
func DraftHeaders(dst []rls.Header, members []Member) []rls.Header {
	if len(members) == 0 {
		return dst
	}
	var policyText, limitText [512]byte
	var names [MaxMembers][]byte
	policy, limit := policyText[:0], limitText[:0]
	for i := range members[:min(len(members), MaxMembers)] {
		m := &members[i]
		if i > 0 {
			policy, limit = append(policy, ", "...), append(limit, ", "...)
		}
		from := len(policy)
		policy = appendMemberName(policy, m.Rule, names[:i])
		names[i] = policy[from:len(policy):len(policy)] // keeps pointing to the old array when policy grows
		policy = append(policy, ";q="...)
		policy = strconv.AppendUint(policy, uint64(m.Rule.PerUnit), 10)
		if m.Window <= maxInteger {
			policy = append(policy, ";w="...)
			policy = strconv.AppendInt(policy, m.Window, 10)
		}
		if burst := Capacity(m.Rule); burst != uint64(m.Rule.PerUnit) {
			policy = append(policy, ";gatehouse-burst="...)
			policy = strconv.AppendUint(policy, burst, 10)
		}
		limit = append(append(limit, names[i]...), ";r="...)
		limit = strconv.AppendUint(limit, uint64(m.Remaining), 10)
		limit = append(limit, ";t="...)
		limit = strconv.AppendInt(limit, m.Until, 10)
	}
	return append(dst, rls.Header{Key: "RateLimit-Policy", Value: string(policy)},
		rls.Header{Key: "RateLimit", Value: string(limit)})
}

// maxInteger is the largest Integer of RFC 9651.
const maxInteger = 999_999_999_999_999

// appendMemberName appends the quoted name of a limit: the limit's own name if that is printable ASCII, otherwise
// <limit>-per-<unit>. A name that an earlier member has gets #2, #3, … at its end.
func appendMemberName(dst []byte, rule *limits.Rule, taken [][]byte) []byte {
	from := len(dst)
	dst = append(dst, '"')
	if rule.Name != "" && !strings.ContainsFunc(rule.Name, unprintable) {
		for i := range len(rule.Name) {
			if c := rule.Name[i]; c == '"' || c == '\\' {
				dst = append(dst, '\\')
			}
			dst = append(dst, rule.Name[i])
		}
	} else {
		dst = strconv.AppendUint(dst, uint64(rule.PerUnit), 10)
		dst = append(dst, "-per-"...)
		if rule.Multiplier > 1 {
			dst = strconv.AppendUint(dst, uint64(rule.Multiplier), 10)
			dst = append(dst, '-')
		}
		dst = append(dst, strings.ToLower(rule.Unit.String())...)
	}
	end := len(dst)
	for n := 2; ; n++ {
		dst = append(dst, '"')
		if !slices.ContainsFunc(taken, func(name []byte) bool { return bytes.Equal(name, dst[from:]) }) {
			return dst
		}
		dst = strconv.AppendInt(append(dst[:end], '#'), int64(n), 10)
	}
}

// unprintable reports whether a String of RFC 9651 cannot hold c.
func unprintable(c rune) bool { return c < ' ' || c > '~' }

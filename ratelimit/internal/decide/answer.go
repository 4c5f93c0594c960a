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

// Overall makes one code of the statuses of a request's descriptors. A descriptor that is over its limit makes the
// request OVER_LIMIT, unless it is in quota mode. Descriptors in quota mode are alternatives: they make the request
// OVER_LIMIT only if all of them are over their limits.
//
// rules[i] is the rule of statuses[i], or nil if no rule applies. globalQuota is QUOTA_MODE, by which every descriptor
// is in quota mode except those with an unlimited rule. Descriptors without a rule are then alternatives that have
// quota left.
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

// HeaderNames are the names of the three response headers that describe a limit.
type HeaderNames struct {
	// Name of the header with the limit.
	Limit string `env:"LIMIT_LIMIT_HEADER" envDefault:"RateLimit-Limit"`
	// Name of the header with the hits that remain.
	Remaining string `env:"LIMIT_REMAINING_HEADER" envDefault:"RateLimit-Remaining"`
	// Name of the header with the seconds to the end of the window.
	Reset string `env:"LIMIT_RESET_HEADER" envDefault:"RateLimit-Reset"`
}

// Headers appends the three headers that describe the tightest limit: the limit of the last descriptor that is over its
// limit and not in quota mode or, if there is none, of the first descriptor with the least remaining. If no descriptor
// has a limit, Headers appends nothing.
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

// RetryAfter returns how many seconds a client whose request is over its limit should wait: the longest reset of the
// descriptors that refuse the request or, if only descriptors in quota mode refuse it, the shortest reset. If that time
// is not known, ok is false.
//
// unanswered[i] reports that the store gave no answer for descriptor i, so that the configured failure mode decided the
// descriptor, and its reset says nothing about the counter. unanswered may be shorter than statuses.
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

// Verdict is what one limit of a rule's list (rate_limits) decides about a descriptor.
type Verdict struct {
	Status rls.Status
	Delta  Delta
	// Over reports that the limit is exceeded, whether or not it is in shadow mode. Shadow reports that it is in shadow
	// mode.
	Over, Shadow bool
}

// JudgeLimit is Judge for one limit of a rule's list. It returns the status and the Delta as a Verdict.
func JudgeLimit(o Outcome, globalShadow bool) (v Verdict) {
	v.Over, v.Shadow = o.Over(), o.Rule.Shadow
	v.Delta = Judge(o, globalShadow, &v.Status)
	return v
}

// TighterThan reports whether v decides the descriptor instead of w, which is the verdict of an earlier limit in the
// same list. The first kind in this order decides: a limit that is over and not in shadow mode, another limit not in
// shadow mode, a limit in shadow mode that is over, another limit in shadow mode. Among limits that are over, the one
// with the longest reset decides; among limits that are not over, the one with the least remaining and, if equal, the
// longest reset.
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

// Refuses reports whether the limit makes the descriptor's code OVER_LIMIT, regardless of the other limits of the list.
func (v *Verdict) Refuses() bool { return v.Over && !v.Shadow }

// MaxMembers is how many limits of one request the draft headers describe at most; further limits are left out.
const MaxMembers = 16

// Member is one limit of a request, as the draft headers (DraftHeaders) describe it.
type Member struct {
	Rule *limits.Rule
	// Window is the length of the limit's window in seconds.
	Window int64
	// Remaining is how many more hits the limit admits now (limit_remaining). Until is how many seconds it takes until
	// the limit admits one hit more than Remaining.
	Remaining uint32
	Until     int64
}

// DraftHeaders appends the RateLimit-Policy and RateLimit fields of draft-ietf-httpapi-ratelimit-headers-11. Each field
// has one item for each member, in the order of members. If there are no members, DraftHeaders appends nothing.
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
		names[i] = policy[from:len(policy):len(policy)] // stays valid when policy grows: names[i] keeps the old array
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

// maxInteger is the largest number that an Integer of RFC 9651 can hold.
const maxInteger = 999_999_999_999_999

// appendMemberName appends the quoted name of a limit in the draft headers: the name of the rule if it is printable
// ASCII, otherwise <limit>-per-<unit>. taken has the names of the earlier members; a name that is already taken gets
// #2, #3, … at its end.
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

// unprintable reports whether c is not allowed in a String of RFC 9651.
func unprintable(c rune) bool { return c < ' ' || c > '~' }

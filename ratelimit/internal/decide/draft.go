package decide

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
)

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

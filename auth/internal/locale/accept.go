package locale

import (
	"slices"
	"strings"
)

// Limits of what is read of an Accept-Language header, and of a language tag.
const (
	mostHeader = 200
	mostRanges = 10
	mostTag    = 35
)

// ParseAccept returns the languages of an Accept-Language header, the most wanted first. It ignores malformed parts, *
// and q=0, and the end of a long header.
func ParseAccept(header string) []string {
	if len(header) > mostHeader {
		header = header[:mostHeader]
		header = header[:max(0, strings.LastIndexByte(header, ','))] // the last part may have been cut
	}
	type wanted struct {
		tag string
		q   int
	}
	var list []wanted
	for range mostRanges {
		part, rest, more := strings.Cut(header, ",")
		tag, weight, weighted := strings.Cut(part, ";")
		tag, q := strings.Trim(tag, " \t"), 1000
		if weighted {
			q = quality(weight)
		}
		if q > 0 && ValidTag(tag) {
			list = append(list, wanted{tag, q})
		}
		if !more {
			break
		}
		header = rest
	}
	slices.SortStableFunc(list, func(a, b wanted) int { return b.q - a.q })
	var tags []string
	for _, w := range list {
		tags = append(tags, w.tag)
	}
	return tags
}

// quality returns the thousandths of a weight such as q=0.8 (RFC 9110, section 12.4.2); 0 for a malformed weight.
func quality(weight string) int {
	digits, ok := strings.CutPrefix(strings.ToLower(strings.Trim(weight, " \t")), "q=")
	whole, fraction, _ := strings.Cut(digits, ".")
	if !ok || whole != "0" && whole != "1" || len(fraction) > 3 {
		return 0
	}
	q := int(whole[0]-'0') * 1000
	for i, unit := 0, 100; i < len(fraction); i, unit = i+1, unit/10 {
		if fraction[i] < '0' || fraction[i] > '9' {
			return 0
		}
		q += int(fraction[i]-'0') * unit
	}
	if q > 1000 {
		return 0
	}
	return q
}

// ValidTag reports whether a text has the form of a language tag: letters, then groups of letters and digits of at most
// eight, with - or _ between them.
func ValidTag(tag string) bool {
	if len(tag) > mostTag {
		return false
	}
	for i, part := range strings.Split(strings.ReplaceAll(tag, "_", "-"), "-") {
		if part == "" || len(part) > 8 {
			return false
		}
		for _, c := range []byte(part) {
			if letter := c|0x20 >= 'a' && c|0x20 <= 'z'; !letter && (i == 0 || c < '0' || c > '9') {
				return false
			}
		}
	}
	return true
}

// Normal returns the spelling of a tag in which tags are compared.
func Normal(tag string) string { return strings.ToLower(strings.ReplaceAll(tag, "_", "-")) }

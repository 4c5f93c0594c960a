package locale

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// These constants limit how much of an Accept-Language header, and of a language tag, is read.
const (
	mostHeader = 200
	mostRanges = 10
	mostTag    = 35
)

// ParseAccept returns the languages of an Accept-Language header, the preferred language first. It ignores malformed
// parts, *, parts with q=0, and the end of a long header.
func ParseAccept(header string) []string {
	if len(header) > mostHeader {
		header = header[:mostHeader]
		header = header[:max(0, strings.LastIndexByte(header, ','))] // the last part may have been cut
	}
	type wanted struct {
		tag string
		q   float64
	}
	var list []wanted
	for range mostRanges {
		part, rest, more := strings.Cut(header, ",")
		tag, weight, weighted := strings.Cut(part, ";")
		tag, q := strings.Trim(tag, " \t"), 1.0
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
	slices.SortStableFunc(list, func(a, b wanted) int { return cmp.Compare(b.q, a.q) })
	var tags []string
	for _, w := range list {
		tags = append(tags, w.tag)
	}
	return tags
}

// weightForm is the form of a weight such as q=0.8 (RFC 9110, section 12.4.2).
var weightForm = regexp.MustCompile(`^[ \t]*[Qq]=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)[ \t]*$`)

// quality returns the number in a weight; 0 if the weight is malformed.
func quality(weight string) float64 {
	m := weightForm.FindStringSubmatch(weight)
	if m == nil {
		return 0
	}
	q, _ := strconv.ParseFloat(m[1], 64) // cannot fail, since weightForm matches only numbers
	return q
}

// tagForm is the form of a language tag: at most eight letters, then groups of at most eight letters and digits,
// separated by - or _.
var tagForm = regexp.MustCompile(`^[A-Za-z]{1,8}(?:[-_][A-Za-z0-9]{1,8})*$`)

// ValidTag reports whether a text has the form of a language tag.
func ValidTag(tag string) bool { return len(tag) <= mostTag && tagForm.MatchString(tag) }

// Normal returns the spelling of a language tag in which tags are compared.
func Normal(tag string) string { return strings.ToLower(strings.ReplaceAll(tag, "_", "-")) }

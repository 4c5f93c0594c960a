package limits

import (
	"net/netip"
	"regexp"
	"strings"

	"gatehouse/ratelimit/internal/limits/network"
)

// maskedAddress is the key of the descriptor entry whose value is an address masked to a network by Envoy.
const maskedAddress = "masked_remote_address"

// unlikely warns about a key and values of an entry that probably no request has.
func (c *checker) unlikely(e *Entry) {
	if c.report.full() {
		return
	}
	if trimmed := strings.TrimSpace(e.Key); trimmed != e.Key {
		c.report.Warning(c.at(e, e.Pos), e.Key, "key %s has blanks around it, which a request must have too; write %s",
			Quote(e.Key), OneLine(trimmed))
	}
	if e.Value != "" {
		c.unlikelyValue(e, "value", e.Value, e.ValuePos)
	}
	if e.Match == nil {
		return
	}
	for _, v := range e.Match.Values {
		c.unlikelyValue(e, "values", v.Text, v.Pos)
	}
}

// unlikelyValue warns about one value that probably no request has, at most once.
func (c *checker) unlikelyValue(e *Entry, field, text string, pos Pos) {
	if trimmed := strings.TrimSpace(text); trimmed != text {
		c.report.Warning(c.at(e, pos), text, "%s %s has blanks around it, which a request must have too; write %s", field,
			Quote(text), OneLine(trimmed))
		return
	}
	// Parse only texts that look like a network: each failed attempt allocates an error, and there may be thousands of
	// paths, which contain slashes, too.
	if strings.Contains(text, "/") && strings.ContainsAny(text[:min(len(text), 1)], "0123456789abcdefABCDEF:") &&
		e.Key != maskedAddress {
		if p, _, ok := network.ParsePrefix(text); ok {
			c.report.Warning(c.at(e, pos), text, "%s %s is compared as a text; a network stands in cidr: [%v]", field,
				Quote(text), p.Masked())
			return
		}
	}
	if sign := regularExpression(text); sign != "" {
		c.report.Warning(c.at(e, pos), text, "%s %s looks like a regular expression (%s), but only * is a pattern; "+
			"write an entry for each text, with * for any characters", field, Quote(text), sign)
	}
}

// bracketed finds the bracketed parts, such as [a-z] and (a|b), by which a text is recognized as a regular expression.
var bracketed = regexp.MustCompile(`\[[^\[\]]+\]|\([^()]*\|[^()]*\)`)

// regularExpression returns the part by which a text is recognized as a regular expression; empty if there is none. The
// part .* does not count: in 10.0.* and shop.* only the star is a pattern.
func regularExpression(text string) string {
	switch {
	case !strings.ContainsAny(text, `^$\+[(`):
		return ""
	case text[0] == '^':
		return "^"
	case strings.HasSuffix(text, "$"):
		return "$"
	}
	for _, sign := range []string{`\d`, `\.`, ".+"} {
		if strings.Contains(text, sign) {
			return sign
		}
	}
	found := bracketed.FindString(text)
	if _, err := netip.ParseAddr(strings.Trim(found, "[]")); err == nil {
		return "" // the brackets are those of an IPv6 address with a port
	}
	return OneLine(found)
}

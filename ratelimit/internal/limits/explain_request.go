package limits

import (
	"fmt"
	"slices"
	"strings"

	"gatehouse/ratelimit/internal/rls"
)

// RequestExplanation explains how all descriptors of one request are matched, and how the rules they match affect each
// other.
type RequestExplanation struct {
	Descriptors []Explanation `json:"descriptors"`
	Request     RequestView   `json:"request"`
}

// RequestView says which of the rules that a request's descriptors match are applied. Descriptors are numbered from 1.
type RequestView struct {
	// Replaced are the descriptors whose limit another descriptor's rule replaces.
	Replaced []ReplacedView `json:"replaced,omitempty"`
	// QuotaAlternatives are the descriptors in Left whose rules have quota_mode: they make the request over the limit
	// only if all of them are over their limits.
	QuotaAlternatives []int `json:"quota_alternatives,omitempty"`
	// Left are the descriptors whose rules are applied.
	Left []int `json:"left,omitempty"`
}

// ReplacedView is a descriptor whose rule is replaced by the rules of other descriptors, which By lists.
type ReplacedView struct {
	Descriptor int `json:"descriptor"`
	// Limit is the number of the replaced limit in its rate_limits list, from 1; 0 if there is no such list.
	Limit int    `json:"limit,omitempty"`
	Name  string `json:"name"`
	By    []int  `json:"by"`
}

// ExplainRequest explains all descriptors of a request, each as ExplainAt does, and which rules replace which.
func (r *Rules) ExplainRequest(domain string, descriptors [][]rls.Entry, now int64) *RequestExplanation {
	x := &RequestExplanation{}
	for _, entries := range descriptors {
		x.Descriptors = append(x.Descriptors, r.ExplainAt(domain, entries, now))
	}
	for i := range x.Descriptors {
		rule := x.Descriptors[i].Decides
		if rule == nil {
			continue
		}
		left, n := false, 0
		for limit := range rule.Limits() {
			n++
			by := x.replacing(limit)
			if left = left || len(by) == 0; len(by) > 0 {
				r := ReplacedView{Descriptor: i + 1, Name: limit.Name, By: by}
				if limit.Listed() {
					r.Limit = n
				}
				x.Request.Replaced = append(x.Request.Replaced, r)
			}
		}
		if !left {
			continue
		}
		x.Request.Left = append(x.Request.Left, i+1)
		if rule.Quota && !rule.Unlimited {
			x.Request.QuotaAlternatives = append(x.Request.QuotaAlternatives, i+1)
		}
	}
	return x
}

// replacing returns the numbers of the descriptors whose rules replace a rule, including descriptors that are replaced
// themselves.
func (x *RequestExplanation) replacing(rule *Rule) (by []int) {
	if rule.Unlimited || rule.ID == 0 {
		return nil
	}
	for i := range x.Descriptors {
		if x.Descriptors[i].Decides.anyReplaces(rule.ID) {
			by = append(by, i+1)
		}
	}
	return by
}

// Decided reports whether the configuration covers one of the descriptors, by a limit or by an entry without limit.
func (x *RequestExplanation) Decided() bool {
	return slices.ContainsFunc(x.Descriptors,
		func(e Explanation) bool { return e.Decides != nil || e.Outcome == Whitelisted })
}

// Text returns the explanation for people. A request with one descriptor gets that descriptor's explanation alone.
func (x *RequestExplanation) Text() string {
	return x.TextOf(func(i int) string { return x.Descriptors[i].Text() })
}

// TextOf is Text with walk(i) in place of the explanation of descriptor i.
func (x *RequestExplanation) TextOf(walk func(i int) string) string {
	var b strings.Builder
	for i := range x.Descriptors {
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString(walk(i))
	}
	if len(x.Descriptors) < 2 {
		return b.String()
	}
	b.WriteString("\nrequest\n")
	for _, r := range x.Request.Replaced {
		what := "its limit"
		if r.Limit > 0 {
			what = fmt.Sprintf("limit %d", r.Limit)
		}
		fmt.Fprintf(&b, "%-11s descriptor %d loses %s: the rule of %s replaces %s\n", "replaced", r.Descriptor, what,
			numbered(r.By), Quote(r.Name))
	}
	if len(x.Request.QuotaAlternatives) > 0 {
		fmt.Fprintf(&b, "%-11s %s: the request is over by them only when all are over\n", "quota",
			numbered(x.Request.QuotaAlternatives))
	}
	if len(x.Request.Left) == 0 {
		fmt.Fprintf(&b, "%-11s no limit: the request is OK\n", "left")
	}
	for _, n := range x.Request.Left {
		fmt.Fprintf(&b, "%-11s descriptor %d: %s\n", "left", n, x.leftOf(n))
	}
	return b.String()
}

// leftOf describes which limits of descriptor n (from 1) are applied.
func (x *RequestExplanation) leftOf(n int) string {
	d := &x.Descriptors[n-1]
	var texts []string
	for i := range d.Limits {
		if limit := d.Limits[i].Decides; len(x.replacing(limit)) == 0 {
			texts = append(texts, limit.limitText())
		}
	}
	if len(texts) == 0 {
		return d.summary()
	}
	return strings.Join(texts, " and ")
}

// numbered returns "descriptor 1" or "descriptors 1, 2 or 3".
func numbered(numbers []int) string {
	var words []string
	for _, n := range numbers {
		words = append(words, fmt.Sprint(n))
	}
	if len(words) == 1 {
		return "descriptor " + words[0]
	}
	return "descriptors " + strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}

package limits

import (
	"fmt"
	"strings"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/printable"
)

// Text returns the explanation for people as several lines, each with a newline at its end.
func (x *Explanation) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain      %s\n", visible(x.Domain))
	b.WriteString("descriptor ")
	for _, e := range x.Entries {
		fmt.Fprintf(&b, " (%s, %s)", visible(e.Key), visible(e.Value))
	}
	b.WriteString("\n")
	for i, s := range x.Steps {
		fmt.Fprintf(&b, "\n%d. %s = %s\n", i+1, visible(s.Entry.Key), Quote(s.Entry.Value))
		for _, t := range s.Tried {
			b.WriteString("   " + t.text() + "\n")
		}
		if s.Chosen != "" {
			fmt.Fprintf(&b, "   => %s: %s\n", visible(s.Chosen), s.Why)
		} else {
			fmt.Fprintf(&b, "   => nothing: %s\n", s.Why)
		}
	}
	fmt.Fprintf(&b, "\n%-11s %s\n", "result", x.summary())
	if x.Decides != nil && len(x.Limits) == 0 && x.Decides.Algorithm != counter.FixedWindow {
		fmt.Fprintf(&b, "%-11s %s\n", "algorithm", x.Decides.how())
	}
	if x.Decides != nil && len(x.Limits) == 0 && x.Decides.Name != "" {
		fmt.Fprintf(&b, "%-11s %s\n", "name", visible(x.Decides.Name))
	}
	fmt.Fprintf(&b, "%-11s %s\n", "reason", visible(x.Reason))
	for i := range x.Limits {
		x.Limits[i].text(&b, i+1)
	}
	if x.CounterKey != "" && len(x.Limits) == 0 {
		writeKey(&b, x.CounterKey, x.Window)
	}
	if x.MetricKey != "" {
		fmt.Fprintf(&b, "%-11s %s\n", "metric key", visible(x.MetricKey))
	}
	for _, n := range x.Notes {
		fmt.Fprintf(&b, "%-11s %s\n", "note", visible(n))
	}
	return b.String()
}

func (x *Explanation) summary() string {
	switch x.Outcome {
	case Limited:
		if len(x.Limits) == 0 {
			return x.Decides.windowText()
		}
		return x.Decides.limitsText()
	case Unlimited:
		return "unlimited: always OK, nothing is counted"
	}
	return "no limit (" + strings.ReplaceAll(string(x.Outcome), "_", " ") + ")"
}

// visible escapes a request's control characters so that they do not reach the terminal, and writes invalid UTF-8 as
// \xNN.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '·'
		}
		return r
	}, printable.Text(s))
}

// LimitExplanation explains one limit of a rate_limits list. Callers that have a store fill in Counter, CounterNow and
// Tightest.
type LimitExplanation struct {
	RuleView
	// CounterKey and Window are as in Explanation.
	CounterKey string `json:"counter_key,omitempty"`
	Window     string `json:"window,omitempty"`
	// Counter is the state of the limit's counter; CounterNow is the same in words.
	Counter    any    `json:"counter,omitempty"`
	CounterNow string `json:"-"`
	// Tightest is set for the limit of the list that decides at present.
	Tightest bool `json:"decides_at_present,omitempty"`

	// Decides is the limit's rule, for callers that look up its counter.
	Decides *Rule `json:"-"`
}

// text writes the explanation of the limit, which is number n of its list.
func (l *LimitExplanation) text(b *strings.Builder, n int) {
	text := l.Decides.windowText()
	if how := l.Decides.how(); how != "" {
		text += ", " + how
	}
	if l.Decides.Name != "" {
		text += ", `" + visible(l.Decides.Name) + "`"
	}
	if l.Tightest {
		text += " (decides at present)"
	}
	fmt.Fprintf(b, "%-11s %s\n", fmt.Sprintf("limit %d", n), text)
	writeKey(b, l.CounterKey, l.Window)
	if l.CounterNow != "" {
		fmt.Fprintf(b, "counter now: %s\n", l.CounterNow)
	}
}

// text returns the line of an explanation that describes a candidate.
func (t *Try) text() string {
	line := "- " + t.Kind
	if t.Matched {
		line = "+ " + t.Kind
	}
	switch {
	case t.NoAddress:
		line += fmt.Sprintf(" (%d, but the value is no IP address)", t.Count)
	case t.Kind == kindNetwork && t.Count > 0:
		line += fmt.Sprintf(" (%d that do not contain the address)", t.Count)
	case t.Count > 0:
		line += fmt.Sprintf(" (%d with other values)", t.Count)
	}
	if t.Value != "" {
		line += " " + Quote(t.Value)
	}
	if t.At != "" {
		line += "  " + t.At
	}
	if t.TakenOutBy != "" {
		line += ", taken out by not_cidr " + t.TakenOutBy
	}
	return line
}

// writeKey writes the line of a counter key and, if window is not empty, the line of its calendar window.
func writeKey(b *strings.Builder, key, window string) {
	fmt.Fprintf(b, "%-11s %s\n", "counter key", visible(key))
	if window != "" {
		fmt.Fprintf(b, "%-11s %s\n", "window", window)
	}
}

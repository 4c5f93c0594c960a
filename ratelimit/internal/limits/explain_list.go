package limits

import (
	"fmt"
	"strings"
	"time"
)

// LimitExplanation is one limit of a rate_limits list. What a store says of it is for callers that have one to fill in.
type LimitExplanation struct {
	RuleView
	// CounterKey and Window are as in Explanation.
	CounterKey string `json:"counter_key,omitempty"`
	Window     string `json:"window,omitempty"`
	// Counter is the state of the limit's counter, CounterNow the same in words.
	Counter    any    `json:"counter,omitempty"`
	CounterNow string `json:"-"`
	// Tightest is set for the limit that decides at present.
	Tightest bool `json:"decides_at_present,omitempty"`

	// Decides is the limit as a rule, for callers that look up its counter.
	Decides *Rule `json:"-"`
}

// text writes the lines of the limit with number n.
func (l *LimitExplanation) text(b *strings.Builder, n int) {
	text := l.Decides.windowText()
	if how := l.Decides.how(); how != "" {
		text += ", " + how
	}
	if l.Tightest {
		text += " (decides at present)"
	}
	fmt.Fprintf(b, "%-11s %s\n", fmt.Sprintf("limit %d", n), text)
	fmt.Fprintf(b, "%-11s %s\n", "counter key", visible(l.CounterKey))
	if l.Window != "" {
		fmt.Fprintf(b, "%-11s %s\n", "window", l.Window)
	}
	if l.CounterNow != "" {
		fmt.Fprintf(b, "counter now: %s\n", l.CounterNow)
	}
}

// calendarText is the window of a rule with calendar that now lies in, in local time; empty without calendar.
func (r *Rule) calendarText(now int64) string {
	if r.Calendar() == "" {
		return ""
	}
	start, end := r.Span(now)
	local := func(at int64) string { return time.Unix(at, 0).In(r.levels.calendar.zone).Format(time.RFC3339) }
	return fmt.Sprintf("%s to %s, %s", local(start), local(end), OneLine(r.Calendar()))
}

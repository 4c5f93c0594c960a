package limits

import (
	"fmt"
	"sync/atomic"
	"time"

	"gatehouse/ratelimit/internal/limits/calendar"
	"gatehouse/ratelimit/internal/rls"
)

// calendarWindow finds the windows of a rule with a calendar. Finding one takes microseconds, so the present window is
// kept: it is the same for hours, and for all requests.
type calendarWindow struct {
	name    string // as configured
	zone    *time.Location
	unit    calendar.Unit
	present atomic.Pointer[span]
}

// calendarUnits are the calendar's units by the rule's; 0 for units without calendar windows.
var calendarUnits = [...]calendar.Unit{
	rls.Day: calendar.Day, rls.Week: calendar.Week, rls.Month: calendar.Month, rls.Year: calendar.Year,
}

// span is one window in Unix seconds, end exclusive.
type span struct{ start, end int64 }

func (c *calendarWindow) at(now int64) span {
	if s := c.present.Load(); s != nil && s.start <= now && now < s.end {
		return *s
	}
	s := new(span)
	s.start, s.end = calendar.Window(c.zone, c.unit, now)
	c.present.Store(s)
	return *s
}

// Span returns the window of the rule that contains now, in Unix seconds; end is exclusive. For sliding windows and
// token buckets, whose keys name no window, it returns the fixed window. r.Window must not be 0.
func (r *Rule) Span(now int64) (start, end int64) {
	if calendar := r.rare().calendar; calendar != nil {
		s := calendar.at(now)
		return s.start, s.end
	}
	start = now - now%r.Window
	return start, start + r.Window
}

// Calendar returns the name of the rule's time zone; empty without a calendar.
func (r *Rule) Calendar() string {
	if calendar := r.rare().calendar; calendar != nil {
		return calendar.name
	}
	return ""
}

// calendarText returns, in local time, the window of a rule with a calendar that contains now; empty without a
// calendar.
func (r *Rule) calendarText(now int64) string {
	if r.Calendar() == "" {
		return ""
	}
	start, end := r.Span(now)
	local := func(at int64) string { return time.Unix(at, 0).In(r.levels.calendar.zone).Format(time.RFC3339) }
	return fmt.Sprintf("%s to %s, %s", local(start), local(end), OneLine(r.Calendar()))
}

package limits

import (
	"fmt"
	"slices"

	"gatehouse/ratelimit/internal/counter"
)

// maxSpan is the longest length of a sliding window, and the longest time in which an empty token bucket may fill, in
// seconds. It is 10 years, which keeps the numbers in the stores below 2^53.
const maxSpan = 315360000

// limits checks each limit of an entry, and the limits of a list against each other.
func (c *checker) limits(e *Entry) {
	if e.List == nil {
		c.limit(e, e.Limit, "rate_limit")
		return
	}
	items := e.List.Items
	for i := range items {
		c.limit(e, &items[i], itemName(i))
	}
	for i := range items {
		c.windowTwice(e, i)
		c.replacesItem(e, i)
	}
	c.zones(e)
	if !slices.ContainsFunc(items, func(l Limit) bool { return !l.options().Shadow }) {
		c.report.Warning(c.at(e, e.List.Pos), "rate_limits", "no limit of this list refuses anything")
	}
}

func itemName(i int) string { return fmt.Sprintf("rate_limits[%d]", i) }

// windowTwice reports item i of an entry's rate_limits if it counts hits in the same way as an earlier item of the
// list.
func (c *checker) windowTwice(e *Entry, i int) {
	l := &e.List.Items[i]
	for j := range e.List.Items[:i] {
		before := &e.List.Items[j]
		if unitOf(l.Unit) == 0 || !l.sameWindow(before) {
			continue
		}
		text := unitOf(l.Unit).String()
		if l.Multiplier > 1 {
			text = fmt.Sprintf("%d × %s", l.Multiplier, text)
		}
		text += ", " + l.options().algorithm().String()
		if zone := l.options().Calendar; zone != "" {
			text += ", calendar " + OneLine(zone)
		}
		c.report.Problem(c.at(e, l.Pos), "",
			"%s counts what %s counts (%s); items must differ in unit, unit_multiplier, algorithm or calendar",
			itemName(i), itemName(j), text)
		return
	}
}

func (l *Limit) sameWindow(other *Limit) bool {
	o, p := l.options(), other.options()
	return unitOf(l.Unit) == unitOf(other.Unit) && max(l.Multiplier, 1) == max(other.Multiplier, 1) &&
		o.algorithm() == p.algorithm() && o.Calendar == p.Calendar
}

// replacesItem reports item i of an entry's rate_limits if it replaces another item of the same list.
func (c *checker) replacesItem(e *Entry, i int) {
	l := &e.List.Items[i]
	for _, x := range l.Replaces {
		for j := range e.List.Items {
			if other := &e.List.Items[j]; i != j && x.Name != "" && x.Name == other.Name && x.Name != l.Name {
				c.report.Problem(c.at(e, x.Pos), x.Name,
					"%s replaces %s, whose name is %s: that limit would never count; write the name of another entry's rule",
					itemName(i), itemName(j), Quote(x.Name))
				break
			}
		}
	}
}

// zones reports items of one rate_limits list whose calendars are of different time zones.
func (c *checker) zones(e *Entry) {
	first := -1
	for i := range e.List.Items {
		o := e.List.Items[i].options()
		switch {
		case !o.HasCalendar:
		case first < 0:
			first = i
		default:
			if before := e.List.Items[first].options().Calendar; before != o.Calendar {
				c.report.Problem(c.at(e, o.CalendarPos), o.Calendar,
					"%s has calendar %s, %s has %s; one list takes one calendar", itemName(i), Quote(o.Calendar),
					itemName(first), Quote(before))
			}
		}
	}
}

// options checks a limit's algorithm, burst and calendar.
func (c *checker) options(e *Entry, l *Limit) {
	o := l.options()
	algorithm, known := counter.ParseAlgorithm(o.Algorithm)
	if o.HasAlgorithm && !known {
		c.report.Problem(c.at(e, o.AlgorithmPos), o.Algorithm, "algorithm %s is unknown%s", Quote(o.Algorithm),
			Choices(o.Algorithm, counter.AlgorithmNames(), counter.AlgorithmNames()))
		return
	}
	if c.memcached && algorithm != counter.FixedWindow {
		c.report.Problem(c.at(e, o.AlgorithmPos), o.Algorithm,
			"algorithm %s cannot be counted in memcached, which cannot "+
				"read, decide and write in one step; use fixed_window or a Redis store", algorithm)
	}
	if o.Burst != 0 && algorithm != counter.TokenBucket {
		c.report.Problem(c.at(e, o.BurstPos), fmt.Sprint(o.Burst),
			"burst needs algorithm: token_bucket, but algorithm is %s", algorithm)
	}
	if o.HasCalendar {
		c.calendar(e, l, algorithm)
	}
	if unit := unitOf(l.Unit); unit != 0 && l.HasPerUnit && algorithm != counter.FixedWindow {
		c.span(e, l, algorithm, unit.Seconds())
	}
}

// span checks that a sliding window, or the time in which a token bucket fills, is not too long, and warns about
// numbers that are valid but probably mistakes.
func (c *checker) span(e *Entry, l *Limit, algorithm counter.Algorithm, unit int64) {
	o := l.options()
	rule := Rule{PerUnit: l.PerUnit, Unit: unitOf(l.Unit), Multiplier: max(l.Multiplier, 1)}
	window := uint64(unit) * uint64(rule.Multiplier)
	perUnit, burst := uint64(l.PerUnit), uint64(l.burst())
	switch {
	case window > maxSpan:
		pos := l.UnitPos
		if l.Multiplier > 1 {
			pos = l.MultiplierPos
		}
		c.report.Problem(c.at(e, pos), l.Unit,
			"sliding_window and token_bucket take windows of at most 10 years, but %d × %s is longer", rule.Multiplier,
			rule.Unit)
	case algorithm == counter.SlidingWindow && perUnit == 1:
		c.report.Warning(c.at(e, l.PerUnitPos), "1",
			"sliding_window with requests_per_unit 1 passes one request in two "+
				"windows; token_bucket with burst: 1 passes one in each")
	case algorithm == counter.SlidingWindow && perUnit == 2:
		c.report.Warning(c.at(e, l.PerUnitPos), "2",
			"sliding_window with requests_per_unit 2 passes one request a window to "+
				"a caller who never pauses; token_bucket with burst: 1 passes two in each")
	case o.Burst == 0:
	case perUnit == 0:
		c.report.Warning(c.at(e, o.BurstPos), fmt.Sprint(burst),
			"burst has no effect: requests_per_unit 0 blocks everything")
	case burst*window > maxSpan*perUnit: // the product is below 2^61
		c.report.Problem(c.at(e, o.BurstPos), fmt.Sprint(burst),
			"a burst of %d takes %d s to refill at %s; at most %d s are allowed", burst,
			(burst*window+perUnit-1)/perUnit, rule.windowText(), maxSpan)
	}
}

// calendar checks a limit with a calendar, whose windows are days, weeks, months or years of a time zone.
func (c *checker) calendar(e *Entry, l *Limit, algorithm counter.Algorithm) {
	o := l.options()
	at := c.at(e, o.CalendarPos)
	if _, ok := c.report.zone(o.Calendar); !ok {
		c.report.Problem(at, o.Calendar, "calendar %s is no IANA time zone, such as UTC or Europe/Berlin",
			Quote(o.Calendar))
	}
	if algorithm != counter.FixedWindow {
		c.report.Problem(at, o.Calendar, "calendar needs algorithm: fixed_window, but algorithm is %s", algorithm)
	}
	if unit := unitOf(l.Unit); unit != 0 && calendarUnits[unit] == 0 {
		c.report.Problem(at, l.Unit, "calendar takes unit day, week, month or year, not %s", Quote(l.Unit))
	}
	if l.Multiplier != 0 {
		c.report.Problem(at, fmt.Sprint(l.Multiplier), "calendar takes no unit_multiplier, but it is %d", l.Multiplier)
	}
}

package limits

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/limits/calendar"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/stats"
)

// Rule is one limit with the attributes of its entry, or a caller's own limit. Many requests read a compiled rule at
// once, and nothing writes to it. There may be 100,000 rules.
type Rule struct {
	PerUnit    uint32
	Unit       rls.Unit
	Multiplier uint32 // unit_multiplier; 1 without
	// Near is the number of hits up to which a counter is far from its limit in statistics: T of
	// docs/statistics.md#what-a-hit-counts-as.
	Near uint32
	// Window is unit times multiplier in seconds; 0 only for an override with an unknown unit. Windows of a rule with a
	// calendar have no fixed length: Span returns the present one.
	Window int64
	Name   string

	// ID is the number of Name within the domain, 0 without a name; rules of one name share it.
	ID uint32
	// Burst is the size of a token bucket, 0 for other algorithms.
	Burst     uint32
	Algorithm counter.Algorithm
	// Unlimited rules count nothing; PerUnit, Unit and Window are 0.
	Unlimited bool
	// Attributes are the entry's, except Shadow of an item of rate_limits, which may be the item's own.
	Attributes
	override bool
	tag      byte // distinguishes its counter keys from keys of other kinds: see AppendKey; 0 for none

	// Metadata goes into dynamic metadata; nil when none is configured. Never write to it.
	Metadata *structpb.Struct
	// Stats is nil when the metric key contains values of the request; then AppendMetricKey makes the key.
	Stats *stats.Rule

	// Further are the limits of a rate_limits list after the first, which is the rule that Find returns. Each is a
	// whole rule, with the Stats and Metadata of the first.
	Further []*Rule

	step   *step
	levels *ruleLevels // nil for most rules
}

// ReplacesID reports whether the rule replaces the rules of a name.
func (r *Rule) ReplacesID(id uint32) bool {
	var marked [1]bool
	r.MarkReplaced([]uint32{id}, marked[:])
	return marked[0]
}

// MarkReplaced sets replaced[i] where the rule replaces the rules of the name ids[i].
func (r *Rule) MarkReplaced(ids []uint32, replaced []bool) {
	replaces := r.rare().replaces
	if len(replaces) == 0 {
		return
	}
	if r.levels.replaced == nil {
		for i, id := range ids {
			if _, found := slices.BinarySearch(replaces, id); found {
				replaced[i] = true
			}
		}
		return
	}
	bits, first := r.levels.replaced, replaces[0]
	for i, id := range ids {
		at := id - first // an id below first wraps around, beyond all bits
		if at/64 < uint32(len(bits)) && bits[at/64]>>(at%64)&1 != 0 {
			replaced[i] = true
		}
	}
}

// Lists of up to scanReplaces names to replace are searched. Longer lists become bits, from their first number on,
// unless they would need more than bitsPerReplaced bits for each number.
const (
	scanReplaces    = 16
	bitsPerReplaced = 128
)

// replacedBits returns the bits for a list; nil when the list is to be searched.
func replacedBits(ids []uint32) []uint64 {
	if len(ids) <= scanReplaces {
		return nil
	}
	span := int(ids[len(ids)-1]-ids[0]) + 1
	if span > bitsPerReplaced*len(ids) {
		return nil
	}
	bits := make([]uint64, (span+63)/64)
	for _, id := range ids {
		bits[(id-ids[0])/64] |= 1 << ((id - ids[0]) % 64)
	}
	return bits
}

// ruleLevels has what few rules need: what each level of a rule's path adds to its keys, and rare options.
type ruleLevels struct {
	metric []metricPart // nil when the metric key is fixed
	keys   []keyPart    // each level's part of counter keys; nil when each is the value

	replaces []uint32 // numbers of the names whose rules this rule replaces, ascending
	replaced []uint64 // the same as bits, from the first number on; nil when replaces is searched

	calendar *calendarWindow // nil without a calendar
	list     *listLimit      // nil except for limits of rate_limits
}

// empty reports whether no rule needs l.
func (l *ruleLevels) empty() bool {
	return l.metric == nil && l.keys == nil && l.replaces == nil && l.calendar == nil && l.list == nil
}

// noLevels are the ruleLevels of most rules. Never write to them.
var noLevels ruleLevels

// rare returns the rule's ruleLevels.
func (r *Rule) rare() *ruleLevels {
	if r.levels == nil {
		return &noLevels
	}
	return r.levels
}

// Replacing reports whether the rule replaces others.
func (r *Rule) Replacing() bool { return len(r.rare().replaces) > 0 }

// Override makes of dst, a scratch rule, the rule of a limit that the caller brings along. All other attributes are
// off. dst.Window is 0 when the unit is unknown.
func (r *Rules) Override(dst *Rule, o rls.Override) {
	*dst = Rule{
		PerUnit:    o.PerUnit,
		Unit:       o.Unit,
		Multiplier: 1,
		Near:       near(o.PerUnit, r.o.NearRatio),
		Window:     o.Unit.Seconds(),
		override:   true,
	}
}

// near returns floor(limit × ratio) in single precision, as the replaced service does: double precision gives other
// results for some pairs, such as 0.7 × 90.
func near(limit uint32, ratio float32) uint32 {
	t := float32(limit) * ratio
	switch {
	case !(t > 0):
		return 0
	case t >= math.MaxUint32:
		return math.MaxUint32
	}
	return uint32(t)
}

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

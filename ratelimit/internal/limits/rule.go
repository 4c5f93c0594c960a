package limits

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/limits/calendar"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/stats"
)

// Rule is one limit with the attributes of its entry, or an override, which is a limit that came with the request.
// Compiled rules never change, since many requests read them at the same time. There may be 100,000 rules.
type Rule struct {
	PerUnit    uint32
	Unit       rls.Unit
	Multiplier uint32 // unit_multiplier; 1 by default
	// Near is the number of hits beyond which statistics count a hit as near the limit: T in
	// docs/statistics.md#what-a-hit-counts-as.
	Near uint32
	// Window is unit times multiplier, in seconds. It is 0 only for an override with an unknown unit. The windows of a
	// rule with a calendar differ in length: Span returns the present window.
	Window int64
	Name   string

	// ID is the number of Name within the domain; 0 without a name. Rules with the same name have the same ID.
	ID uint32
	// Burst is the size of a token bucket; 0 for other algorithms.
	Burst     uint32
	Algorithm counter.Algorithm
	// Unlimited is set for rules that count nothing; their PerUnit, Unit and Window are 0.
	Unlimited bool
	// Attributes are the attributes of the entry. Only Shadow may differ: an item of rate_limits can have a shadow_mode
	// of its own.
	Attributes
	override bool
	tag      byte // marks the counter keys of anything but a plain fixed window, see AppendKey; 0 for none

	// Metadata goes into the answer's dynamic metadata; nil if no metadata is configured. Rules share it, so never
	// write to it.
	Metadata *structpb.Struct
	// Stats has the rule's statistics. It is nil if their key contains values of the request; AppendMetricKey then
	// makes the key.
	Stats *stats.Rule

	// Further are the second and later limits of a rate_limits list; the first limit is the rule that Find returns.
	// Each is a whole rule, with the Stats and Metadata of the first.
	Further []*Rule

	step   *step
	levels *ruleLevels // nil for most rules
}

// ReplacesID reports whether the rule replaces the rules whose name has the number id.
func (r *Rule) ReplacesID(id uint32) bool {
	var marked [1]bool
	r.MarkReplaced([]uint32{id}, marked[:])
	return marked[0]
}

// MarkReplaced sets replaced[i] for each i for which the rule replaces the rules whose name has the number ids[i]. It
// does not clear the others.
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
		at := id - first // if id is less than first, at wraps around to a number beyond all bits
		if at/64 < uint32(len(bits)) && bits[at/64]>>(at%64)&1 != 0 {
			replaced[i] = true
		}
	}
}

// A rule's replaces list of up to scanReplaces names is searched. A longer list becomes a bit set that begins at its
// least number, unless the set needs more than bitsPerReplaced bits for each name.
const (
	scanReplaces    = 16
	bitsPerReplaced = 128
)

// replacedBits returns a list of name numbers as a bit set that begins at ids[0]; nil if the list is to be searched
// instead.
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

// ruleLevels has the data that few rules need: what each level of the rule's path adds to its keys, and rare options.
type ruleLevels struct {
	metric []metricPart // nil if the metric key is the same for all requests
	keys   []keyPart    // what counter keys have in place of each level's value; nil if it is always the value

	replaces []uint32 // the numbers of the names whose rules this rule replaces, ascending
	replaced []uint64 // the same as a bit set that begins at replaces[0]; nil if replaces is searched

	calendar *calendarWindow // nil if the windows follow no calendar
	list     *listLimit      // nil except for limits of rate_limits
}

// empty reports whether l has no data, so that its rule needs no ruleLevels of its own.
func (l *ruleLevels) empty() bool {
	return l.metric == nil && l.keys == nil && l.replaces == nil && l.calendar == nil && l.list == nil
}

// noLevels has no data. All rules without a ruleLevels of their own share it, so never write to it.
var noLevels ruleLevels

// rare returns the rule's ruleLevels; never nil.
func (r *Rule) rare() *ruleLevels {
	if r.levels == nil {
		return &noLevels
	}
	return r.levels
}

// Replacing reports whether the rule has a replaces list.
func (r *Rule) Replacing() bool { return len(r.rare().replaces) > 0 }

// Override turns dst into the rule for a limit that came with a request. All other attributes are off. dst.Window is 0
// if the unit is unknown. dst may be reused for each request.
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

// near returns floor(limit × ratio), but at most the limit, since single precision may round to more than that. It
// calculates in single precision, as envoyproxy/ratelimit does: double precision gives other results for some pairs,
// such as 0.7 × 90.
func near(limit uint32, ratio float32) uint32 {
	return uint32(min(float64(float32(limit)*ratio), float64(limit)))
}

// calendarWindow finds the windows of a rule with a calendar. Finding a window takes microseconds, so the present
// window is kept: it stays the same for hours, and for all requests.
type calendarWindow struct {
	name    string // as configured
	zone    *time.Location
	unit    calendar.Unit
	present atomic.Pointer[span]
}

// calendarUnits are the units of package calendar, indexed by rls.Unit; 0 for units that no calendar has.
var calendarUnits = [...]calendar.Unit{
	rls.Day: calendar.Day, rls.Week: calendar.Week, rls.Month: calendar.Month, rls.Year: calendar.Year,
}

// span is one window: its first second and the first second after it, in Unix time.
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
// token buckets, whose keys have no window, it returns the fixed window of the same length. r.Window must not be 0.
func (r *Rule) Span(now int64) (start, end int64) {
	if calendar := r.rare().calendar; calendar != nil {
		s := calendar.at(now)
		return s.start, s.end
	}
	start = now - now%r.Window
	return start, start + r.Window
}

// Calendar returns the name of the time zone that the rule's windows follow; empty if they follow none.
func (r *Rule) Calendar() string {
	if calendar := r.rare().calendar; calendar != nil {
		return calendar.name
	}
	return ""
}

// calendarText returns the window that contains now of a rule with a calendar, in the zone's local time. It returns the
// empty text for a rule without a calendar.
func (r *Rule) calendarText(now int64) string {
	if r.Calendar() == "" {
		return ""
	}
	start, end := r.Span(now)
	local := func(at int64) string { return time.Unix(at, 0).In(r.levels.calendar.zone).Format(time.RFC3339) }
	return fmt.Sprintf("%s to %s, %s", local(start), local(end), OneLine(r.Calendar()))
}

package limits

import (
	"math"
	"slices"

	"google.golang.org/protobuf/types/known/structpb"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/stats"
)

// Rule is one limit with the attributes of its entry, or a caller's own limit. Compiled rules
// are read by many requests at once and never written to. There may be 100,000 of them.
type Rule struct {
	PerUnit    uint32
	Unit       rls.Unit
	Multiplier uint32 // 1 unless unit_multiplier says otherwise
	// Near is the number of hits up to which statistics call a counter far from its limit: T of
	// docs/statistics.md#what-a-hit-counts-as.
	Near uint32
	// Window is unit times multiplier in seconds; 0 only for an override with an unknown unit. Those of rules with
	// a calendar have no fixed length: Span says the present one.
	Window int64
	Name   string

	// ID numbers the Name within the domain, 0 without one; rules of one name share it.
	ID uint32
	// Burst is the size of a token bucket, 0 for other algorithms.
	Burst     uint32
	Algorithm counter.Algorithm
	// Unlimited rules count nothing; PerUnit, Unit and Window are 0.
	Unlimited bool
	// Attributes are the entry's, but for Shadow of an item of rate_limits, which may be its own.
	Attributes
	override bool
	tag      byte // what parts its counter keys from those of other kinds: see AppendKey; 0 for none

	// Metadata goes into dynamic metadata; nil when none is configured. Never write to it.
	Metadata *structpb.Struct
	// Stats is nil when the metric key holds values of the request: AppendMetricKey names it.
	Stats *stats.Rule

	// Further are the limits of a rate_limits list after the first, which is the rule that Find returns. Each is a
	// whole rule, with the Stats and Metadata of the first.
	Further []*Rule

	step   *step
	levels *ruleLevels // nil for most rules
}

// ReplacesID says whether the rule replaces those of a name.
func (r *Rule) ReplacesID(id uint32) bool {
	var marked [1]bool
	r.MarkReplaced([]uint32{id}, marked[:])
	return marked[0]
}

// MarkReplaced sets replaced[i] where the rule replaces those of the name ids[i].
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
		at := id - first // below the first it wraps around, beyond all bits
		if at/64 < uint32(len(bits)) && bits[at/64]>>(at%64)&1 != 0 {
			replaced[i] = true
		}
	}
}

// Lists of replaces are searched up to scanReplaces numbers; longer ones become bits, from their first
// number on, unless those would be more than bitsPerReplaced for each number of the list.
const (
	scanReplaces    = 16
	bitsPerReplaced = 128
)

// replacedBits are the bits for a list, nil when it is to be searched.
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

// ruleLevels are what few rules have: what each level of the way to a rule adds to its keys, and rare options.
type ruleLevels struct {
	metric []metricPart // nil when the metric key is fixed
	keys   []keyPart    // what each level puts in counter keys; nil when that is the value on all levels

	replaces []uint32 // the numbers of the names whose rules this one replaces, ascending
	replaced []uint64 // the same as bits, from the first number on; nil when the list is searched

	calendar *calendarWindow // nil without calendar
	list     *listLimit      // nil but for the limits of rate_limits
}

// empty reports whether there is nothing that a rule would hold the struct for.
func (l *ruleLevels) empty() bool {
	return l.metric == nil && l.keys == nil && l.replaces == nil && l.calendar == nil && l.list == nil
}

// noLevels are the ruleLevels of most rules. Never write to them.
var noLevels ruleLevels

// rare is what few rules have.
func (r *Rule) rare() *ruleLevels {
	if r.levels == nil {
		return &noLevels
	}
	return r.levels
}

// Replacing reports whether the rule replaces others.
func (r *Rule) Replacing() bool { return len(r.rare().replaces) > 0 }

// Override fills dst, a scratch rule, for a limit that the caller brings along. All
// other attributes are off. dst.Window is 0 when the unit is not one.
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

// near is floor(limit × ratio) in single precision, as the replaced service computed it: double
// precision differs for some pairs, such as 0.7 × 90.
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

// Package decide turns limits and totals into verdicts, headers and changes of statistics.
//
// It is pure: no clock, no I/O, no state. The request and the store's totals are its input; the response and the
// changes of statistics are its output.
package decide

import (
	"math"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/stats"
)

// Outcome is the outcome of one descriptor's hits.
type Outcome struct {
	// Rule is the limit in force; never nil, never unlimited.
	Rule *limits.Rule
	// Hits were requested; Refund reports that they were given back instead.
	Hits   uint64
	Refund bool
	// After is the counter after the hits or, where they were refused and not counted, the counter that they would have
	// made. It is not used with Known.
	After uint64
	// Known reports that the over-limit cache answered: over, and nothing was counted.
	Known bool
	// Spared reports that the hits were not written because another descriptor is over.
	Spared bool
	// Reset is the time in seconds until a fixed window ends; for the other algorithms, until the counter is empty or,
	// when it is over, until the hits would pass.
	Reset int64
}

// Capacity returns the most that the counter of a rule may be without being over: the limit, or the size of a token
// bucket.
func Capacity(r *limits.Rule) uint64 {
	if r.Algorithm == counter.TokenBucket && r.PerUnit > 0 {
		return uint64(r.Burst)
	}
	return uint64(r.PerUnit)
}

// Over reports whether the hits go over the limit, in shadow mode or not.
func (o *Outcome) Over() bool { return o.Known || o.After > Capacity(o.Rule) }

// Delta is what one descriptor adds to the statistics of its rule: docs/statistics.md#what-a-hit-counts-as.
type Delta struct{ Total, Over, Near, Within, Shadow, OverCached uint64 }

// Judge decides one limited descriptor, which is over when the total with its hits is above the limit. globalShadow is
// SHADOW_MODE: it does not change the descriptor's code (Overall changes the answer) but counts as a shadow hit.
func Judge(o Outcome, globalShadow bool, st *rls.Status) Delta {
	limit := Capacity(o.Rule)
	*st = limited(o.Rule, o.Reset)
	var d Delta
	if !o.Refund {
		d.Total = o.Hits
	}
	switch {
	case o.Known:
		d.Over, d.OverCached = o.Hits, o.Hits
	case o.After <= limit:
		st.Code, st.Remaining = rls.OK, uint32(limit-o.After)
		if !o.Refund {
			d.Within = o.Hits
		}
		if !o.Refund && !o.Spared {
			d.Near = min(o.Hits, o.After-min(o.After, uint64(o.Rule.Near))) // the hits above the near threshold
		}
		return d
	case !o.Refund:
		before := o.After - min(o.Hits, o.After)
		if before >= limit {
			d.Over = o.Hits
		} else {
			d.Over = o.After - limit
			d.Near = limit - max(uint64(o.Rule.Near), before)
		}
	}
	st.Code = rls.OverLimit
	if o.Rule.Shadow || globalShadow {
		d.Shadow = d.Over
	}
	if o.Rule.Shadow {
		st.Code = rls.OK
	}
	return d
}

// AddTo counts d.
func (d *Delta) AddTo(r *stats.Rule) {
	r.TotalHits.Add(d.Total)
	r.WithinLimit.Add(d.Within)
	r.NearLimit.Add(d.Near)
	if d.Over|d.Shadow|d.OverCached == 0 {
		return
	}
	r.OverLimit.Add(d.Over)
	r.ShadowMode.Add(d.Shadow)
	r.OverLimitWithLocalCache.Add(d.OverCached)
}

// AddToLimit counts d for one limit of a list.
func (d *Delta) AddToLimit(r *stats.Rule) {
	r.NearLimit.Add(d.Near)
	r.OverLimit.Add(d.Over)
	r.ShadowMode.Add(d.Shadow)
}

// Unlimited returns the status of a descriptor whose rule is unlimited.
func Unlimited() rls.Status { return rls.Status{Code: rls.OK, Remaining: math.MaxUint32} }

// Failed decides a limited descriptor when the store gave no answer: the limit and its reset, nothing remaining, OK or
// OVER_LIMIT by mode. A shadow rule never blocks; any other limit of 0 always does, since that needs no store.
func Failed(o Outcome, mode limits.FailureMode, globalShadow bool, st *rls.Status) Delta {
	*st = limited(o.Rule, o.Reset)
	st.Code = rls.OK
	var d Delta
	if !o.Refund {
		d.Total = o.Hits
	}
	if o.Rule.PerUnit == 0 {
		d.Over = d.Total
		if o.Rule.Shadow || globalShadow {
			d.Shadow = d.Over
		}
	}
	if !o.Rule.Shadow && (mode == limits.FailureDeny || o.Rule.PerUnit == 0) {
		st.Code = rls.OverLimit
	}
	return d
}

// maxReset is how many seconds a protobuf Duration can hold, 10,000 years; JSON has no form for more.
const maxReset = 315_576_000_000

func limited(rule *limits.Rule, reset int64) rls.Status {
	return rls.Status{HasLimit: true, PerUnit: rule.PerUnit, Unit: rule.Unit, Name: rule.Name,
		Reset: min(reset, maxReset)}
}

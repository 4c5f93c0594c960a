// Package decide turns limits and the totals of their counters into verdicts, headers and changes of statistics.
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

// Outcome is the result of one descriptor's hits at one limit: the input from which Judge makes a verdict.
type Outcome struct {
	// Rule is the rule with the limit in force. It is never nil, and never a rule without a limit (unlimited).
	Rule *limits.Rule
	// Hits is how many hits the descriptor requests. Refund reports that they are given back to the counter instead.
	Hits   uint64
	Refund bool
	// After is the counter's total after the hits; where the hits were refused and therefore not counted, it is the
	// total that they would have made. After is not used when Known is set.
	After uint64
	// Known reports that the over-limit cache gave the answer: the counter is over its limit, and nothing was counted.
	Known bool
	// Spared reports that these hits were not counted because another descriptor of the request is over its limit.
	Spared bool
	// Reset is in seconds. For a fixed window it is the time until the window ends. For a sliding window or a token
	// bucket it is the time until the counter is empty or, when the limit is exceeded, until the same hits would pass.
	Reset int64
}

// Capacity returns the highest total at which a counter of rule r is not over its limit: the limit itself or, for a
// token bucket, the bucket's size.
func Capacity(r *limits.Rule) uint64 {
	if r.Algorithm == counter.TokenBucket && r.PerUnit > 0 {
		return uint64(r.Burst)
	}
	return uint64(r.PerUnit)
}

// Over reports whether the hits exceed the limit. Shadow mode makes no difference.
func (o *Outcome) Over() bool { return o.Known || o.After > Capacity(o.Rule) }

// Delta is how much one descriptor adds to each statistic of its rule, as documented in
// docs/statistics.md#what-a-hit-counts-as.
type Delta struct{ Total, Over, Near, Within, Shadow, OverCached uint64 }

// Judge decides one limited descriptor and fills in its status st. The descriptor is over its limit when the total with
// its hits exceeds the limit. globalShadow is SHADOW_MODE, under which the hits over the limit are also counted as
// shadow hits; the descriptor's code stays OVER_LIMIT, since only the code of the whole answer becomes OK.
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

// AddTo adds d to the statistics of a rule.
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

// AddToLimit adds d to the statistics of one limit, for a rule that has a list of limits (rate_limits).
func (d *Delta) AddToLimit(r *stats.Rule) {
	r.NearLimit.Add(d.Near)
	r.OverLimit.Add(d.Over)
	r.ShadowMode.Add(d.Shadow)
}

// Unlimited returns the status of a descriptor whose rule sets no limit (unlimited).
func Unlimited() rls.Status { return rls.Status{Code: rls.OK, Remaining: math.MaxUint32} }

// Failed decides a limited descriptor for which the store gave no answer, and fills in its status st: the limit and its
// reset, nothing remaining, and OK or OVER_LIMIT, as the configured failure mode prescribes. A rule in shadow mode
// never refuses a descriptor; any other rule with a limit of 0 always does, since that decision needs no count.
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

// maxReset is the longest time, in seconds, that a protobuf Duration may have: about 10,000 years. A longer reset could
// not be written as JSON.
const maxReset = 315_576_000_000

func limited(rule *limits.Rule, reset int64) rls.Status {
	return rls.Status{HasLimit: true, PerUnit: rule.PerUnit, Unit: rule.Unit, Name: rule.Name,
		Reset: min(reset, maxReset)}
}

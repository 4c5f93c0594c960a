package service

import (
	"context"
	"fmt"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
)

// Explanation is a descriptor's walk through the rules in force, with its counter as it stands.
type Explanation struct {
	limits.Explanation
	// Counter is nil where no counter decides.
	Counter *CounterView `json:"counter,omitempty"`
}

// CounterView is the present state of one counter.
type CounterView struct {
	// Value is nil when the store gave no answer; Error says why.
	Value *int64 `json:"value,omitempty"`
	Limit uint32 `json:"limit"`
	// Reset is how long the window still lasts, in seconds.
	Reset int64  `json:"reset"`
	Error string `json:"error,omitempty"`
}

// Explain says which rule decides a descriptor and how its counter stands, without counting.
// The error is ErrNoRules.
func (s *Service) Explain(ctx context.Context, domain string, entries []rls.Entry) (*Explanation, error) {
	rules := s.rules.Load()
	if rules == nil {
		return nil, ErrNoRules
	}
	now := s.clock().Unix()
	x := &Explanation{Explanation: rules.ExplainAt(domain, entries, now)}
	s.noteModes(x)
	rule := x.Decides
	if rule == nil || rule.Unlimited {
		return x, nil
	}
	start := now - now%rule.Window
	x.Counter = &CounterView{Limit: rule.PerUnit, Reset: start + rule.Window - now}
	store := s.store.Load()
	if store == nil {
		x.Counter.Error = "the store has not been reached yet"
		return x, nil
	}
	h := counter.Hit{Key: rules.AppendKey(nil, rule, domain, entries, start), PerSecond: rule.Unit == rls.Second,
		Limit: uint64(rule.PerUnit), Window: rule.Window, End: start + rule.Window}
	if err := (*store).Peek(ctx, &h); isBadKey(err) {
		x.Counter.Error = err.Error()
	} else if err != nil {
		x.Counter.Error = storeRefusal(err).Msg
	} else {
		x.Counter.Value = &h.After
	}
	return x, nil
}

// noteModes adds what the daemon's settings make of the verdict, which the rules know nothing of.
func (s *Service) noteModes(x *Explanation) {
	if x.Outcome == limits.UnknownDomain && s.o.DenyUnknown {
		x.Notes = append(x.Notes, "UNKNOWN_DOMAIN=deny: every descriptor of this domain is answered OVER_LIMIT")
	}
	if s.o.GlobalShadow {
		x.Notes = append(x.Notes, "SHADOW_MODE: the overall answer is OK whatever the descriptors' are")
	}
	if s.o.GlobalQuota {
		x.Notes = append(x.Notes, "QUOTA_MODE: the overall answer is OVER_LIMIT only when all descriptors are over")
	}
}

// Text is the explanation for people.
func (x *Explanation) Text() string {
	text := x.Explanation.Text()
	switch c := x.Counter; {
	case c == nil:
	case c.Value == nil:
		text += fmt.Sprintf("counter now: %s\n", c.Error)
	default:
		text += fmt.Sprintf("counter now: %d of %d, window ends in %d s\n", *c.Value, c.Limit, c.Reset)
	}
	return text
}

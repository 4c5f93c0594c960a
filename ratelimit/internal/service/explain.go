package service

import (
	"context"
	"fmt"
	"slices"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
)

// Explanation is a descriptor's walk through the rules in force, with its counter as it stands.
type Explanation struct {
	limits.Explanation
	// Counter is nil where no counter decides. Of several limits it shows the first limit's.
	Counter *CounterView `json:"counter,omitempty"`
}

// CounterView is the present state of one counter.
type CounterView struct {
	// Value is how much is used; nil when the store gave no answer, and then Error says why.
	Value *int64 `json:"value,omitempty"`
	Limit uint32 `json:"limit"`
	// Reset is how long the window still lasts, in seconds; for other algorithms, the reset in the answer to a request
	// without hits.
	Reset int64  `json:"reset"`
	Error string `json:"error,omitempty"`

	// Algorithm and the fields below are set for a sliding window or a token bucket.
	Algorithm string `json:"algorithm,omitempty"`
	// Current and Previous are the hits in the present sliding window and the one before.
	Current  *uint32 `json:"current,omitempty"`
	Previous *uint32 `json:"previous,omitempty"`
	// FullAt is when a token bucket is full again; nil if it is full.
	FullAt *time.Time `json:"full_at,omitempty"`

	text string
}

// RequestExplanation holds the walks of all descriptors of a request, with their counters, and how their rules affect
// each other.
type RequestExplanation struct {
	Descriptors []*Explanation `json:"descriptors"`
	*limits.RequestExplanation
}

// Text is the explanation for people; for one descriptor, only its walk.
func (x *RequestExplanation) Text() string {
	return x.TextOf(func(i int) string { return x.Descriptors[i].Text() })
}

// explainPatience is how long all counters of an explanation may take together, well below HTTP_WRITE_TIMEOUT: after it
// the other counters are not read.
const explainPatience = 5 * time.Second

// Explain says which rules decide the descriptors of a request and how their counters stand, without counting.
// The error is a *Refusal.
func (s *Service) Explain(ctx context.Context, domain string, descriptors ...[]rls.Entry) (*RequestExplanation, error) {
	rules := s.rules.Load()
	if rules == nil {
		return nil, ErrNoRules
	}
	if n := len(descriptors); n > s.o.Caps.Descriptors {
		return nil, tooManyDescriptors(n, s.o.Caps.Descriptors)
	}
	ctx, cancel := context.WithTimeout(ctx, explainPatience)
	defer cancel()
	x := &RequestExplanation{RequestExplanation: rules.ExplainRequest(domain, descriptors, s.clock().Unix())}
	for i, entries := range descriptors {
		walk := &Explanation{Explanation: x.RequestExplanation.Descriptors[i]}
		s.fillWalk(ctx, walk, rules, domain, entries)
		x.Descriptors = append(x.Descriptors, walk)
	}
	return x, nil
}

// fillWalk adds to a walk what the daemon's settings change, and its counters.
func (s *Service) fillWalk(ctx context.Context, x *Explanation, rules *limits.Rules, domain string,
	entries []rls.Entry) {
	s.noteModes(x)
	rule := x.Decides
	if rule == nil || rule.Unlimited {
		return
	}
	readings := s.readings(rules, rule, domain, entries)
	for i := range readings {
		v := s.view(ctx, &readings[i])
		if i == 0 {
			x.Counter = v // of the first limit, as Rule and CounterKey are
		}
		if i < len(x.Limits) {
			x.Limits[i].Counter, x.Limits[i].CounterNow = v, v.text
		}
	}
	if len(x.Limits) > 1 && !slices.ContainsFunc(x.Limits, func(l limits.LimitExplanation) bool {
		return l.Counter.(*CounterView).Value == nil
	}) {
		x.Limits[tightest(readings)].Tightest = true
	}
}

// view reads a counter.
func (s *Service) view(ctx context.Context, m *reading) *CounterView {
	err := s.read(ctx, m)
	v := &CounterView{Limit: m.rule.PerUnit, Reset: m.reset}
	switch {
	case err == errNoStore:
		v.Error = "the store has not been reached yet"
	case isBadKey(err):
		v.Error = err.Error()
	case err != nil:
		v.Error = storeRefusal(err).Msg
	default:
		v.fill(m)
		return v
	}
	v.text = v.Error
	return v
}

// fill takes over the store's answer.
func (v *CounterView) fill(m *reading) {
	used, state := m.hit.After, m.hit.State
	v.Value = &used
	if m.rule.Algorithm != counter.FixedWindow {
		v.Algorithm = m.rule.Algorithm.String()
	}
	switch m.rule.Algorithm {
	case counter.SlidingWindow:
		v.Current, v.Previous = &state.Current, &state.Previous
		v.text = fmt.Sprintf("%d of %d used: %d in this window, %d in the last one count as %d", used, v.Limit,
			state.Current, state.Previous, used-int64(state.Current))
	case counter.TokenBucket:
		v.text = fmt.Sprintf("%d of %d left", m.remaining(), m.rule.Burst)
		if used == 0 {
			v.text += ", full"
			break
		}
		full := time.UnixMicro(state.At).UTC()
		v.FullAt = &full
		v.text += fmt.Sprintf(", full in %d s", seconds(m.hit.TimeToEmpty(&m.hit.State)))
	default:
		v.text = fmt.Sprintf("%d of %d, window ends in %d s", used, v.Limit, v.Reset)
	}
}

// noteModes adds notes on the daemon's settings that change a verdict, since rules do not know these settings.
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
	if x.Counter != nil && len(x.Limits) == 0 {
		text += "counter now: " + x.Counter.text + "\n"
	}
	return text
}

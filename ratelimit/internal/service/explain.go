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

// Explanation says how the rules in force decide a descriptor, entry by entry (a walk through the tree of rules), and
// shows the present state of its counter.
type Explanation struct {
	limits.Explanation
	// Counter is the counter that decides the descriptor, or nil if no counter does. If the rule has a list of limits,
	// Counter is the first limit's counter, and limits.Explanation has the other counters.
	Counter *CounterView `json:"counter,omitempty"`
}

// CounterView is the present state of one counter.
type CounterView struct {
	// Value is how much of the limit is used. It is nil if the store gave no answer; Error then says why.
	Value *int64 `json:"value,omitempty"`
	Limit uint32 `json:"limit"`
	// Reset is in seconds: the time until a fixed window ends; for other algorithms, the reset that a request without
	// hits would get.
	Reset int64  `json:"reset"`
	Error string `json:"error,omitempty"`

	// Algorithm, Current, Previous and FullAt are set only for a sliding window or a token bucket.
	Algorithm string `json:"algorithm,omitempty"`
	// Current and Previous are the hits in the present and in the previous sliding window.
	Current  *uint32 `json:"current,omitempty"`
	Previous *uint32 `json:"previous,omitempty"`
	// FullAt is when a token bucket will be full again; nil if it is full now.
	FullAt *time.Time `json:"full_at,omitempty"`

	text string
}

// RequestExplanation explains all descriptors of a request, and how their rules affect each other.
type RequestExplanation struct {
	Descriptors []*Explanation `json:"descriptors"`
	*limits.RequestExplanation
}

// Text returns the explanation as text for people to read. If there is only one descriptor, it is the descriptor's
// explanation alone.
func (x *RequestExplanation) Text() string {
	return x.TextOf(func(i int) string { return x.Descriptors[i].Text() })
}

// explainPatience bounds the time for reading all counters of an explanation; counters that have not been read by then
// are shown without a value. It is well below HTTP_WRITE_TIMEOUT.
const explainPatience = 5 * time.Second

// Explain says which rules decide the descriptors of a request and what their counters are, without counting any hits.
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

// fillWalk adds to the explanation of a descriptor the effects of the daemon's settings, and the counters.
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
			x.Counter = v // Counter is the first limit's, as are the explanation's Rule and CounterKey
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

// view reads the counter of m from the store.
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

// fill fills in the view from the store's answer.
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

// noteModes adds a note for each of the daemon's settings that changes the verdict. The package limits, which made the
// explanation, does not know these settings.
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

// Text returns the explanation as text for people to read.
func (x *Explanation) Text() string {
	text := x.Explanation.Text()
	if x.Counter != nil && len(x.Limits) == 0 {
		text += "counter now: " + x.Counter.text + "\n"
	}
	return text
}

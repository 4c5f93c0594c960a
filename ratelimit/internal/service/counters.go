package service

import (
	"context"
	"fmt"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/decide"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/printable"
	"gatehouse/ratelimit/internal/rls"
)

// CounterReport is the answer of the debug port's /counters: the counters of one descriptor.
type CounterReport struct {
	Domain string         `json:"domain"`
	Limits []LimitCounter `json:"limits"`
	// Deleted is how many counters a reset has deleted, not counting counters without hits; nil if no reset was
	// requested. Limits shows the counters as they were before the reset.
	Deleted *int   `json:"deleted,omitempty"`
	Note    string `json:"note,omitempty"`
}

// LimitCounter is one limit of a descriptor and the state of its counter.
type LimitCounter struct {
	// Rule is the dotted path of the configuration entry that sets the limit, and File names the file that has the
	// entry. Both are empty for a limit that the request itself sets.
	Rule string `json:"rule,omitempty"`
	File string `json:"file,omitempty"`
	Key  string `json:"key"`
	limits.LimitView
	Limit     uint32 `json:"limit"`
	Burst     uint32 `json:"burst,omitempty"`
	Used      int64  `json:"used"`
	Remaining int64  `json:"remaining"`
	Reset     int64  `json:"reset"`
}

// NoLimitError is the error for a descriptor that is not limited, so that it has no counter. Why is the reason.
type NoLimitError struct{ Why string }

func (e *NoLimitError) Error() string { return "no counter decides this descriptor: " + e.Why }

// Counters returns the present counters of a descriptor, without changing them. The error is a *NoLimitError or a
// *Refusal.
func (s *Service) Counters(ctx context.Context, domain string, d *rls.Descriptor) (*CounterReport, error) {
	report, _, err := s.counters(ctx, domain, d)
	return report, err
}

// ResetCounters deletes the counters of a descriptor. If it fails halfway, the report says how many counters it has
// deleted.
func (s *Service) ResetCounters(ctx context.Context, domain string, d *rls.Descriptor) (*CounterReport, error) {
	report, readings, err := s.counters(ctx, domain, d)
	if err != nil {
		return report, err
	}
	report.Deleted = new(int)
	for i := range readings {
		m := &readings[i]
		if m.withoutStore() {
			continue
		}
		if err := s.store.Load().Reset(ctx, &m.hit); err != nil {
			return report, counterRefusal(err)
		}
		if m.holds() {
			*report.Deleted++
		}
		if s.o.OverLimit != nil {
			s.o.OverLimit.Delete(m.hit.Key)
		}
	}
	if s.o.OverLimit != nil {
		report.Note = "other instances may refuse from their over-limit cache until the reset"
	}
	return report, nil
}

func (s *Service) counters(ctx context.Context, domain string, d *rls.Descriptor) (*CounterReport, []reading, error) {
	report := &CounterReport{Domain: printable.Text(domain)}
	rules := s.rules.Load()
	if rules == nil {
		return report, nil, ErrNoRules
	}
	rule := new(limits.Rule)
	if d.HasLimit {
		rules.Override(rule, d.Limit)
	} else if x := rules.Explain(domain, d.Entries); x.Decides == nil || x.Decides.Unlimited {
		return report, nil, &NoLimitError{x.Reason}
	} else {
		rule = x.Decides
	}
	readings := s.readings(rules, rule, domain, d.Entries)
	for i := range readings {
		m := &readings[i]
		if err := s.read(ctx, m); err != nil {
			return report, nil, counterRefusal(err)
		}
		report.Limits = append(report.Limits, LimitCounter{
			Rule: printable.Text(m.rule.Path(domain)), File: m.rule.At(), Key: printable.Text(string(m.hit.Key)),
			LimitView: m.rule.LimitView(), Limit: m.rule.PerUnit, Burst: m.rule.Burst,
			Used: m.hit.After, Remaining: m.remaining(), Reset: m.reset,
		})
	}
	return report, readings, nil
}

// counterRefusal turns an error of the store's Peek or Reset into the refusal that the caller gets.
func counterRefusal(err error) error {
	if isBadKey(err) {
		return invalid(BadKey, "%s", err)
	}
	return storeRefusal(err)
}

// reading is one limit of a descriptor with its counter, as read from the store.
type reading struct {
	rule  *limits.Rule
	hit   counter.Hit
	reset int64 // in seconds, as a request without hits would get it
}

// readings returns a reading for each limit of a rule: for the rule in first, which decides the descriptor, and for the
// further limits of its list. The method read has yet to fill in the counters.
func (s *Service) readings(rules *limits.Rules, first *limits.Rule, domain string, entries []rls.Entry) []reading {
	now := s.clock().Unix()
	all := make([]reading, 0, 1+len(first.Further))
	for rule := range first.Limits() {
		m := reading{rule: rule, reset: rule.Window}
		start := int64(0)
		if rule.Algorithm == counter.FixedWindow {
			start, m.hit.End = rule.Span(now)
			m.hit.Window, m.reset = m.hit.End-start, m.hit.End-now
		} else {
			m.hit.Window = rule.Window
		}
		m.hit.Key = rules.AppendKey(nil, rule, domain, entries, start)
		m.hit.Algorithm, m.hit.PerSecond = rule.Algorithm, rule.Unit == rls.Second
		m.hit.Limit, m.hit.Burst = uint64(rule.PerUnit), uint64(rule.Burst)
		all = append(all, m)
	}
	return all
}

// withoutStore reports whether the limit has no counter in the store. A sliding window or a token bucket counts only
// hits that it admits, and with a limit of 0 it admits none.
func (m *reading) withoutStore() bool {
	return m.rule.PerUnit == 0 && m.rule.Algorithm != counter.FixedWindow
}

// holds reports whether the counter has hits. A store answers alike for an empty counter and for one that does not
// exist.
func (m *reading) holds() bool {
	return m.hit.After != 0 || m.hit.State.Current != 0 || m.hit.State.Previous != 0
}

// errNoStore is the error of read while the daemon has not yet connected to the store.
var errNoStore = fmt.Errorf("%w: it has not been reached yet", counter.ErrUnavailable)

// read has the store fill in the counter's present state.
func (s *Service) read(ctx context.Context, m *reading) error {
	if m.withoutStore() {
		return nil
	}
	store := s.store.Load()
	if store == nil {
		return errNoStore
	}
	if err := store.Peek(ctx, &m.hit); err != nil {
		return err
	}
	if m.rule.Algorithm != counter.FixedWindow {
		o := m.look()
		m.reset = resetOf(&m.hit, &o)
	}
	return nil
}

// look returns the outcome that a request without hits would have, from which the limit can be judged as it stands.
func (m *reading) look() decide.Outcome {
	return decide.Outcome{Rule: m.rule, After: uint64(m.hit.After), Reset: m.reset}
}

func (m *reading) remaining() int64 { return max(0, int64(decide.Capacity(m.rule))-m.hit.After) }

// tightest returns the index of the limit that decides the descriptor at present.
func tightest(readings []reading) int {
	chosen, at := decide.Verdict{}, 0
	for i := range readings {
		if v := decide.JudgeLimit(readings[i].look(), false); i == 0 || v.TighterThan(&chosen) {
			chosen, at = v, i
		}
	}
	return at
}

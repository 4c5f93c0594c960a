package service

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/decide"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
)

// Call is one request with its answer and everything in between, reused from call to call.
// A zero Call is ready. It may be used for one request at a time.
type Call struct {
	Request  rls.Request
	Response rls.Response
	// At is when the request arrived, Done when the store had answered, or At where it was not called. Windows are
	// chosen by the first and resets counted from the second, since a store may take its time.
	At, Done time.Time

	asked     time.Time      // when the store was called, or At
	span      trace.Span     // of the decision; nil: none
	domain    *limits.Domain // of the request; nil: unknown
	rules     []*limits.Rule // per descriptor: the rule in force, of a list the limit that decides; nil for none
	plan      []step         // per limit, in the order of the descriptors and then of their lists
	overrides []limits.Rule  // backs rules of descriptors with a limit of their own
	keys      []byte         // all counter keys, back to back
	batch     counter.Request
	held      bool          // the stop option holds the batch back: its hits only look
	looks     []counter.Hit // of settleHeld
	scratch   []byte        // of count and show
	shown     [][]byte      // of show

	unanswered []bool          // per descriptor: its answer follows a failure mode; empty where the store has answered
	members    []decide.Member // for the draft headers
	named      int             // how many of Response.Headers have names of LIMIT_*_HEADER; they come first
}

// Rule is the rule that decided descriptor i of an answered request, of a list the limit that did; nil for none. It is
// valid until the call is used again.
func (c *Call) Rule(i int) *limits.Rule {
	if i >= len(c.rules) {
		return nil
	}
	return c.rules[i]
}

// Decide fills c.Response for c.Request, which arrived at a time read with Now. Its error is a *Refusal, and then nothing
// was answered.
func (s *Service) Decide(ctx context.Context, c *Call, arrived time.Time) error {
	asks, err := s.Begin(ctx, c, arrived)
	if !asks {
		return err
	}
	return s.Ask(ctx, c)
}

// Begin decides as much of a request that arrived at a time read with Now as needs no store, or one that answers at once.
// asks: the store has to be called, and Ask completes the decision; else it is complete, or refused with err.
func (s *Service) Begin(ctx context.Context, c *Call, arrived time.Time) (asks bool, err error) {
	c.At, c.Done, c.asked = arrived, arrived, arrived
	c.unanswered, c.members = c.unanswered[:0], c.members[:0]
	if s.o.Tracer != nil {
		s.startSpan(ctx, c)
	}
	rules := s.rules.Load()
	if err := s.check(rules, &c.Request); err != nil {
		c.rules = c.rules[:0]
		s.serviceError.Inc()
		if r, ok := errors.AsType[*Refusal](err); ok && r.Kind == Invalid {
			s.refusals.note(r.Reason, r.Msg, c.At)
		}
		return false, s.end(c, err)
	}
	c.domain = rules.Domain(c.Request.Domain)
	if c.domain == nil && s.o.DenyUnknown {
		s.denyAll(c)
		return false, s.end(c, nil)
	}
	s.match(c, rules, c.domain)
	now := c.At.Unix()
	s.planHits(c, rules, now)
	if len(c.batch.Hits) == 0 {
		s.judge(c, now)
		s.finish(c)
		return false, s.end(c, nil)
	}
	c.batch.Now, c.batch.Instant = now, c.At.UnixMicro()
	if !s.store.Load().immediate {
		return true, nil
	}
	return false, s.Ask(ctx, c)
}

// Ask calls the store for what Begin has left, and completes the decision. Reading the clock costs 50 ns, so that the
// time before the call is only read where it goes somewhere.
func (s *Service) Ask(ctx context.Context, c *Call) error {
	if s.storeTook.Enabled() {
		c.asked = s.clock()
	}
	if c.span != nil {
		ctx = trace.ContextWithSpan(ctx, c.span)
	}
	err := s.store.Load().Add(ctx, &c.batch)
	return s.Complete(c, err, s.clock())
}

// Pending returns the store and the request to start on it after Begin; Complete takes its answer. A store whose calls
// are traced is started as if they were not, where the request's span is not recorded.
func (s *Service) Pending(c *Call) (counter.Store, *counter.Request) {
	store := s.store.Load().Store
	if t, ok := store.(*tracedStore); ok && c.span != nil && !c.span.IsRecording() {
		store = t.Store
	}
	return store, &c.batch
}

// Complete completes the decision of a call whose store has answered at a time read with Now.
func (s *Service) Complete(c *Call, storeErr error, answered time.Time) error {
	c.Done = answered
	s.storeTook.Observe(answered.Sub(c.asked))
	if c.held {
		c.settleHeld()
	}
	if storeErr != nil {
		return s.end(c, s.storeFailed(c, c.domain, storeErr))
	}
	s.judge(c, c.Done.Unix())
	s.finish(c)
	return s.end(c, nil)
}

// end shows a request that was decided, or refused with err, to operators.
func (s *Service) end(c *Call, err error) error {
	if c.span != nil {
		c.endSpan(err)
	}
	if s.watched() {
		s.show(c, err)
	}
	return err
}

// Cost estimates how long the decision of a request of so many bytes takes, at most, without the store.
func (s *Service) Cost(bytes int) time.Duration {
	if rules := s.rules.Load(); rules != nil {
		return rules.Cost(bytes)
	}
	return 0
}

// finish joins the statuses and adds what surrounds them.
func (s *Service) finish(c *Call) {
	c.Response.Overall = decide.Overall(c.Response.Statuses, c.rules, s.o.GlobalQuota)
	if s.o.GlobalShadow && c.Response.Overall == rls.OverLimit {
		c.Response.Overall = rls.OK
		s.globalShadow.Inc()
	}
	c.Response.Headers, c.Response.Metadata = c.Response.Headers[:0], nil
	s.addHeaders(c)
	if s.o.DynamicMetadata {
		c.Response.Metadata = metadata(c)
	}
}

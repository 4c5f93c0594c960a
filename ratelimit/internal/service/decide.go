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
	// At is when the request arrived. Done is when the store had answered, or At where no store was called. Windows are
	// chosen by At and resets counted from Done, since a store may take its time.
	At, Done time.Time

	asked     time.Time      // when the store was called, or At
	span      trace.Span     // of the decision; nil: none
	set       *limits.Rules  // that decided the request, even if newer rules are in force since
	domain    *limits.Domain // of the request; nil: unknown
	rules     []*limits.Rule // per descriptor: the rule in force; for a list, its deciding limit; nil for none
	plan      []step         // one step per limit, in the order of the descriptors and of their lists
	overrides []limits.Rule  // backs rules of descriptors with a limit of their own
	keys      []byte         // all counter keys, back to back
	batch     counter.Request
	held      bool          // set by the stop option: all hits of the batch only look
	looks     []counter.Hit // memory for settleHeld
	scratch   []byte        // memory for count and show
	shown     [][]byte      // memory for show

	unanswered []bool          // per descriptor: a failure mode made its answer; empty where the store has answered
	members    []decide.Member // for the draft headers
	named      int             // how many headers, the first of Response.Headers, have names of LIMIT_*_HEADER
}

// Rule returns the rule that decided descriptor i of an answered request; for a list of limits, the deciding limit; nil
// for none. It is valid until the call is used again.
func (c *Call) Rule(i int) *limits.Rule {
	if i >= len(c.rules) {
		return nil
	}
	return c.rules[i]
}

// Decide fills c.Response for c.Request, whose arrival time was read with Now. Its error is a *Refusal; then c.Response
// is not valid.
func (s *Service) Decide(ctx context.Context, c *Call, arrived time.Time) error {
	asks, err := s.Begin(ctx, c, arrived)
	if !asks {
		return err
	}
	return s.Ask(ctx, c)
}

// Begin decides what needs no store, or a store that answers at once. arrived was read with Now. If asks is true, the
// store has to be called, and Ask completes the decision. Otherwise the decision is complete, or refused with err.
func (s *Service) Begin(ctx context.Context, c *Call, arrived time.Time) (asks bool, err error) {
	c.At, c.Done, c.asked = arrived, arrived, arrived
	c.unanswered, c.members = c.unanswered[:0], c.members[:0]
	if s.o.Tracer != nil {
		s.startSpan(ctx, c)
	}
	c.set = s.rules.Load()
	if err := s.check(c.set, &c.Request); err != nil {
		c.rules = c.rules[:0]
		s.serviceError.Inc()
		if r, ok := errors.AsType[*Refusal](err); ok && r.Kind == Invalid {
			s.refusals.note(r.Reason, r.Msg, c.At)
		}
		return false, s.end(c, err)
	}
	c.domain = c.set.Domain(c.Request.Domain)
	if c.domain == nil && s.o.DenyUnknown {
		s.denyAll(c)
		return false, s.end(c, nil)
	}
	s.match(c, c.set, c.domain)
	now := c.At.Unix()
	s.planHits(c, c.set, now)
	if len(c.batch.Hits) == 0 {
		s.judge(c, now, nil)
		s.finish(c)
		return false, s.end(c, nil)
	}
	c.batch.Now, c.batch.Instant = now, c.At.UnixMicro()
	if !s.store.Load().immediate {
		return true, nil
	}
	return false, s.Ask(ctx, c)
}

// Ask calls the store for the hits that Begin has left, and completes the decision. The time before the call is read
// only where a statistic needs it: reading the clock costs 50 ns.
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

// Pending returns the store and the request to start on it after Begin; Complete takes the store's answer. A traced
// store is returned without its tracing where the request's span is not recorded.
func (s *Service) Pending(c *Call) (counter.Store, *counter.Request) {
	store := s.store.Load().Store
	if t, ok := store.(*tracedStore); ok && c.span != nil && !c.span.IsRecording() {
		store = t.Store
	}
	return store, &c.batch
}

// Complete completes the decision of a call. The store answered at a time read with Now.
func (s *Service) Complete(c *Call, storeErr error, answered time.Time) error {
	c.Done = answered
	s.storeTook.Observe(answered.Sub(c.asked))
	if c.held {
		c.settleHeld()
	}
	if storeErr != nil {
		return s.end(c, s.storeFailed(c, c.domain, storeErr))
	}
	s.judge(c, c.Done.Unix(), nil)
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

// Cost estimates how long it takes, at most, to decide a request of so many bytes, without the store.
func (s *Service) Cost(bytes int) time.Duration {
	if rules := s.rules.Load(); rules != nil {
		return rules.Cost(bytes)
	}
	return 0
}

// finish makes the request's code of the statuses, and adds headers and metadata.
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

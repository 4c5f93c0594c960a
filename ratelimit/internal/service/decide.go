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

// Call is one request with its response and all memory that is needed to decide it, so that it can be reused for the
// next request without allocating. The zero Call is ready for use. A Call serves one request at a time.
type Call struct {
	Request  rls.Request
	Response rls.Response
	// At is when the request arrived. Done is when the store answered, or At if no store was called. At determines the
	// fixed window; resets are computed from Done, since the store may take some time.
	At, Done time.Time

	asked     time.Time      // when the store was called, or At if it was not
	span      trace.Span     // the span of the decision; nil: not traced
	set       *limits.Rules  // the rules that decided the request, even if newer rules have come into force since
	domain    *limits.Domain // the request's domain; nil: no such domain
	rules     []*limits.Rule // per descriptor: the rule in force; for a list of limits, the one that decides; nil: none
	plan      []step         // one step per limit, in the order of the descriptors and of their lists of limits
	overrides []limits.Rule  // the rules made of limits that descriptors bring (Descriptor.Limit)
	keys      []byte         // all counter keys, one after another; each Hit.Key is a part
	batch     counter.Request
	held      bool          // some hit is known to be over, so under the stop option the batch only reads counters
	looks     []counter.Hit // memory for settleHeld
	scratch   []byte        // memory that count and show reuse
	shown     [][]byte      // memory for the counter keys of show

	unanswered []bool          // per descriptor: the failure mode has decided it; empty if the store has answered all
	members    []decide.Member // the limits that the draft headers describe
	named      int             // how many of Response.Headers, from the first on, have names set by LIMIT_*_HEADER
}

// Rule returns the rule that decided descriptor i of an answered request, or nil if no rule did. For a list of limits,
// it returns the limit that decided. The result is valid until the Call is used again.
func (c *Call) Rule(i int) *limits.Rule {
	if i >= len(c.rules) {
		return nil
	}
	return c.rules[i]
}

// Decide decides c.Request and fills in c.Response. arrived is when the request arrived, as read by s.Now. If Decide
// fails, the error is a *Refusal, and c.Response is not valid.
func (s *Service) Decide(ctx context.Context, c *Call, arrived time.Time) error {
	asks, err := s.Begin(ctx, c, arrived)
	if !asks {
		return err
	}
	return s.Ask(ctx, c)
}

// Begin decides c.Request as far as that is possible without waiting: completely, if no hit needs the store or the
// store answers at once. If asks is true, the store has to be called, and Ask completes the decision. Otherwise the
// decision is complete, or err is the *Refusal. arrived is when the request arrived, as read by s.Now.
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

// Ask calls the store for the hits that Begin has planned, waits for the answer, and completes the decision. It reads
// the time before the call only if the statistic of the store's response time is enabled: reading the clock costs 50
// ns.
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

// Pending returns the store and the hits to count in it. It is for a caller that, after Begin, starts the store's work
// without waiting for it (counter.Async) and then calls Complete. If the request's span is not recorded, the store is
// returned without tracing of its calls.
func (s *Service) Pending(c *Call) (counter.Store, *counter.Request) {
	store := s.store.Load().Store
	if t, ok := store.(*tracedStore); ok && c.span != nil && !c.span.IsRecording() {
		store = t.Store
	}
	return store, &c.batch
}

// Complete completes the decision of a call after the store has answered, or has failed with storeErr. answered is the
// time of the answer or failure, as read by s.Now.
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

// end ends the span of a request that was decided, or refused with err, and passes the request to the log of requests
// and to the operators who watch decisions.
func (s *Service) end(c *Call, err error) error {
	if c.span != nil {
		c.endSpan(err)
	}
	if s.watched() {
		s.show(c, err)
	}
	return err
}

// Cost estimates how long deciding a request with the given number of bytes takes at most, not counting the store.
func (s *Service) Cost(bytes int) time.Duration {
	if rules := s.rules.Load(); rules != nil {
		return rules.Cost(bytes)
	}
	return 0
}

// finish makes the code of the whole request from the statuses of its descriptors, and adds headers and metadata to the
// response.
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

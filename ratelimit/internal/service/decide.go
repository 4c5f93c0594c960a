package service

import (
	"context"
	"errors"
	"math"
	"time"

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

	domain    *limits.Domain // of the request; nil: unknown
	rules     []*limits.Rule // per descriptor: the rule in force, of a list the limit that decides; nil for none
	plan      []step         // per limit, in the order of the descriptors and then of their lists
	overrides []limits.Rule  // backs rules of descriptors with a limit of their own
	keys      []byte         // all counter keys, back to back
	batch     counter.Request
	scratch   []byte   // of count and show
	shown     [][]byte // of show

	unanswered []bool          // per descriptor: its answer follows a failure mode; empty where the store has answered
	members    []decide.Member // for the draft headers
	named      int             // how many of Response.Headers have names of LIMIT_*_HEADER; they come first
}

// step is one limit of a descriptor on its way. Mostly it is the only one; the limits of a list follow each other.
type step struct {
	rule       *limits.Rule
	descriptor int
	hit        int // index into batch.Hits, fromCache or withoutStore
	hits       uint64
	// window is the length of the window in seconds, and end the end of a fixed one.
	window, end int64
	// reset is what is known of the reset before the store is called, in seconds. Fixed windows have end.
	reset int64
}

const (
	fromCache    = -1 // the over-limit cache knows it
	withoutStore = -2 // a limit of 0 that counts nothing: see planHits
)

// Rule is the rule that decided descriptor i of an answered request, of a list the limit that did; nil for none. It is
// valid until the call is used again.
func (c *Call) Rule(i int) *limits.Rule {
	if i >= len(c.rules) {
		return nil
	}
	return c.rules[i]
}

// Decide fills c.Response for c.Request. Its error is a *Refusal, and then nothing was answered.
func (s *Service) Decide(ctx context.Context, c *Call) error { return s.DecideAt(ctx, c, s.clock()) }

// DecideAt is Decide for a request that arrived at a time read with Now.
func (s *Service) DecideAt(ctx context.Context, c *Call, arrived time.Time) error {
	if s.o.Tracer != nil {
		c.At, c.Done = arrived, arrived
		err := s.traced(ctx, c)
		if s.watched() {
			s.show(c, err)
		}
		return err
	}
	asks, err := s.Begin(c, arrived)
	if !asks {
		return err
	}
	return s.Ask(ctx, c)
}

// Begin decides as much of a request that arrived at a time read with Now as needs no store. asks: the store has to be
// called, and Ask completes the decision; else it is complete, or refused with err.
func (s *Service) Begin(c *Call, arrived time.Time) (asks bool, err error) {
	c.At, c.Done = arrived, arrived
	if asks, err = s.begin(c); !asks {
		if s.watched() {
			s.show(c, err)
		}
	}
	return asks, err
}

// Ask completes what Begin has left to the store.
func (s *Service) Ask(ctx context.Context, c *Call) error {
	err := s.ask(ctx, c)
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

// Immediate reports whether the store answers without waiting for anything.
func (s *Service) Immediate() bool {
	store := s.store.Load()
	if store == nil {
		return false
	}
	_, ok := (*store).(counter.Immediate)
	return ok
}

func (s *Service) decide(ctx context.Context, c *Call) error {
	asks, err := s.begin(c)
	if !asks {
		return err
	}
	return s.ask(ctx, c)
}

func (s *Service) begin(c *Call) (asks bool, err error) {
	c.unanswered, c.members = c.unanswered[:0], c.members[:0]
	rules := s.rules.Load()
	if err := s.check(rules, &c.Request); err != nil {
		c.rules = c.rules[:0]
		s.serviceError.Inc()
		if r, ok := errors.AsType[*Refusal](err); ok && r.Kind == Invalid {
			s.refusals.note(r.Reason, r.Msg, c.At)
		}
		return false, err
	}
	domain := rules.Domain(c.Request.Domain)
	c.domain = domain
	if domain == nil && s.o.DenyUnknown {
		s.denyAll(c)
		return false, nil
	}
	s.match(c, rules, domain)
	now := c.At.Unix()
	s.planHits(c, rules, now)
	if len(c.batch.Hits) > 0 {
		c.batch.Now, c.batch.Instant = now, c.At.UnixMicro()
		return true, nil
	}
	s.judge(c, c.Done.Unix())
	s.finish(c)
	return false, nil
}

// Pending returns the store and the request to start on it after Begin; Complete takes its answer.
func (s *Service) Pending(c *Call) (counter.Store, *counter.Request) {
	return *s.store.Load(), &c.batch
}

// Complete is Ask for a call whose store has answered at a time read with Now.
func (s *Service) Complete(c *Call, storeErr error, answered time.Time) error {
	c.Done = answered
	s.storeTook.Observe(answered.Sub(c.At))
	err := s.settle(c, storeErr)
	if s.watched() {
		s.show(c, err)
	}
	return err
}

func (s *Service) ask(ctx context.Context, c *Call) error { return s.settle(c, s.askStore(ctx, c)) }

// settle turns the store's answer into the response.
func (s *Service) settle(c *Call, storeErr error) error {
	if storeErr != nil {
		return s.storeFailed(c, c.domain, storeErr)
	}
	s.judge(c, c.Done.Unix())
	s.finish(c)
	return nil
}

// askStore counts the batch, and measures the store alone. Reading the clock costs 50 ns, so that the time before is
// only read where it goes somewhere.
func (s *Service) askStore(ctx context.Context, c *Call) error {
	asked := c.At
	if s.storeTook.Enabled() {
		asked = s.clock()
	}
	err := (*s.store.Load()).Add(ctx, &c.batch)
	c.Done = s.clock()
	s.storeTook.Observe(c.Done.Sub(asked))
	return err
}

// match finds the limits of each descriptor, its own before those of any rule, and drops the replaced ones.
func (s *Service) match(c *Call, rules *limits.Rules, domain *limits.Domain) {
	c.rules, c.plan, c.overrides = c.rules[:0], c.plan[:0], c.overrides[:0]
	replaces := false
	for i := range c.Request.Descriptors {
		d := &c.Request.Descriptors[i]
		var rule *limits.Rule
		switch {
		case d.HasLimit:
			rule = c.override(rules, d.Limit)
		case domain == nil:
			s.o.Stats.DomainNotFound(c.Request.Domain).Inc()
		default:
			rule = domain.Find(d.Entries)
			if rule == nil && s.o.CountNoMatch {
				s.unmatched(domain, d.Entries)
			}
		}
		c.rules = append(c.rules, rule)
		if rule == nil {
			continue
		}
		replaces = replaces || rule.Replacing()
		if rule.Unlimited {
			continue
		}
		c.plan = append(c.plan, step{rule: rule, descriptor: i})
		for _, further := range rule.Further {
			replaces = replaces || further.Replacing()
			c.plan = append(c.plan, step{rule: further, descriptor: i})
		}
	}
	if replaces {
		c.dropReplaced()
	}
}

// override makes the rule of a descriptor that brings its own limit. Rules point into c.overrides,
// so it never grows beneath them.
func (c *Call) override(rules *limits.Rules, o rls.Override) *limits.Rule {
	if cap(c.overrides) == len(c.overrides) {
		c.overrides = make([]limits.Rule, 0, max(4, 2*cap(c.overrides), len(c.Request.Descriptors)))
	}
	c.overrides = c.overrides[:len(c.overrides)+1]
	rule := &c.overrides[len(c.overrides)-1]
	rules.Override(rule, o)
	return rule
}

// dropReplaced drops each limit that another matched rule or limit replaces, whether or not that one is itself
// replaced. Unlimited rules replace but are not replaced. Asking each rule about all names at once keeps 256 lists of
// 10,000 names far below a millisecond.
func (c *Call) dropReplaced() {
	var fewIDs [16]uint32
	var fewMarks [16]bool
	ids, replaced := fewIDs[:0], fewMarks[:]
	for i := range c.plan {
		ids = append(ids, c.plan[i].rule.ID) // 0, which no name has, without one
	}
	if len(ids) > len(replaced) {
		replaced = make([]bool, len(ids))
	}
	for i := range c.plan {
		c.plan[i].rule.MarkReplaced(ids, replaced)
	}
	for i, rule := range c.rules {
		if rule == nil {
			continue
		}
		if rule.Unlimited {
			rule.MarkReplaced(ids, replaced)
			continue
		}
		c.rules[i] = nil // until one of its limits is kept
	}
	kept := c.plan[:0]
	for i, p := range c.plan {
		if replaced[i] {
			continue
		}
		kept = append(kept, p)
		if c.rules[p.descriptor] == nil {
			c.rules[p.descriptor] = p.rule
		}
	}
	c.plan = kept
}

// planHits builds the counter keys and separates the limits whose answer is known from those that need the store.
func (s *Service) planHits(c *Call, rules *limits.Rules, now int64) {
	c.keys, c.batch.Hits, c.batch.Stop = c.keys[:0], c.batch.Hits[:0], counter.StopWhen(s.o.StopWhenOver)
	stopped := false
	for i := range c.plan {
		p := &c.plan[i]
		rule, d := p.rule, &c.Request.Descriptors[p.descriptor]
		p.hits = hitsOf(&c.Request, d)
		start := int64(0)
		if rule.Algorithm == counter.FixedWindow {
			start, p.end = rule.Span(now)
			p.window = p.end - start
		} else {
			p.window, p.reset = rule.Window, rule.Window
		}
		if rule.PerUnit == 0 && rule.Algorithm != counter.FixedWindow { // counts what it admits, which is nothing
			p.hit = withoutStore
			stopped = stopped || s.o.StopWhenOver && !rule.Shadow && !d.Negative && p.hits > 0
			continue
		}
		from := len(c.keys)
		c.keys = rules.AppendKey(c.keys, rule, c.Request.Domain, d.Entries, start)
		key := c.keys[from:len(c.keys):len(c.keys)] // growing c.keys leaves it on the older array
		if s.o.OverLimit != nil && s.knownOver(c, p, key, d.Negative) {
			p.hit = fromCache
			stopped = stopped || s.o.StopWhenOver && !rule.Shadow
			continue
		}
		p.hit = len(c.batch.Hits)
		c.batch.Hits = append(c.batch.Hits, counter.Hit{})
		h := &c.batch.Hits[p.hit] // filled in place: a Hit is large
		h.Key, h.N, h.Refund, h.Shadow, h.PerSecond = key, p.hits, d.Negative, rule.Shadow, rule.Unit == rls.Second
		h.Algorithm, h.Limit, h.Burst = rule.Algorithm, uint64(rule.PerUnit), uint64(rule.Burst)
		h.Window, h.End = p.window, p.end
	}
	if stopped { // the others are only read: one is known to be over
		c.batch.Stop = counter.StopNone
		for i := range c.batch.Hits {
			if !c.batch.Hits[i].Refund {
				c.batch.Hits[i].N = 0
			}
		}
	}
}

// hitsOf is how many hits a descriptor takes.
func hitsOf(r *rls.Request, d *rls.Descriptor) uint64 {
	if d.HasHits {
		return d.Hits
	}
	return uint64(max(r.HitsAddend, 1))
}

// judge turns totals into statuses and statistics.
func (s *Service) judge(c *Call, now int64) {
	s.judgeUnlimited(c)
	for rest := c.plan; len(rest) > 0; {
		var list []step
		if list, rest = cutDescriptor(rest); isList(list) {
			s.judgeList(c, list, now)
			continue
		}
		p := &list[0]
		st := &c.Response.Statuses[p.descriptor]
		var o decide.Outcome
		s.outcome(&o, c, p, now)
		delta := decide.Judge(o, s.o.GlobalShadow, st)
		s.count(c, p.descriptor, &delta)
		if s.o.DraftHeaders {
			c.describe(p, st, true)
		}
	}
}

// judgeUnlimited fills in the statuses of the descriptors that no counter decides.
func (s *Service) judgeUnlimited(c *Call) {
	c.Response.Statuses = growStatuses(c.Response.Statuses, len(c.rules))
	for i, rule := range c.rules {
		c.Response.Statuses[i] = rls.Status{Code: rls.OK}
		if rule == nil || !rule.Unlimited {
			continue
		}
		c.Response.Statuses[i] = decide.Unlimited()
		if d := &c.Request.Descriptors[i]; !d.Negative {
			hits := hitsOf(&c.Request, d)
			s.count(c, i, &decide.Delta{Total: hits, Within: hits})
		}
	}
}

// outcome fills in what became of a limit's hits.
func (s *Service) outcome(o *decide.Outcome, c *Call, p *step, now int64) {
	p.unanswered(o, c, now)
	switch p.hit {
	case withoutStore:
		if !o.Refund {
			o.After = p.hits
		}
	case fromCache:
		o.Known = true
	default:
		s.answered(o, c, p, now)
	}
}

// unanswered fills in the outcome of a limit's hits without an answer of the store.
func (p *step) unanswered(o *decide.Outcome, c *Call, now int64) {
	o.Rule, o.Hits, o.Refund, o.Reset = p.rule, p.hits, c.Request.Descriptors[p.descriptor].Negative, p.reset
	if p.rule.Algorithm == counter.FixedWindow {
		o.Reset = max(1, p.end-now)
	}
}

// answered adds the store's answer, and remembers a counter that is over its limit.
func (s *Service) answered(o *decide.Outcome, c *Call, p *step, now int64) {
	h := &c.batch.Hits[p.hit]
	o.Spared, o.After = h.Spared, uint64(h.After)
	if !h.Refund && h.N != p.hits { // only read, since another limit is known to be over
		o.Spared = true
		if would := addSaturating(o.After, p.hits); would > decide.Capacity(p.rule) {
			o.Spared, o.After = false, would
		}
	} else if s.o.OverLimit != nil && o.Over() && !o.Spared && !o.Refund {
		s.rememberOver(c, p, h, now)
	}
	if p.rule.Algorithm != counter.FixedWindow {
		o.Reset = resetOf(h, o)
	}
}

// resetOf is the reset of a sliding window or a token bucket: until it is empty, or when it is over, until the same
// hits pass.
func resetOf(h *counter.Hit, o *decide.Outcome) int64 {
	switch {
	case !o.Over():
		return seconds(h.Empty())
	case o.Refund: // is answered like a look
		return seconds(h.Wait(0))
	}
	return seconds(h.Wait(o.Hits))
}

// seconds is a time in µs in whole seconds, rounded up, at least 1.
func seconds(micros int64) int64 { return max(1, (micros+999_999)/1_000_000) }

// count adds a descriptor's statistics to its rule, or to the runtime value's own series.
func (s *Service) count(c *Call, descriptor int, d *decide.Delta) {
	rule := c.rules[descriptor]
	handle := rule.Stats
	if handle == nil {
		c.scratch = rule.AppendMetricKey(c.scratch[:0], c.Request.Domain, c.Request.Descriptors[descriptor].Entries)
		handle = s.o.Stats.DynamicRule(c.scratch)
	}
	d.AddTo(handle)
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

// denyAll answers for an unknown domain under UNKNOWN_DOMAIN=deny.
func (s *Service) denyAll(c *Call) {
	c.Response.Statuses, c.rules = growStatuses(c.Response.Statuses, len(c.Request.Descriptors)), c.rules[:0]
	c.plan = c.plan[:0]
	for i := range c.Request.Descriptors {
		if !c.Request.Descriptors[i].HasLimit {
			s.o.Stats.DomainNotFound(c.Request.Domain).Inc()
		}
		c.Response.Statuses[i] = rls.Status{Code: rls.OverLimit}
		c.rules = append(c.rules, nil)
	}
	s.finish(c)
}

func growStatuses(st []rls.Status, n int) []rls.Status {
	if cap(st) < n {
		return make([]rls.Status, n)
	}
	return st[:n]
}

func addSaturating(a, b uint64) uint64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

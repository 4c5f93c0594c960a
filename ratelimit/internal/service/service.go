// Package service decides one request: rules, match, over-limit cache, store, verdict.
//
// Everything that a request needs lies in a Call, which its listener reuses; decide.go has the steps in their order.
// The package knows rules and stores, never sockets: gRPC and /json both call it.
package service

import (
	"cmp"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/decide"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/observe"
	"gatehouse/ratelimit/internal/overlimit"
	"gatehouse/ratelimit/internal/stats"
)

// Settings shape a decision.
type Settings struct {
	// true: every answer is OK; what would have been refused is counted.
	GlobalShadow bool `env:"SHADOW_MODE" envDefault:"false"`
	// true: every rule is in quota mode: a request is over its limit only when all its descriptors are.
	GlobalQuota bool `env:"QUOTA_MODE" envDefault:"false"`
	// true: answers carry dynamic_metadata.
	DynamicMetadata bool `env:"RESPONSE_DYNAMIC_METADATA" envDefault:"false"`
	// true: answers that are OVER_LIMIT carry Retry-After, with either style of
	// LIMIT_RESPONSE_HEADERS_STYLE or with none.
	RetryAfter bool `env:"LIMIT_RETRY_AFTER_ENABLED" envDefault:"false"`
	// true: when one descriptor of a request is over its limit, no counter of that request grows.
	StopWhenOver bool `env:"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT" envDefault:"false" table:"Counting"`
	// true: `ratelimit.service.no_match.<domain>` counts descriptors that no entry of a known domain
	// takes: these are not limited.
	CountNoMatch bool `env:"STATS_NO_MATCH" envDefault:"false" table:"Stats"`
}

// Options are what New takes. Every field is used as it is.
type Options struct {
	Settings
	// Store counts. It may be set by SetStore instead, before the first Decide.
	Store counter.Store
	// OverLimit remembers counters that are over their limit; nil is off.
	OverLimit *overlimit.Cache
	// Stats receives the service's counters; required.
	Stats *stats.Registry

	// DenyUnknown answers OVER_LIMIT for a domain without rules (UNKNOWN_DOMAIN=deny).
	DenyUnknown bool
	// OnStoreFailure is STORE_FAILURE_MODE, for domains that do not say otherwise.
	OnStoreFailure limits.FailureMode
	// Headers are the names of the three limit headers; nil leaves them out.
	Headers *decide.HeaderNames
	// DraftHeaders adds RateLimit-Policy and RateLimit (LIMIT_RESPONSE_HEADERS_STYLE=draft).
	DraftHeaders bool

	// Caps refuse oversized requests.
	Caps Caps

	// Observe keeps decisions for operators.
	Observe observe.Settings

	// Tracer records each decision as a span. nil is off; then no context is searched for a span.
	Tracer trace.Tracer
	// TraceRequests puts the text of whole requests into the spans of decisions (TRACING_REQUEST_TEXT).
	TraceRequests bool

	// Log gets refused requests, at most one line a minute for each reason, and at debug level a sample of all
	// requests; nil discards.
	Log *slog.Logger
	// Clock returns the time; nil is time.Now.
	Clock func() time.Time
}

// Caps bound what one request may hold.
type Caps struct {
	// Descriptors of one request; more are refused with INVALID_ARGUMENT or 400.
	Descriptors int `env:"MAX_DESCRIPTORS" envDefault:"256" min:"1"`
	// Entries of one descriptor; more are refused.
	Entries int `env:"MAX_ENTRIES" envDefault:"64" min:"1"`
	// Bytes of one domain, key or value; more are refused. Envoy's headers hold at most 60 KiB.
	TextBytes int `env:"MAX_TEXT_BYTES" envDefault:"65536" min:"1"`
}

// Service decides. It is safe for concurrent use.
type Service struct {
	o     Options
	rules atomic.Pointer[limits.Rules] // nil until the first valid set
	store atomic.Pointer[storeInUse]   // nil until the store is reached
	// noMatch counts unmatched descriptors by domain; nil without CountNoMatch, and before the first rules.
	noMatch atomic.Pointer[map[string]*stats.Counter]
	clock   func() time.Time
	began   time.Time

	globalShadow, serviceError, storeError *stats.Counter
	storeTook                              *stats.Timer
	failure                                [4]*stats.Counter // by limits.FailureMode
	trouble                                troubles
	refusals                               *refusals
	sampler                                *sampler // nil: off
	observer                               observe.Observer
}

// Now returns the time of the service's clock.
func (s *Service) Now() time.Time { return s.clock() }

// Observer shows decisions to operators.
func (s *Service) Observer() *observe.Observer { return &s.observer }

// SetStore gives the service its store. The debug port may explain rules before that.
func (s *Service) SetStore(store counter.Store) {
	_, immediate := store.(counter.Immediate)
	s.store.Store(&storeInUse{store, immediate})
}

// storeInUse is the store of a service. immediate: the store answers without waiting.
type storeInUse struct {
	counter.Store
	immediate bool
}

// New makes a Service without rules: until SetRules it answers ErrNoRules.
func New(o Options) *Service {
	o.OnStoreFailure = cmp.Or(o.OnStoreFailure, limits.FailureError)
	s := &Service{o: o, clock: o.Clock}
	if s.clock == nil {
		s.clock = time.Now
	}
	s.began = s.clock()
	if o.Store != nil {
		s.SetStore(o.Store)
	}
	s.globalShadow = o.Stats.Counter("ratelimit.service.global_shadow_mode")
	s.serviceError = o.Stats.Counter("ratelimit.service.call.should_rate_limit.service_error")
	s.storeError = o.Stats.Counter("ratelimit.service.call.should_rate_limit.redis_error")
	s.storeTook = o.Stats.Timer("ratelimit.store.response_time")
	for mode, name := range map[limits.FailureMode]string{limits.FailureError: "error", limits.FailureAllow: "allow",
		limits.FailureDeny: "deny"} {
		s.failure[mode] = o.Stats.Counter("ratelimit.service.store_failure." + name)
	}
	s.trouble = newTroubles(o.Stats)
	s.sampler = newSampler(o.Log)
	s.observer.Keep(o.Observe)
	s.refusals = newRefusals(o.Stats, cmp.Or(o.Log, slog.New(slog.DiscardHandler)))
	return s
}

// SetRules puts a new set in force, for requests that begin from now on, and empties the
// over-limit cache, since a raised limit must show at once.
func (s *Service) SetRules(r *limits.Rules) {
	if s.o.CountNoMatch {
		s.countUnmatched(r)
	}
	s.rules.Store(r)
	if s.o.OverLimit != nil {
		s.o.OverLimit.Clear()
	}
}

// Rules returns the set in force; nil before the first.
func (s *Service) Rules() *limits.Rules { return s.rules.Load() }

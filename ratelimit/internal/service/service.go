// Package service decides one request, in this order: it matches the descriptors with the rules, consults the
// over-limit cache, has the store count the hits, and makes the verdict.
//
// A Call has everything that one request needs, and its listener reuses it for the next request; decide.go has the
// steps in their order. The package knows rules and stores, but no sockets: the listeners for gRPC and for /json both
// call it.
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

// Settings are the settings that change how requests are decided.
type Settings struct {
	// true: every answer is OK; answers that would have been OVER_LIMIT are counted.
	GlobalShadow bool `env:"SHADOW_MODE" envDefault:"false"`
	// true: every rule is in quota mode: a request is over its limit only when all its descriptors are over theirs.
	GlobalQuota bool `env:"QUOTA_MODE" envDefault:"false"`
	// true: answers carry dynamic_metadata.
	DynamicMetadata bool `env:"RESPONSE_DYNAMIC_METADATA" envDefault:"false"`
	// true: answers that are OVER_LIMIT carry Retry-After, with either style of
	// LIMIT_RESPONSE_HEADERS_STYLE or with none.
	RetryAfter bool `env:"LIMIT_RETRY_AFTER_ENABLED" envDefault:"false"`
	// true: when one descriptor of a request is over its limit, no counter of that request grows.
	StopWhenOver bool `env:"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT" envDefault:"false" table:"Counting"`
	// true: `ratelimit.service.no_match.<domain>` counts descriptors that match no entry of a known domain, and are
	// therefore not limited.
	CountNoMatch bool `env:"STATS_NO_MATCH" envDefault:"false" table:"Stats"`
}

// Options are the parameters of New. New takes every field as it is, without defaults unless the field says so.
type Options struct {
	Settings
	// Store counts the hits. It may instead be set later by SetStore, but before the first call of Decide.
	Store counter.Store
	// OverLimit remembers counters that are over their limits; nil: every hit goes to the store.
	OverLimit *overlimit.Cache
	// Stats is where the service registers its statistics; it is required.
	Stats *stats.Registry

	// DenyUnknown answers OVER_LIMIT for a domain that is not configured (UNKNOWN_DOMAIN=deny).
	DenyUnknown bool
	// OnStoreFailure is STORE_FAILURE_MODE: how to answer when the store fails, for domains that do not set
	// on_store_failure. Unset, it is an error.
	OnStoreFailure limits.FailureMode
	// Headers are the names of the three headers that describe the tightest limit; nil: the headers are not sent.
	Headers *decide.HeaderNames
	// DraftHeaders adds the headers RateLimit-Policy and RateLimit (LIMIT_RESPONSE_HEADERS_STYLE=draft).
	DraftHeaders bool

	// Caps are the sizes beyond which a request is refused.
	Caps Caps

	// Observe says which decisions are kept for operators to see.
	Observe observe.Settings

	// Tracer records each decision as a span; nil: decisions are not traced.
	Tracer trace.Tracer
	// TraceRequests adds the text of the whole request to the span of its decision (TRACING_REQUEST_TEXT).
	TraceRequests bool

	// Log gets refused requests, at most one line a minute for each reason, and at debug level a sample of all
	// requests; nil: nothing is logged.
	Log *slog.Logger
	// Clock returns the time; nil is time.Now.
	Clock func() time.Time
}

// Caps bound the size of one request.
type Caps struct {
	// Most descriptors that one request may have; requests with more are refused with INVALID_ARGUMENT or 400.
	Descriptors int `env:"MAX_DESCRIPTORS" envDefault:"256" min:"1"`
	// Most entries that one descriptor may have; requests with more are refused.
	Entries int `env:"MAX_ENTRIES" envDefault:"64" min:"1"`
	// Longest domain, key or value, in bytes; requests with a longer one are refused. Envoy's headers hold at most 60
	// KiB.
	TextBytes int `env:"MAX_TEXT_BYTES" envDefault:"65536" min:"1"`
}

// Service decides requests. It is safe for concurrent use.
type Service struct {
	o     Options
	rules atomic.Pointer[limits.Rules] // nil until the first valid set of rules
	store atomic.Pointer[storeInUse]   // nil until the daemon has connected to the store
	// noMatch has the counters of unmatched descriptors by domain. It is nil without CountNoMatch, and before the first
	// rules.
	noMatch atomic.Pointer[map[string]*stats.Counter]
	clock   func() time.Time
	began   time.Time

	globalShadow, serviceError, storeError *stats.Counter
	storeTook                              *stats.Timer
	failure                                [4]*stats.Counter // indexed by limits.FailureMode
	trouble                                troubles
	refusals                               *refusals
	sampler                                *sampler // nil: requests are not logged
	observer                               observe.Observer
}

// Now returns the time of the service's clock.
func (s *Service) Now() time.Time { return s.clock() }

// Observer returns the part of the service that shows decisions to operators.
func (s *Service) Observer() *observe.Observer { return &s.observer }

// SetStore sets the store that counts the hits. Explain may be called before SetStore, but Decide may not.
func (s *Service) SetStore(store counter.Store) {
	_, immediate := store.(counter.Immediate)
	s.store.Store(&storeInUse{store, immediate})
}

// storeInUse is the store of a service. immediate means that the store answers without waiting (counter.Immediate).
type storeInUse struct {
	counter.Store
	immediate bool
}

// New returns a Service without rules: it refuses requests with ErrNoRules until SetRules is called.
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

// SetRules puts a new set of rules in force, for requests that begin from now on. It also empties the over-limit cache,
// so that a raised limit takes effect at once.
func (s *Service) SetRules(r *limits.Rules) {
	if s.o.CountNoMatch {
		s.countUnmatched(r)
	}
	s.rules.Store(r)
	if s.o.OverLimit != nil {
		s.o.OverLimit.Clear()
	}
}

// Rules returns the rules in force, or nil if there are none yet.
func (s *Service) Rules() *limits.Rules { return s.rules.Load() }

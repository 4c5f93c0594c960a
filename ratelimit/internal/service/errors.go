package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/stats"
)

// Kind is the cause of a refusal, in the form of the code that a gRPC client gets. /json has an HTTP status for each
// Kind.
type Kind codes.Code

// These are the kinds of refusals.
const (
	// Invalid: the request itself is at fault. Such a request is refused before the store is called, except for BadKey.
	Invalid = Kind(codes.InvalidArgument)
	// Unavailable: no rules have been loaded yet, or the store gave no answer.
	Unavailable = Kind(codes.Unavailable)
	// TimedOut: the store did not answer in time.
	TimedOut = Kind(codes.DeadlineExceeded)
)

// Refusal is an error in place of an answer, and the only error of Decide. Its text Msg is sent to the caller, so it
// contains no host name and no counter key.
type Refusal struct {
	Kind Kind
	// Reason says what is wrong with the request. It is set only if Kind is Invalid.
	Reason Reason
	Msg    string
	// Err is the underlying error, which is only logged.
	Err error
}

func (r *Refusal) Error() string { return r.Msg }

// GRPCStatus returns the gRPC status for an error of Decide. nil stands for a panic in Decide.
func GRPCStatus(err error) (codes.Code, string) {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return codes.Code(r.Kind), r.Msg
	}
	return codes.Internal, "internal error"
}

func (r *Refusal) Unwrap() error { return r.Err }

// These refusals have the same texts as those of envoyproxy/ratelimit, on which its clients may rely:
// docs/wire.md#what-is-refused.
var (
	errNoDomain      = &Refusal{Kind: Invalid, Reason: NoDomain, Msg: "rate limit domain must not be empty"}
	errNoDescriptors = &Refusal{Kind: Invalid, Reason: NoDescriptors,
		Msg: "rate limit descriptor list must not be empty"}
	// ErrNoRules is the refusal of all requests until the first valid configuration has been loaded.
	ErrNoRules = &Refusal{Kind: Unavailable, Msg: "no rate limit configuration loaded"}
)

func invalid(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Kind: Invalid, Reason: reason, Msg: fmt.Sprintf(format, args...)}
}

func tooManyDescriptors(n, most int) *Refusal {
	return invalid(TooManyDescriptors, "rate limit request has %d descriptors, at most %d are allowed", n, most)
}

// storeRefusal returns the refusal that a caller gets when the store has failed with err.
func storeRefusal(err error) *Refusal {
	if errors.Is(err, counter.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
		return &Refusal{Kind: TimedOut, Msg: "rate limit store did not answer in time", Err: err}
	}
	return &Refusal{Kind: Unavailable, Msg: "rate limit store is unavailable", Err: err}
}

// troubles are the counters of store failures, one for each cause.
type troubles struct{ timeout, busy, full, open, badKey, unavailable *stats.Counter }

func newTroubles(r *stats.Registry) troubles {
	c := func(name string) *stats.Counter { return r.Counter("ratelimit.service.store_error." + name) }
	return troubles{c("timeout"), c("pool_empty"), c("full"), c("breaker_open"), c("bad_key"), c("unavailable")}
}

func (t *troubles) count(err error) {
	switch {
	case errors.Is(err, counter.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		t.timeout.Inc()
	case errors.Is(err, counter.ErrBusy):
		t.busy.Inc()
	case errors.Is(err, counter.ErrFull):
		t.full.Inc()
	case errors.Is(err, counter.ErrOpen):
		t.open.Inc()
	case isBadKey(err):
		t.badKey.Inc()
	default:
		t.unavailable.Inc()
	}
}

func isBadKey(err error) bool {
	_, ok := errors.AsType[*counter.KeyError](err)
	return ok
}

// Reason names in one word what is wrong with an invalid request. It is the last part of the name of a counter.
type Reason string

// These are the reasons. An Envoy with failure_mode_deny=false lets a request pass unlimited when the call of this
// service is refused, so each refusal is counted and logged.
const (
	Malformed          Reason = "malformed" // the bytes cannot be decoded as a request
	TooLong            Reason = "too_long"  // a body of /json, a gRPC message or a header list exceeds its limit
	NoDomain           Reason = "no_domain"
	NoDescriptors      Reason = "no_descriptors"
	DomainTooLong      Reason = "domain_too_long"
	TooManyDescriptors Reason = "too_many_descriptors"
	TooManyEntries     Reason = "too_many_entries"
	TextTooLong        Reason = "text_too_long"
	UnknownUnit        Reason = "unknown_unit"
	TooManyHits        Reason = "too_many_hits"
	// BadKey means that memcached does not accept the counter key, and that the configured failure mode is error.
	BadKey Reason = "bad_key"
)

var reasons = []Reason{
	Malformed, TooLong, NoDomain, NoDescriptors, DomainTooLong, TooManyDescriptors, TooManyEntries, TextTooLong,
	UnknownUnit, TooManyHits, BadKey,
}

// refusalPause is the least time between two log lines with the same reason. Clients decide how often they are refused,
// and must not fill the log.
const refusalPause = time.Minute

// refusals counts refused requests by reason. It logs each reason at most once every refusalPause.
type refusals struct {
	log    *slog.Logger
	counts map[Reason]*stats.Counter

	mu     sync.Mutex
	logged map[Reason]time.Time
}

func newRefusals(r *stats.Registry, log *slog.Logger) *refusals {
	f := &refusals{log: log, counts: map[Reason]*stats.Counter{}, logged: map[Reason]time.Time{}}
	for _, reason := range reasons {
		f.counts[reason] = r.Counter("ratelimit.service.call.should_rate_limit.refused_" + string(reason))
	}
	return f
}

// note counts a refusal at the time now, and logs it unless its reason was logged less than refusalPause ago.
func (f *refusals) note(reason Reason, why string, now time.Time) {
	f.counts[reason].Inc()
	f.mu.Lock()
	last, before := f.logged[reason]
	due := !before || now.Sub(last) >= refusalPause
	if due {
		f.logged[reason] = now
	}
	f.mu.Unlock()
	if due {
		f.log.Warn("a request is refused: at an Envoy with failure_mode_deny=false it passes unlimited; "+
			"logged at most once a minute for each reason, counted in refused_"+string(reason), "reason",
			string(reason), "error", why)
	}
}

// NoteRefused counts a request that a listener refused because it could not decode it, and logs the request unless
// another with the same reason was logged less than refusalPause ago.
func (s *Service) NoteRefused(reason Reason, err error) {
	s.refusals.note(reason, err.Error(), s.clock())
}

// NoteUnread counts a gRPC call that was refused with code because its request could not be read completely. It does
// not count a call that the client canceled or whose deadline passed.
func (s *Service) NoteUnread(code codes.Code, err error) {
	switch code {
	case codes.Canceled, codes.DeadlineExceeded:
	case codes.ResourceExhausted:
		s.NoteRefused(TooLong, err)
	default:
		s.NoteRefused(Malformed, err)
	}
}

// check refuses malformed requests before the store is called. The order of the checks, and the texts of the first
// three, are those of envoyproxy/ratelimit.
func (s *Service) check(rules *limits.Rules, r *rls.Request) error {
	switch {
	case r.Domain == "":
		return errNoDomain
	case len(r.Descriptors) == 0:
		return errNoDescriptors
	case rules == nil:
		return ErrNoRules
	case len(r.Domain) > s.o.Caps.TextBytes:
		return invalid(DomainTooLong, "rate limit domain has %d bytes, at most %d are allowed", len(r.Domain),
			s.o.Caps.TextBytes)
	case len(r.Descriptors) > s.o.Caps.Descriptors:
		return tooManyDescriptors(len(r.Descriptors), s.o.Caps.Descriptors)
	}
	for i := range r.Descriptors {
		if err := s.checkDescriptor(i, &r.Descriptors[i]); err != nil {
			return err
		}
	}
	if r.Cut {
		return invalid(TooManyEntries, "rate limit request has more than the %d descriptors or %d entries that are decoded",
			rls.MaxDescriptors, rls.MaxEntries)
	}
	return nil
}

func (s *Service) checkDescriptor(i int, d *rls.Descriptor) error {
	if len(d.Entries) > s.o.Caps.Entries {
		return invalid(TooManyEntries, "rate limit descriptor %d has %d entries, at most %d are allowed", i,
			len(d.Entries), s.o.Caps.Entries)
	}
	if d.HasLimit && d.Limit.Unit.Seconds() == 0 {
		return invalid(UnknownUnit, "rate limit descriptor %d: limit has unit %d, want 1 (SECOND) to 7 (WEEK)", i,
			d.Limit.Unit)
	}
	if d.HasHits && d.Hits > math.MaxInt64 {
		return invalid(TooManyHits, "rate limit descriptor %d: hits_addend is %d, at most %d is allowed", i, d.Hits,
			math.MaxInt64)
	}
	for j := range d.Entries {
		if e := &d.Entries[j]; len(e.Key) > s.o.Caps.TextBytes || len(e.Value) > s.o.Caps.TextBytes {
			return invalid(TextTooLong,
				"rate limit descriptor %d: entry %d has a key of %d and a value of %d bytes, at most %d each are "+
					"allowed",
				i, j, len(e.Key), len(e.Value), s.o.Caps.TextBytes)
		}
	}
	return nil
}

package service

import (
	"log/slog"
	"sync"
	"time"

	"gatehouse/ratelimit/internal/stats"
)

// Reason says in one word why an invalid request was refused; it is the last part of a counter's name.
type Reason string

// The reasons. An Envoy with failure_mode_deny=false lets requests that are refused here pass, so each is counted and
// logged.
const (
	Malformed          Reason = "malformed" // the bytes are no request
	TooLong            Reason = "too_long"  // a body of /json
	NoDomain           Reason = "no_domain"
	NoDescriptors      Reason = "no_descriptors"
	DomainTooLong      Reason = "domain_too_long"
	TooManyDescriptors Reason = "too_many_descriptors"
	TooManyEntries     Reason = "too_many_entries"
	TextTooLong        Reason = "text_too_long"
	UnknownUnit        Reason = "unknown_unit"
	TooManyHits        Reason = "too_many_hits"
	// memcached takes no such counter key, and the failure mode is error
	BadKey Reason = "bad_key"
)

var reasons = []Reason{
	Malformed, TooLong, NoDomain, NoDescriptors, DomainTooLong, TooManyDescriptors, TooManyEntries, TextTooLong,
	UnknownUnit, TooManyHits, BadKey,
}

// refusalPause is the least time between two log lines with one reason: callers decide how often they are refused.
const refusalPause = time.Minute

// refusals counts refused requests by reason, and logs each reason at most once a minute.
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

// note counts a refusal at now, and logs it if one is due.
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

// NoteRefused counts a request that a listener refused because it could not be read.
func (s *Service) NoteRefused(reason Reason, err error) {
	s.refusals.note(reason, err.Error(), s.clock())
}

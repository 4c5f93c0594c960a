package service

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/observe"
	"gatehouse/ratelimit/internal/printable"
	"gatehouse/ratelimit/internal/rls"
)

// watched reports whether decisions have to be shown: in the log of requests, or to an operator who watches. The
// compiler inlines watched; where it returns false, it costs a request two pointer reads.
func (s *Service) watched() bool { return s.sampler != nil || s.observer.Watching() != nil }

// show passes a request that was decided, or refused with err, to the log of requests and to the operators who watch.
func (s *Service) show(c *Call, err error) {
	if s.sampler != nil {
		s.sampler.note(c, err)
	}
	if w := s.observer.Watching(); w != nil && err == nil {
		d := observe.Decision{At: c.At, Done: c.Done, Request: &c.Request, Response: &c.Response, Set: c.set,
			Domain: c.domain, Rules: c.rules}
		if w.Counting() {
			c.shown = c.counterKeys(c.shown[:0])
			d.Keys = c.shown
		}
		c.scratch = w.Note(&d, c.scratch)
	}
}

// counterKeys appends one key for each descriptor: the key of a counter for which the store was called, or nil if the
// descriptor needed no store.
func (c *Call) counterKeys(dst [][]byte) [][]byte {
	for range c.rules {
		dst = append(dst, nil)
	}
	for i := range c.plan {
		if p := &c.plan[i]; p.hit >= 0 {
			dst[p.descriptor] = c.batch.Hits[p.hit].Key
		}
	}
	return dst
}

// Recent returns the last refused and the last unmatched descriptors of a domain, or of all domains if domain is empty.
// For each unmatched descriptor, it also returns the key in the rules in force that is most similar to the descriptor's
// key. ok is false if no such descriptors are kept.
func (s *Service) Recent(domain string) (refused, unmatched observe.RecentList, ok bool) {
	recent := s.observer.Recent()
	if recent == nil {
		return refused, unmatched, false
	}
	refused, unmatched = recent.Refused(domain), recent.Unmatched(domain)
	rules := s.rules.Load()
	for i := range unmatched.Descriptors {
		r := &unmatched.Descriptors[i]
		d := rules.Domain(r.Domain)
		if d == nil || r.Cut {
			continue
		}
		r.NearestKey = d.NearestKey(r.Entries)
	}
	return refused, unmatched, true
}

// These constants bound the log of requests, because clients decide how many requests there are and how long they are.
const (
	samplesPerSecond = 10
	maxSampleText    = 256     // in bytes, of a domain, a key or a value
	maxSample        = 4 << 10 // in bytes, of all descriptors of a request; further ones are only counted
)

// sampler logs a sample of the requests at debug level: at most samplesPerSecond in any second.
type sampler struct {
	log *slog.Logger

	mu      sync.Mutex
	logged  [samplesPerSecond]time.Time // when the last lines were logged; the oldest is at index oldest
	oldest  int
	skipped int // requests that were not logged since the last line
}

// newSampler returns a sampler, or nil if log does not log at debug level.
func newSampler(log *slog.Logger) *sampler {
	if log == nil || !log.Enabled(context.Background(), slog.LevelDebug) {
		return nil
	}
	return &sampler{log: log}
}

// take reports whether a request at the time now is to be logged, and how many requests have been skipped since the
// last line.
func (s *sampler) take(now time.Time) (ok bool, skipped int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.logged[s.oldest]; !last.IsZero() && now.Sub(last) < time.Second {
		s.skipped++
		return false, 0
	}
	s.logged[s.oldest] = now
	s.oldest = (s.oldest + 1) % samplesPerSecond
	skipped, s.skipped = s.skipped, 0
	return true, skipped
}

// note logs a request that was decided, or refused with err, if the method take allows it. The line shares no memory
// with the request.
func (s *sampler) note(c *Call, err error) {
	ok, skipped := s.take(c.At)
	if !ok {
		return
	}
	attrs := []any{slog.String("domain", string(appendText(nil, c.Request.Domain)))}
	if err != nil {
		attrs = append(attrs, slog.String("error", err.Error()))
	} else {
		attrs = append(attrs, slog.String("code", c.Response.Overall.String()))
	}
	attrs = append(attrs, slog.String("descriptors", describeAll(c, err == nil)))
	if skipped > 0 {
		attrs = append(attrs, slog.Int("skipped", skipped))
	}
	s.log.Debug("request", attrs...)
}

// describeAll returns the text of a request's descriptors: for each its entries, in the form that /explain accepts, its
// code and its rule.
func describeAll(c *Call, answered bool) string {
	var b []byte
	for i := range c.Request.Descriptors {
		if i > 0 {
			b = append(b, "; "...)
		}
		if len(b) > maxSample {
			b = strconv.AppendInt(b, int64(len(c.Request.Descriptors)-i), 10)
			b = append(b, " more"...)
			break
		}
		d := &c.Request.Descriptors[i]
		b = appendEntries(b, d.Entries)
		if i >= len(c.rules) { // the request was refused before rules were matched
			continue
		}
		if answered {
			b = append(append(b, ' '), c.Response.Statuses[i].Code.String()...)
		}
		b = append(append(b, ' '), ruleText(c.rules[i], d, c.set, c.Request.Domain)...)
	}
	return string(b)
}

// ruleText names the rule that decided a descriptor, or says why no rule did.
func ruleText(rule *limits.Rule, d *rls.Descriptor, rules *limits.Rules, name string) string {
	switch domain := rules.Domain(name); {
	case rule != nil && d.HasLimit:
		return "by a limit of its own, " + strconv.FormatUint(uint64(d.Limit.PerUnit), 10) +
			"/" + strings.ToLower(d.Limit.Unit.String())
	case rule != nil:
		return "by " + rule.Path(name) + " (" + rule.At() + ")"
	case domain == nil:
		return string(limits.UnknownDomain)
	default:
		if outcome := domain.Outcome(d.Entries); outcome != limits.Limited {
			return string(outcome)
		}
		return "replaced"
	}
}

func appendEntries(b []byte, entries []rls.Entry) []byte {
	if len(entries) == 0 {
		return append(b, "(no entries)"...)
	}
	for i, e := range entries {
		if i > 0 {
			b = append(b, ',')
		}
		if len(b) > maxSample {
			return append(b, "…"...)
		}
		b = append(appendText(b, e.Key), '=')
		b = appendText(b, e.Value)
	}
	return b
}

// appendText appends a text of the request. A long text is cut, and a text that contains a separator or a control
// character is quoted.
func appendText(b []byte, s string) []byte {
	s, cut := printable.Cut(s, maxSampleText)
	if strings.ContainsFunc(s, func(r rune) bool { return strings.ContainsRune(` ,;="\`, r) || unicode.IsControl(r) }) {
		b = strconv.AppendQuote(b, s)
	} else {
		b = printable.Append(b, s)
	}
	if cut {
		b = append(b, "…"...)
	}
	return b
}

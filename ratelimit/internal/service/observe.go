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

// watched reports whether decided and refused requests go to the log of requests or to an operator. It is inlined:
// where it is false, a request pays for two pointer reads.
func (s *Service) watched() bool { return s.sampler != nil || s.observer.Watching() != nil }

// show passes a request to the log of requests and to the operators that watch.
func (s *Service) show(c *Call, err error) {
	if s.sampler != nil {
		s.sampler.note(c, err)
	}
	if w := s.observer.Watching(); w != nil && err == nil {
		d := observe.Decision{At: c.At, Done: c.Done, Request: &c.Request, Response: &c.Response, Set: c.set, Domain: c.domain,
			Rules: c.rules}
		if w.Counting() {
			c.shown = c.counterKeys(c.shown[:0])
			d.Keys = c.shown
		}
		c.scratch = w.Note(&d, c.scratch)
	}
}

// counterKeys appends for each descriptor the key of a counter if the descriptor needed the store, nil otherwise.
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

// Recent returns the last refused and the last unmatched descriptors of a domain; of all domains for "". An unmatched
// descriptor has the nearest key of the rules in force. ok is false when nothing is kept.
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

// Bounds of the log of requests: callers decide how many requests there are and how long they are.
const (
	samplesPerSecond = 10
	maxSampleText    = 256     // bytes of a domain, key or value
	maxSample        = 4 << 10 // bytes of descriptors after which no further descriptor begins
)

// sampler logs some requests at debug level: at most samplesPerSecond in any second.
type sampler struct {
	log *slog.Logger

	mu      sync.Mutex
	logged  [samplesPerSecond]time.Time // when the last lines were logged
	oldest  int
	skipped int // requests not logged since the last line
}

// newSampler returns nil, which logs nothing, where log has no debug level.
func newSampler(log *slog.Logger) *sampler {
	if log == nil || !log.Enabled(context.Background(), slog.LevelDebug) {
		return nil
	}
	return &sampler{log: log}
}

// take reports whether a request at now is logged, and how many requests were skipped since the last logged one.
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

// note logs a decided or refused request if take allows it. Nothing in the line shares the request's memory.
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

// describeAll returns one text for each descriptor: its entries as /explain takes them, its code and its rule.
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
		if i >= len(c.rules) { // refused before the rules were consulted
			continue
		}
		if answered {
			b = append(append(b, ' '), c.Response.Statuses[i].Code.String()...)
		}
		b = append(append(b, ' '), ruleText(c.rules[i], d, c.set, c.Request.Domain)...)
	}
	return string(b)
}

// ruleText names the rule in force, or says why there is none.
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

// appendText appends a text of a request: cut where it is long, quoted where its end would be unclear.
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

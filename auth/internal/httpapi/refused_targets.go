package httpapi

import (
	"log/slog"
	"strconv"
	"sync"
	"time"
)

const (
	// In each period of length refusedEvery, the same refused redirect_to is logged once, and at most refusedLines
	// different ones are logged.
	refusedEvery = time.Minute
	refusedLines = 10
	// refusedBytes is how many bytes of a redirect_to are logged at most.
	refusedBytes = 200
)

// onceAMinute decides which values sent by clients are logged, so that clients cannot flood the log: in each minute a
// value is logged once, and the number of different values that are logged is limited to the field most.
type onceAMinute struct {
	most  int
	mu    sync.Mutex
	since time.Time
	seen  map[string]bool
}

// first reports whether the value is to be logged now.
func (t *onceAMinute) first(value string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.since) >= refusedEvery {
		t.since, t.seen = now, map[string]bool{}
	}
	if t.seen[value] || len(t.seen) >= t.most {
		return false
	}
	t.seen[value] = true
	return true
}

// logRefused logs a redirect_to that is not allowed and is replaced by the site's URL, so that an operator sees which
// entry the allow list lacks.
func (s *Server) logRefused(c *call, target string) {
	shown := target[:min(len(target), refusedBytes)]
	if !s.refused.first(shown, s.now()) {
		return
	}
	_, reason := c.live.Redirects.Explain(target)
	s.log.LogAttrs(c.ctx(), slog.LevelInfo, "redirect_to is refused", slog.String("redirect_to", strconv.Quote(shown)),
		slog.String("reason", reason), slog.String("request_id", c.id))
}

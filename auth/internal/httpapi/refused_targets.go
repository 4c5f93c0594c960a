package httpapi

import (
	"log/slog"
	"strconv"
	"sync"
	"time"
)

const (
	// refusedEvery is how often one refused redirect_to is logged, and the time in which refusedLines are.
	refusedEvery = time.Minute
	refusedLines = 10
	// refusedBytes is how much of it is shown.
	refusedBytes = 200
)

// onceAMinute keeps what clients send from flooding a log: a value is noted once in a minute, and so many values are.
type onceAMinute struct {
	most  int
	mu    sync.Mutex
	since time.Time
	seen  map[string]bool
}

// first says whether the value is to be noted.
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

// logRefused notes that a redirect_to leads to the site instead, so that an operator finds the item that the allow list
// lacks.
func (s *Server) logRefused(c *call, target string) {
	shown := target[:min(len(target), refusedBytes)]
	if !s.refused.first(shown, s.now()) {
		return
	}
	_, reason := c.live.Redirects.Explain(target)
	s.log.LogAttrs(c.ctx(), slog.LevelInfo, "redirect_to is refused", slog.String("redirect_to", strconv.Quote(shown)),
		slog.String("reason", reason), slog.String("request_id", c.id))
}

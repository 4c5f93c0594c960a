package httpapi

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"gatehouse/auth/internal/jsontext"
)

// Check is one condition of readiness. /readyz publishes its Name.
type Check struct {
	Name  string
	Check func(context.Context) error
}

func healthBody(version string) []byte {
	b := jsontext.AppendString([]byte(`{"version":`), version)
	return append(b, `,"name":"Gatehouse","description":"Gatehouse is a user registration and authentication API"}`...)
}

// getHealth answers as long as the process runs. It checks nothing else.
func (s *Server) getHealth(c *call) error { return c.json(200, s.health) }

var wellBody = []byte(`{"status":"ok"}`)

func (s *Server) getLivez(c *call) error { return c.json(200, wellBody) }

// readiness keeps the last result of the checks for readyFor, so that frequent polling does not query the database each
// time.
type readiness struct {
	checks []Check

	mu     sync.Mutex
	at     time.Time
	failed []string
}

const (
	readyFor     = 500 * time.Millisecond
	readyTimeout = 2 * time.Second
)

func (y *readiness) judge(log *slog.Logger) (failed []string) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if time.Since(y.at) < readyFor {
		return y.failed
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	for _, check := range y.checks {
		if err := check.Check(ctx); err != nil {
			failed = append(failed, check.Name)
			log.Warn("not ready", "check", check.Name, "error", err)
		}
	}
	y.at, y.failed = time.Now(), failed
	return failed
}

// getReadyz says whether load balancers should send requests to this process.
func (s *Server) getReadyz(c *call) error {
	failed := s.ready.judge(s.log)
	if len(failed) == 0 {
		return c.json(200, wellBody)
	}
	c.code = "not_ready"
	b := jsontext.AppendStrings([]byte(`{"status":"unavailable","failed":`), failed)
	return c.json(503, append(b, '}'))
}

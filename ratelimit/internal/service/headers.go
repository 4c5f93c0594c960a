package service

import (
	"strconv"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/decide"
	"gatehouse/ratelimit/internal/rls"
)

// HTTPHeaders returns the response's headers that /json sends as HTTP headers: Retry-After and the draft's headers, not
// the three named by LIMIT_*_HEADER.
func (c *Call) HTTPHeaders() []rls.Header { return c.Response.Headers[c.named:] }

// describe adds a limit to the draft headers. st is its status; known is false where a failure mode made the status.
// Limits in shadow mode refuse nothing and are left out.
func (c *Call) describe(p *step, st *rls.Status, known bool) {
	if p.rule.Shadow || len(c.members) == decide.MaxMembers {
		return
	}
	m := decide.Member{Rule: p.rule, Window: p.window, Remaining: st.Remaining, Until: st.Reset}
	if known && p.hit >= 0 && p.rule.Algorithm != counter.FixedWindow && uint64(m.Remaining) < decide.Capacity(p.rule) {
		m.Until = seconds(c.batch.Hits[p.hit].Wait(uint64(m.Remaining) + 1))
	}
	c.members = append(c.members, m)
}

// addHeaders adds the headers that are configured.
func (s *Service) addHeaders(c *Call) {
	headers := c.Response.Headers
	if s.o.Headers != nil {
		headers = decide.Headers(headers, *s.o.Headers, c.Response.Statuses, c.rules, s.o.GlobalQuota)
	}
	c.named = len(headers)
	if s.o.DraftHeaders {
		headers = decide.DraftHeaders(headers, c.members)
	}
	if s.o.RetryAfter && c.Response.Overall == rls.OverLimit {
		if wait, ok := decide.RetryAfter(c.Response.Statuses, c.rules, c.unanswered, s.o.GlobalQuota); ok {
			headers = append(headers, rls.Header{Key: "Retry-After", Value: strconv.FormatInt(wait, 10)})
		}
	}
	c.Response.Headers = headers
}

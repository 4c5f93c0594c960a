package httpapi

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
)

// ConsoleCall is a request at the admin console's listener. It is read, bounded, logged and refused like a request at
// the public port. It does not count against a client's limits, and its address comes from the connection or a trusted
// proxy.
type ConsoleCall struct{ c *call }

// ServeConsole answers a request of the console with h. r.Pattern is its route for the log.
func (s *Server) ServeConsole(w http.ResponseWriter, r *http.Request, h func(ConsoleCall) error) {
	l := s.live.Load()
	c := &call{ResponseWriter: w, r: r, srv: s, live: l, id: requestID(l, r), console: true, routed: true}
	w.Header()["X-Request-Id"] = []string{c.id} // for the page, which does not know the name in the settings
	set := l.Settings
	set.ForwardedFor = false
	c.ipText, c.ipKnown = clientIP(&set, r), true
	s.run(c, r, func(c *call, _ *http.Request) {
		c.startTimeout()
		if err := h(ConsoleCall{c}); err != nil {
			c.writeError(err)
		}
	})
}

// Context returns the request's context, with the deadline.
func (cc ConsoleCall) Context() context.Context { return cc.c.ctx() }

// Body reads the whole body.
func (cc ConsoleCall) Body() ([]byte, error) { return cc.c.body() }

// Decode reads the body, which must be a JSON object.
func (cc ConsoleCall) Decode(into any) error { return cc.c.decode(into) }

// DecodeText is Decode for a body that was read before.
func (cc ConsoleCall) DecodeText(text []byte, into any) error { return decodeJSON(text, into) }

// Client returns what flows need to know about the client. It has no network, so that no place becomes known.
func (cc ConsoleCall) Client() flow.RequestInfo {
	c := cc.c
	info := flow.RequestInfo{IP: c.ip(), UserAgent: cleanText(c.r.Header.Get("User-Agent"), 1024),
		BaseURL: c.live.flows.BaseURL, RedirectTo: c.live.flows.SiteURL}
	set := c.live.Settings
	set.ForwardedFor = false
	if ip, ok := forwardedIP(&set, c.r); ok {
		info.TrustedIP = ip.String()
	}
	return info
}

// By sets the user whom the log names.
func (cc ConsoleCall) By(p flow.Principal) { cc.c.user = p.User.ID }

// Refused records in the audit log that the signed-in user may not administer.
func (cc ConsoleCall) Refused(by flow.Actor, err error) { cc.c.srv.recordRefusal(cc.c, by, err) }

// JSON answers with a JSON text.
func (cc ConsoleCall) JSON(status int, body []byte) error { return cc.c.json(status, body) }

// NoContent answers 204, unless the flow failed with err.
func (cc ConsoleCall) NoContent(err error) error { return cc.c.noContent(err) }

// Forward answers as the public port's handler of method and path answers the administrator. The handler gets a new
// request, which has no header of the client but the user agent.
func (cc ConsoleCall) Forward(by flow.Actor, method string, to *url.URL, body []byte) error {
	c := cc.c
	r := (&http.Request{Method: method, URL: to, Proto: c.r.Proto, ProtoMajor: c.r.ProtoMajor,
		ProtoMinor: c.r.ProtoMinor, Host: c.r.Host, RemoteAddr: c.r.RemoteAddr,
		Header: http.Header{"User-Agent": c.r.Header["User-Agent"]}, Body: http.NoBody}).WithContext(c.ctx())
	if len(body) > 0 {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	c.r, c.actor = r, &by
	c.srv.mux.ServeHTTP(c, r)
	return nil
}

// AppendTime appends a member with a time; key includes comma and colon. It appends nothing for the zero time.
func AppendTime(b []byte, key string, t time.Time) []byte { return fieldTime(b, key, t) }

// NotFound returns the answer for a path where there is nothing.
func NotFound() error { return errNotFound }

// BadBody returns the answer to a body that the console does not accept.
func BadBody(why string) error { return newProblem(400, refusal.CodeBadJSON, why) }

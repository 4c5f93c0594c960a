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

// ConsoleCall is a request at the admin console's listener. It is read, limited in time and size, logged and refused as
// a request at the public port is. It does not count against the rate limits of a client. Its client address comes from
// the connection or from a trusted proxy.
type ConsoleCall struct{ c *call }

// ServeConsole answers a request at the console with h. The log names it by r.Pattern.
func (s *Server) ServeConsole(w http.ResponseWriter, r *http.Request, h func(ConsoleCall) error) {
	l := s.live.Load()
	c := &call{ResponseWriter: w, r: r, srv: s, live: l, id: requestID(l, r), console: true, routed: true}
	w.Header()["X-Request-Id"] = []string{c.id} // the console's page does not know the configured name of this header
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

// Context returns the context of the request, which has the deadline of the time limit.
func (cc ConsoleCall) Context() context.Context { return cc.c.ctx() }

// Body reads the whole request body.
func (cc ConsoleCall) Body() ([]byte, error) { return cc.c.body() }

// Decode reads the body, which must be a JSON object, into a struct.
func (cc ConsoleCall) Decode(into any) error { return cc.c.decode(into) }

// DecodeText does what Decode does, with a body that has been read before.
func (cc ConsoleCall) DecodeText(text []byte, into any) error { return decodeJSON(text, into) }

// Client returns what flows need to know about the client. It names no network, so that the network of an administrator
// never becomes a known place of a user.
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

// By sets the user whom the log line names.
func (cc ConsoleCall) By(p flow.Principal) { cc.c.user = p.User.ID }

// Refused records in the audit log that the signed-in user may not administer.
func (cc ConsoleCall) Refused(by flow.Actor, err error) { cc.c.srv.recordRefusal(cc.c, by, err) }

// JSON answers with a JSON text.
func (cc ConsoleCall) JSON(status int, body []byte) error { return cc.c.json(status, body) }

// NoContent answers 204 if err, the result of a flow, is nil.
func (cc ConsoleCall) NoContent(err error) error { return cc.c.noContent(err) }

// Forward answers as the public port would answer the administrator's request with this method and path. The handler
// gets a new request, whose only header from the client is the user agent.
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

// AppendTime appends a JSON member with a time. key includes the comma before and the colon after it. For the zero
// time, AppendTime appends nothing.
func AppendTime(b []byte, key string, t time.Time) []byte { return fieldTime(b, key, t) }

// NotFound returns the error for a path at which there is nothing.
func NotFound() error { return errNotFound }

// BadBody returns the error for a body that the console does not accept.
func BadBody(why string) error { return newProblem(400, refusal.CodeBadJSON, why) }

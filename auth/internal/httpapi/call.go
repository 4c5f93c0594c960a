package httpapi

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
)

// call is one request: what the guards found out about it, and what the log will say. It is also the ResponseWriter for
// http.ServeMux, so that answers of ServeMux itself (404, 405) are replaced by answers of this package.
type call struct {
	http.ResponseWriter
	r    *http.Request
	srv  *Server
	live *liveSettings
	id   string // ID of the request

	ipText  string
	ipKnown bool
	cancel  context.CancelFunc // releases the timer of the request's time limit; nil: there is no limit

	query    url.Values // parsed on first use
	queryErr error      // what is wrong with the query

	slash   bool // the path ended in a slash
	byAdmin bool // a guard has found an administrator's token
	console bool // the request came to the admin console's listener
	// actor is the administrator who is signed in at the console and needs no token; nil at the public port.
	actor   *flow.Actor
	routed  bool // a handler of this package has the request
	retries bool // at the time limit, answer with 503 and not 504, so that the client repeats the request
	status  int
	refused int    // status of ServeMux's own answer; 0: there is none
	back    string // URL of the link on an error page, if the request's body names one

	// These fields are attributes of the request's log line.
	user uuid.UUID
	code string
	err  error
	told int // status of the problem that a redirect reports to the application
	// unlisted is a host that a proxy named, and that is not used in links because the setting EXTERNAL_HOSTS does not
	// list it.
	unlisted string
}

var noSniff = []string{"nosniff"}

// ServeHTTP answers a request. The handler that Apply has made adds CORS and calls serve.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header()["X-Content-Type-Options"] = noSniff
	if r.Method == http.MethodOptions {
		r = canonicalPreflight(r)
	}
	s.live.Load().handler.ServeHTTP(w, r)
}

func (s *Server) serve(l *liveSettings, w http.ResponseWriter, r *http.Request) {
	r, slash := l.rewritten(r)
	s.run(&call{ResponseWriter: w, r: r, srv: s, live: l, id: requestID(l, r), slash: slash}, r,
		func(c *call, r *http.Request) { c.srv.mux.ServeHTTP(c, r) })
}

// run calls answer, and records the call in telemetry and in the log.
func (s *Server) run(c *call, r *http.Request, answer func(*call, *http.Request)) {
	began := time.Now()
	c.Header()[c.live.idHeader] = []string{c.id}
	defer c.release()
	if s.observer != nil {
		r = s.observer.begin(c, r)
		defer s.observer.end(c, began)
	}
	defer s.finish(c, began)
	answer(c, r)
	if c.refused != 0 {
		c.routeError()
	}
}

// startTimeout starts the time limit of the request. It is called once a route has the request.
func (c *call) startTimeout() {
	if d := c.live.MaxDuration; d > 0 && c.cancel == nil {
		var ctx context.Context
		ctx, c.cancel = context.WithTimeout(c.r.Context(), d)
		c.r = c.r.WithContext(ctx)
	}
}

func (c *call) release() {
	if c.cancel != nil {
		c.cancel()
	}
}

// finish writes the log line of the request. If a handler has panicked, it also writes the answer.
func (s *Server) finish(c *call, began time.Time) {
	level := slog.LevelInfo
	if p := recover(); p != nil {
		if p == http.ErrAbortHandler {
			panic(p)
		}
		c.err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		if c.status != 0 {
			// A part of the answer was sent: abort the connection, so that the client notices.
			panic(http.ErrAbortHandler)
		}
		c.routed = true // so that writeError writes, even if ServeMux or a guard has panicked
		c.writeError(&problem{status: 500, code: refusal.CodeUnexpectedFailure, msg: "Internal Server Error",
			err: c.err})
	}
	if c.is(polled) && c.status < 400 {
		return
	}
	now, gone := time.Now(), int64(0)
	switch {
	case c.code == clientGone:
		if gone = s.gone.add(now); gone == 0 {
			return
		}
	case c.status >= 500 || c.told >= 500:
		level = slog.LevelError
	case c.status >= 400 || c.told >= 400:
		level = slog.LevelWarn
	}
	ctx := c.r.Context()
	if !s.log.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 13)
	attrs = append(attrs, slog.String("method", method(c.r.Method)), slog.String("route", route(c.r.Pattern)),
		slog.Int("status", c.status),
		slog.Duration("duration", now.Sub(began)), slog.String("request_id", c.id), slog.String("ip", c.ip()))
	if c.user != uuid.Nil {
		attrs = append(attrs, slog.String("user", c.user.String()))
	}
	if c.code != "" {
		attrs = append(attrs, slog.String("error_code", c.code))
	}
	if c.console {
		attrs = append(attrs, slog.Bool("console", true))
	}
	if gone > 0 {
		attrs = append(attrs, slog.Int64("count", gone))
	}
	if c.err != nil {
		attrs = append(attrs, slog.String("error", c.err.Error()))
	}
	if c.unlisted != "" {
		attrs = append(attrs, slog.String("unlisted_host", c.unlisted))
	}
	record := slog.NewRecord(now, level, "request",
		0) // no caller: LogAttrs would look it up, but it is always this line
	record.AddAttrs(attrs...)
	s.log.Handler().Handle(ctx, record) // LogAttrs also ignores the error
}

// route returns a pattern of ServeMux without its method. Unlike the path of a request, it contains nothing that a
// client has chosen.
func route(pattern string) string {
	if _, path, ok := strings.Cut(pattern, " "); ok {
		return path
	}
	return pattern // a pattern for any method
}

// requestID returns the ID that came with the request, if it is short and printable, otherwise a new one.
func requestID(l *liveSettings, r *http.Request) string {
	if l.RequestIDHeader != "" {
		if v := r.Header[l.idHeader]; len(v) > 0 && printable(v[0]) {
			return v[0]
		}
	}
	var id uuid.UUID
	rand.Read(id[:]) // never fails
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id.String()
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return s != "" && len(s) <= 128
}

// WriteHeader writes the status, but only for answers of this package. Before a route has the request, the caller is
// ServeMux, which answers in plain text. The client library cannot read that, so the status is only recorded, and
// routeError answers instead.
func (c *call) WriteHeader(status int) {
	if !c.routed {
		c.refused = status
		return
	}
	if c.status == 0 {
		c.status = status
	}
	c.ResponseWriter.WriteHeader(status)
}

func (c *call) Write(b []byte) (int, error) {
	if !c.routed {
		return len(b), nil
	}
	return c.ResponseWriter.Write(b)
}

// Unwrap returns the underlying ResponseWriter, for http.ResponseController.
func (c *call) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// routeError answers instead of ServeMux: with 405 if the path has other methods, otherwise with 404, even if ServeMux
// would redirect to a cleaned path.
func (c *call) routeError() {
	h := c.Header()
	delete(h, "Location")
	p := c.notFound()
	switch {
	case c.hidesPasskeys():
		delete(h, "Allow")
		p = noPasskeys
	case c.refused == http.StatusMethodNotAllowed:
		p = &problem{status: 405, code: refusal.CodeMethodNotAllowed,
			msg: fmt.Sprintf("This path does not know the method %.32s", c.r.Method)}
	}
	c.routed = true
	c.writeError(p)
}

var errNotFound = newProblem(404, refusal.CodeNotFound, "There is nothing at this path")

// ctx returns the context of the request, which has the deadline of the time limit.
func (c *call) ctx() context.Context { return c.r.Context() }

var jsonType, noStore = []string{"application/json"}, []string{"no-store"}

// json answers with a JSON text. Answers about accounts are private, so no cache may store them.
func (c *call) json(status int, body []byte) error {
	h := c.Header()
	h["Content-Type"] = jsonType
	if h["Cache-Control"] == nil {
		h["Cache-Control"] = noStore
	}
	c.WriteHeader(status)
	c.ResponseWriter.Write(body) // an error means that the client has gone
	return nil
}

// empty answers 200 with {} if err, the result of a flow, is nil.
func (c *call) empty(err error) error {
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, emptyObject)
}

var emptyObject = []byte("{}")

// noContent answers 204 if err, the result of a flow, is nil.
func (c *call) noContent(err error) error {
	if err != nil {
		return err
	}
	c.Header()["Cache-Control"] = noStore
	c.WriteHeader(http.StatusNoContent)
	return nil
}

// timedOut reports whether the request's time limit has passed.
func (c *call) timedOut() bool { return errors.Is(c.ctx().Err(), context.DeadlineExceeded) }

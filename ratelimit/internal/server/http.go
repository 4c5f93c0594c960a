// Package server has the handlers and servers behind the daemon's listeners: gRPC, HTTP with /json and /healthcheck,
// and the debug port.
//
// It converts wire messages to service.Call and back. It does not know how requests are counted.
package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/protobuf/encoding/protojson"

	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/httpx"
)

// HTTPSettings are the environment variables of the HTTP listener. The bounds on reading and idling also apply to the
// other HTTP listeners.
type HTTPSettings struct {
	// Longest body of /json, in bytes; a longer body is answered with 413.
	BodyBytes int64 `env:"HTTP_MAX_BODY_BYTES" envDefault:"1048576" min:"1"`
	// Time a client has to send the header of an HTTP request.
	HeaderTimeout time.Duration `env:"HTTP_READ_HEADER_TIMEOUT" envDefault:"5s" min:"1ms"`
	// Time a client has to send a whole HTTP request.
	ReadTimeout time.Duration `env:"HTTP_READ_TIMEOUT" envDefault:"15s" min:"1ms"`
	// Time a decision over HTTP may take, since HTTP clients send no deadline. Afterwards the store's failure mode
	// answers.
	Timeout time.Duration `env:"HTTP_REQUEST_TIMEOUT" envDefault:"10s" min:"1ms"` // not 0: no bound but the store's
	// Time from the end of an HTTP request's header to the end of its answer. Must be longer than HTTP_REQUEST_TIMEOUT.
	WriteTimeout time.Duration `env:"HTTP_WRITE_TIMEOUT" envDefault:"30s" min:"1ms"`
	// How long a kept-alive HTTP connection may rest between requests.
	IdleTimeout time.Duration `env:"HTTP_IDLE_TIMEOUT" envDefault:"2m" min:"1ms"`
}

// Timeouts returns the bounds on a listener's connections. write is the bound on writing an answer; 0 means none.
func (s HTTPSettings) Timeouts(write time.Duration) httpx.Timeouts {
	return httpx.Timeouts{Header: s.HeaderTimeout, Read: s.ReadTimeout, Write: write, Idle: s.IdleTimeout}
}

// HTTPOptions are the options of the HTTP listener.
type HTTPOptions struct {
	HTTPSettings
	Service *service.Service
	Health  *Health
	Stats   *stats.Registry
	Log     *slog.Logger
	// Tracing records a span for each decision; nil means no tracing.
	Tracing *Tracing
}

// NewHTTP returns the handler of the HTTP listener. It serves /json and /healthcheck, and answers other paths with 404.
func NewHTTP(o HTTPOptions) http.Handler {
	j := &jsonHandler{
		HTTPOptions: o,
		requests:    o.Stats.Counter("ratelimit_server.json.total_requests"),
		took:        o.Stats.Timer("ratelimit_server.json.response_time"),
	}
	mux := http.NewServeMux()
	if o.Tracing != nil {
		mux.Handle("POST /json", o.Tracing.http("/json", j))
	} else {
		mux.Handle("POST /json", j)
	}
	mux.HandleFunc("/json", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", http.MethodPost)
		writeError(w, http.StatusMethodNotAllowed, "UNIMPLEMENTED", "/json takes POST, not "+r.Method)
	})
	mux.Handle("/healthcheck", o.Health)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, http.StatusNotFound, "NOT_FOUND", "there are /json and /healthcheck here")
	})
	return recovered(mux, o.Log, o.Stats.Counter(panicStat))
}

type jsonHandler struct {
	HTTPOptions
	requests *stats.Counter
	took     *stats.Timer
}

// ServeHTTP answers POST /json: with 200 if the request is within its limits, 429 if it is over one.
func (h *jsonHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	h.requests.Inc()
	defer func() { h.took.Observe(time.Since(start)) }()

	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.BodyBytes))
	if tooLong, ok := errors.AsType[*http.MaxBytesError](err); ok {
		h.Service.NoteRefused(service.TooLong, err)
		writeError(w, http.StatusRequestEntityTooLarge, "RESOURCE_EXHAUSTED",
			"the body is longer than "+byteCount(tooLong.Limit))
		return
	}
	if err != nil {
		writeError(w, http.StatusBadRequest, "INVALID_ARGUMENT", "the body could not be read")
		return
	}
	var in pb.RateLimitRequest
	if err := protojson.Unmarshal(body, &in); err != nil {
		h.Service.NoteRefused(service.Malformed, err)
		writeError(w, http.StatusBadRequest, "INVALID_ARGUMENT", badBody(body, err))
		return
	}
	var c service.Call
	fromProto(&c.Request, &in)
	ctx := r.Context()
	if h.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, h.Timeout)
		defer cancel()
	}
	if err := h.Service.Decide(ctx, &c, h.Service.Now()); err != nil {
		writeRefusal(w, err)
		return
	}
	if h.Tracing != nil {
		_, span := h.Tracing.Tracer.Start(ctx, "NewJsonHandler Remaining Execution")
		defer span.End()
		if h.Tracing.Answers && span.IsRecording() {
			span.SetAttributes(attribute.String("response", protojson.Format(toProto(&c.Response))))
		}
	}
	out, err := protojson.Marshal(toProto(&c.Response))
	if err != nil {
		h.Log.Error("encoding an answer of /json", "error", err)
		writeError(w, http.StatusInternalServerError, "INTERNAL", "internal error")
		return
	}
	for _, h := range c.HTTPHeaders() {
		w.Header().Set(h.Key, h.Value)
	}
	w.Header().Set("Content-Type", "application/json")
	if c.Response.Overall == rls.OverLimit {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	w.Write(out)
}

// badBody returns the reason why a body is not a valid request. The errors of protojson say little about an empty body,
// and begin with a space that varies from build to build.
func badBody(body []byte, err error) string {
	if len(bytes.TrimSpace(body)) == 0 {
		return `the body is empty; want {"domain": "…", "descriptors": [{"entries": [{"key": "…", "value": "…"}]}]}`
	}
	return "the body is no RateLimitRequest: " + strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0")
}

func writeRefusal(w http.ResponseWriter, err error) {
	refusal, ok := errors.AsType[*service.Refusal](err)
	switch {
	case !ok:
		writeError(w, http.StatusInternalServerError, "INTERNAL", "internal error")
	case refusal == service.ErrNoRules:
		// Answer 400, as envoyproxy/ratelimit does and clients rely on, although the client cannot correct anything.
		writeError(w, http.StatusBadRequest, "UNAVAILABLE", refusal.Msg)
	case refusal.Kind == service.Invalid:
		writeError(w, http.StatusBadRequest, "INVALID_ARGUMENT", refusal.Msg)
	case refusal.Kind == service.TimedOut:
		writeError(w, http.StatusServiceUnavailable, "DEADLINE_EXCEEDED", refusal.Msg)
	default:
		writeError(w, http.StatusServiceUnavailable, "UNAVAILABLE", refusal.Msg)
	}
}

// writeError answers with an error as JSON: {"code":"INVALID_ARGUMENT","message":"…"}. The codes have gRPC's names.
func writeError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // nosniff keeps browsers from reading the answer as HTML
	e.Encode(struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}{code, message})
}

// recovered returns h with the answer 500 to a request whose handler panics. It counts and logs the panic, and keeps
// the connection open.
func recovered(h http.Handler, log *slog.Logger, panics *stats.Counter) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch p := recover(); p {
			case nil:
			case http.ErrAbortHandler:
				panic(p)
			default:
				reportPanic(log, panics, p)
				writeError(w, http.StatusInternalServerError, "INTERNAL", "internal error")
			}
		}()
		h.ServeHTTP(w, r)
	})
}

func reportPanic(log *slog.Logger, panics *stats.Counter, p any) {
	panics.Inc()
	log.Error("a request panicked; this is a bug", "panic", p, "stack", string(debug.Stack()))
}

// Package hook calls the operator's own code at certain points, for example before a user is created (docs/hooks.md). A
// hook is an HTTP endpoint, whose requests are signed as defined by Standard Webhooks, or a PostgreSQL function.
//
// The package knows the form of the calls and of their answers, not when a hook is called. Callers must not hold a
// transaction open during a call. A receiver's report of a failure goes to the log; a client sees only the fixed texts
// of this package, or the message that the receiver has written for clients.
package hook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/outbound"
)

// Point is a point at which a hook is called. Its text is sent to the hook as metadata.name.
type Point string

// The seven points at which a hook can be called.
const (
	SendSMS           Point = "send-sms"
	SendEmail         Point = "send-email"
	CustomAccessToken Point = "customize-access-token"
	FactorAttempt     Point = "mfa-verification"
	PasswordAttempt   Point = "password-verification"
	BeforeUserCreated Point = "before-user-created"
	AfterUserCreated  Point = "after-user-created"
)

// Limits of one call of a hook.
const (
	budget        = 5 * time.Second // of an HTTP call with all its attempts
	pause         = 2 * time.Second // after an attempt that failed without an answer
	attempts      = 3
	maxAnswer     = 200 << 10 // bytes
	FunctionLimit = 2 * time.Second
)

// The codes of errors, which are for clients.
const (
	CodeTimeout           = "hook_timeout"
	CodeTimeoutAfterRetry = "hook_timeout_after_retry"
	CodeOverSize          = "hook_payload_over_size_limit"
	CodeContentType       = "hook_payload_invalid_content_type"
	CodeFailed            = "unexpected_failure"
	// CodeRefused means that the hook refused with a 4xx status.
	CodeRefused = "hook_refused"
)

// Error is the error of a call that has no usable answer. Status, Code and Msg are for the client, Err is for the log.
type Error struct {
	Status    int // 400 to 599
	Code, Msg string
	Err       error
	// Refused is true if the receiver has answered with an error message for the client.
	Refused bool
}

func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Msg, e.Err)
	}
	return e.Code + ": " + e.Msg
}

func (e *Error) Unwrap() error { return e.Err }

// ErrFunctionTime is the error that Functions returns for a function that took longer than FunctionLimit.
var ErrFunctionTime = errors.New("the function took too long")

// Functions calls a PostgreSQL function that has one JSON parameter, and returns its result as JSON text, which is
// empty for void and null. The call must not take longer than FunctionLimit.
type Functions func(ctx context.Context, schema, function string, input []byte) ([]byte, error)

// Options are the dependencies of a Set.
type Options struct {
	Functions Functions
	Now       func() time.Time // nil: time.Now
	// Pause and Budget replace, in tests, the pause between attempts and the time for a call with all its attempts; 0:
	// 2 s and 5 s.
	Pause, Budget time.Duration
	// Watch is called for each call, also of a function. Inject adds the headers of the call's trace to an HTTP
	// request. nil: off.
	Watch  outbound.Watch
	Inject func(context.Context, http.Header)
}

// Set has the targets of the points that have a hook. It is immutable. A nil Set has no hooks.
type Set struct {
	o       Options
	targets map[Point]Target
	clients outbound.Clients
}

// NewSet returns a Set with the given targets, or nil if there are none.
func NewSet(o Options, targets map[Point]Target) *Set {
	if len(targets) == 0 {
		return nil
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Pause <= 0 {
		o.Pause = pause
	}
	if o.Budget <= 0 {
		o.Budget = budget
	}
	s := &Set{o: o, targets: targets,
		clients: outbound.New(outbound.Options{Timeout: o.Budget, MaxBytes: maxAnswer, Watch: o.Watch,
			Inject: o.Inject})}
	s.clients.Configured.CheckRedirect = outbound.NoRedirect // a call goes only to the configured host
	return s
}

// Close closes idle connections. Calls under way continue.
func (s *Set) Close() {
	if s != nil {
		s.clients.CloseIdle()
	}
}

// On reports whether a point has a hook.
func (s *Set) On(p Point) bool {
	if s == nil {
		return false
	}
	_, on := s.targets[p]
	return on
}

// metadata is the member "metadata" of every input, which describes the call.
type metadata struct {
	UUID string `json:"uuid"`
	Time string `json:"time"` // RFC 3339
	Name Point  `json:"name"`
	IP   string `json:"ip_address"`
}

// Call calls the hook of point p, if there is one. input has the members that the point defines; Call adds metadata.
// The answer, if there is one, is decoded into output unless output is nil. The error wraps an *Error.
func (s *Set) Call(ctx context.Context, p Point, ip string, input map[string]any, output any) error {
	t, on := s.targets[p]
	if !on {
		return nil
	}
	body := make(map[string]any, len(input)+1)
	for name, v := range input {
		body[name] = v
	}
	body["metadata"] = metadata{UUID: uuid.NewString(), Time: s.o.Now().UTC().Format(time.RFC3339), Name: p, IP: ip}
	text, err := json.Marshal(body)
	if err != nil {
		return failed("Error invoking hook", err)
	}
	var answer []byte
	if t.function != "" {
		answer, err = s.callFunction(ctx, p, t, text)
	} else {
		answer, err = s.post(s.clients.WithTarget(ctx, called(p)), t, text)
	}
	if err != nil {
		return fmt.Errorf("hook %s: %w", p, err)
	}
	if err := refusal(answer); err != nil {
		return fmt.Errorf("hook %s: %w", p, err)
	}
	if output != nil && len(answer) > 0 {
		if err := json.Unmarshal(answer, output); err != nil {
			return fmt.Errorf("hook %s: %w", p, failed("Error unmarshaling hook output", err))
		}
	}
	return nil
}

// refusal returns an *Error if the answer is {"error": {"http_code", "message"}} with a message. An http_code outside
// of 400 to 599 counts as 500.
func refusal(answer []byte) error {
	var a struct {
		Error struct {
			Status  json.Number `json:"http_code"`
			Message string      `json:"message"`
		} `json:"error"`
	}
	if len(answer) == 0 {
		return nil
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return failed("Error unmarshaling hook output", err)
	}
	if a.Error.Message == "" {
		return nil
	}
	e := &Error{Status: 500, Code: CodeFailed, Msg: a.Error.Message, Refused: true}
	if n, err := a.Error.Status.Int64(); err == nil && n >= 400 && n <= 599 {
		e.Status = int(n)
	}
	if e.Status < 500 {
		e.Code = CodeRefused
	}
	return e
}

func failed(msg string, err error) *Error {
	return &Error{Status: 500, Code: CodeFailed, Msg: msg, Err: err}
}

// called returns the name under which Watch sees the calls of a point.
func called(p Point) string { return "hook " + string(p) }

// callFunction calls a target that is a PostgreSQL function.
func (s *Set) callFunction(ctx context.Context, p Point, t Target, body []byte) (out []byte, err error) {
	if s.o.Watch != nil {
		var done func(int, error)
		ctx, done = s.o.Watch(ctx, outbound.Call{Target: called(p)})
		defer func() { done(0, err) }()
	}
	out, err = s.o.Functions(ctx, t.schema, t.function, body)
	switch {
	case errors.Is(err, ErrFunctionTime):
		return nil, timeout(FunctionLimit, err)
	case err != nil:
		return nil, failed("Error invoking hook", err)
	case len(out) > maxAnswer:
		return nil, overSize()
	}
	return out, nil
}

func timeout(after time.Duration, err error) *Error {
	return &Error{Status: 422, Code: CodeTimeout, Err: err,
		Msg: fmt.Sprintf("Failed to reach hook within maximum time of %f seconds", after.Seconds())}
}

func overSize() *Error {
	return &Error{Status: 422, Code: CodeOverSize,
		Msg: fmt.Sprintf("Payload size exceeds size limit of %d bytes", maxAnswer)}
}

// Package hook calls the operator's own code at points of the flows (docs/hooks.md): an HTTP endpoint, whose requests
// are signed as Standard Webhooks are, or a PostgreSQL function.
//
// It knows the calls and the form of their answers, not when a hook is called. No hook is called while a transaction is
// open. A receiver's report of a failure goes to the log; a client sees the fixed texts of this package, or the message
// that the receiver has written for clients.
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

// Point is a point at which a hook is called. The text is the point's name in the metadata of the hook's input.
type Point string

// The seven points.
const (
	SendSMS           Point = "send-sms"
	SendEmail         Point = "send-email"
	CustomAccessToken Point = "customize-access-token"
	FactorAttempt     Point = "mfa-verification"
	PasswordAttempt   Point = "password-verification"
	BeforeUserCreated Point = "before-user-created"
	AfterUserCreated  Point = "after-user-created"
)

// Limits of a call.
const (
	budget        = 5 * time.Second // of an HTTP call with all its attempts
	pause         = 2 * time.Second // after an attempt without an answer
	attempts      = 3
	maxAnswer     = 200 << 10 // bytes
	FunctionLimit = 2 * time.Second
)

// The codes of errors.
const (
	CodeTimeout           = "hook_timeout"
	CodeTimeoutAfterRetry = "hook_timeout_after_retry"
	CodeOverSize          = "hook_payload_over_size_limit"
	CodeContentType       = "hook_payload_invalid_content_type"
	CodeFailed            = "unexpected_failure"
	// CodeRefused: the receiver refused with a status other than 500.
	CodeRefused = "hook_refused"
)

// Error is why a call has no usable answer. Status and Msg are for the client, Err for the log.
type Error struct {
	Status    int // 400 to 599
	Code, Msg string
	Err       error
	// Refused: the receiver answered, and refused.
	Refused bool
}

func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Msg, e.Err)
	}
	return e.Code + ": " + e.Msg
}

func (e *Error) Unwrap() error { return e.Err }

// ErrFunctionTime is the error of a Functions if a function took longer than FunctionLimit.
var ErrFunctionTime = errors.New("the function took too long")

// Functions calls a PostgreSQL function of one JSON parameter, within FunctionLimit, and returns its result
// as JSON text; empty for void and null.
type Functions func(ctx context.Context, schema, function string, input []byte) ([]byte, error)

// Options are the dependencies of a Set.
type Options struct {
	Functions Functions
	Now       func() time.Time // nil: time.Now
	// Pause and Budget replace the pause between attempts and the budget in tests; 0: 2 s and 5 s.
	Pause, Budget time.Duration
	// Watch is called for each call, even of a function; Inject adds the headers of the call's trace. nil: off.
	Watch  outbound.Watch
	Inject func(context.Context, http.Header)
}

// Set has the hooks that are on. It never changes. A nil Set has no hooks.
type Set struct {
	o       Options
	targets map[Point]Target
	clients outbound.Clients
}

// NewSet returns the set of the given targets; nil if there are none.
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

// metadata is the member of every input that describes the call.
type metadata struct {
	UUID string `json:"uuid"`
	Time string `json:"time"` // RFC 3339
	Name Point  `json:"name"`
	IP   string `json:"ip_address"`
}

// Call calls the hook of a point. input has the point's own members; Call adds metadata. The answer, if any, is decoded
// into output, which may be nil. The error is an *Error.
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

// refusal returns the answer's {"error": {"http_code", "message"}}, if it has a message. A code that is not the status
// of an error counts as 500.
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

// called returns a point's name for Watch.
func called(p Point) string { return "hook " + string(p) }

// callFunction calls a function of the database.
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

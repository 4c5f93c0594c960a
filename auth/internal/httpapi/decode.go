package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"strings"
	"time"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/jsontext"
)

// maxBody is the maximum length of a request body in bytes.
const maxBody = 1 << 20

// body reads the whole request body, within the request's time limit.
func (c *call) body() (text []byte, err error) {
	if c.r.ContentLength > maxBody {
		c.Header()["Connection"] = []string{"close"} // do not read the rest of the body
		return nil, tooLarge()
	}
	if c.r.Body == nil || c.r.Body == http.NoBody {
		return nil, nil
	}
	if deadline, ok := c.ctx().Deadline(); ok {
		conn := http.NewResponseController(c.ResponseWriter)
		conn.SetReadDeadline(deadline) // fails for the recorders of tests
		// After the body was read, net/http keeps reading from the connection, to notice a client that hangs up. It
		// would take the deadline for a hang-up, so the deadline is removed. After an error it stays, so that net/http
		// does not wait for the rest of the body.
		defer func() {
			if err == nil {
				conn.SetReadDeadline(time.Time{})
			}
		}()
	}
	var buf []byte
	if n := c.r.ContentLength; n > 0 {
		buf = make([]byte, 0, min(n+1, 64<<10)) // bounded: a client may announce more than it sends
	} else {
		buf = make([]byte, 0, 512)
	}
	in := http.MaxBytesReader(c.ResponseWriter, c.r.Body, maxBody)
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := in.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			return buf, nil
		}
		if err == nil {
			continue
		}
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, tooLarge()
		}
		if errors.Is(err, os.ErrDeadlineExceeded) || c.timedOut() {
			p := problemTimeout
			p.err = err
			return nil, &p
		}
		return nil, &problem{status: 400, code: refusal.CodeBadJSON, msg: "Could not read the request body", err: err}
	}
}

// rewind makes text the body of the request, so that it can be read again.
func (c *call) rewind(text []byte) { c.r.Body = io.NopCloser(bytes.NewReader(text)) }

// optional makes h read an empty body as an empty JSON object.
func optional(h handler) handler {
	return func(c *call) error {
		text, err := c.body()
		if err != nil {
			return err
		}
		if len(text) == 0 {
			text = []byte("{}")
		}
		c.rewind(text)
		return h(c)
	}
}

func tooLarge() *problem {
	return newProblem(413, refusal.CodeRequestEntityTooLarge,
		fmt.Sprintf("Request body too large (max %d bytes)", maxBody))
}

// decode reads the body, which must be a JSON object, into a struct. Unknown members are ignored, and null stands for
// the zero value.
func (c *call) decode(into any) error {
	text, err := c.body()
	if err != nil {
		return err
	}
	return decodeJSON(text, into)
}

// decodeGiven does what decode does, but accepts an empty body, and then leaves the struct unchanged.
func (c *call) decodeGiven(into any) error {
	text, err := c.body()
	if err != nil || len(text) == 0 {
		return err
	}
	return decodeJSON(text, into)
}

func decodeJSON(text []byte, into any) error {
	if err := jsontext.CheckJSONB(text); err != nil {
		return badJSON(err.Error())
	}
	err := json.Unmarshal(text, into)
	if err == nil {
		return nil
	}
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return badJSON(mistyped(t))
	}
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		return badJSON(fmt.Sprintf("%s at byte %d", s.Error(), s.Offset))
	}
	return badJSON("it does not have the expected form")
}

// mistyped returns an error text that says which type a member must have. It does not name Go types such as Challenge,
// which other request types embed.
func mistyped(t *json.UnmarshalTypeError) string {
	name := "the body"
	if t.Field != "" {
		name = "member " + strings.TrimPrefix(strings.TrimPrefix(t.Field, "Challenge."), "IDTokenRequest.")
	}
	switch t.Type.Kind() {
	case reflect.String:
		return name + " must be a string"
	case reflect.Bool:
		return name + " must be true or false"
	}
	return name + " must be an object"
}

const notJSON = "Could not parse request body as JSON: "

func badJSON(why string) *problem { return newProblem(400, refusal.CodeBadJSON, notJSON+why) }

// reworded returns err unchanged unless err says that the body is not JSON. In that case the given words replace the
// beginning of its text.
func reworded(err error, words string) error {
	p, ok := err.(*problem)
	if !ok || !strings.HasPrefix(p.msg, notJSON) {
		return err
	}
	said := *p
	said.msg = words + strings.TrimPrefix(p.msg, notJSON)
	return &said
}

// retryIn rounds a duration up to whole seconds, at least one.
func retryIn(d time.Duration) time.Duration {
	return max(time.Second, (d + time.Second - 1).Truncate(time.Second))
}

package httpapi

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/jsontext"
)

// apiVersion is the version of supabase/auth's API, a date, in which the form of errors changed. A client that requests
// this version or a newer one gets errors in the new form, and this date in a header.
const apiVersion = "2024-01-01"

// problem is a failure with its HTTP status.
type problem struct {
	status     int
	code, msg  string
	retryAfter time.Duration
	weak       []string // reasons why a password is weak
	// oauth is set if the body has the form of RFC 6749, as at endpoints of that standard.
	oauth bool
	err   error // only for the log
}

func (p *problem) Error() string {
	if p.err != nil {
		return p.code + ": " + p.msg + ": " + p.err.Error()
	}
	return p.code + ": " + p.msg
}

func (p *problem) Unwrap() error { return p.err }

func newProblem(status int, code, msg string) *problem {
	return &problem{status: status, code: code, msg: msg}
}

func invalidRequest(msg string) *problem { return newProblem(400, refusal.CodeValidationFailed, msg) }

// statusOf has the HTTP status of each kind of refusal.
var statusOf = [...]int{
	refusal.KindInvalid: 400, refusal.KindUnauthenticated: 401, refusal.KindDenied: 403, refusal.KindMissing: 404,
	refusal.KindUnprocessable: 422, refusal.KindLimited: 429, refusal.KindFailed: 500, refusal.KindUnavailable: 503,
}

var problemTimeout = problem{status: http.StatusGatewayTimeout, code: refusal.CodeRequestTimeout,
	msg: "Processing this request timed out, please retry after a moment.", retryAfter: time.Second}

// problemOf converts an error to a problem. An error whose text is not meant for the client becomes a general sentence.
func (c *call) problemOf(err error) *problem {
	if c.hungUp() {
		return &problem{status: statusClientGone, code: clientGone, err: err}
	}
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	if r, ok := errors.AsType[*refusal.Refusal](err); ok {
		p := &problem{status: 500, code: r.Code, msg: r.Msg, retryAfter: r.RetryAfter, err: err}
		if int(r.Kind) < len(statusOf) && statusOf[r.Kind] != 0 {
			p.status = statusOf[r.Kind]
		}
		if r.Status != 0 {
			p.status = r.Status
		}
		if r.Weak != nil {
			p.weak = r.Weak.Reasons
		}
		// At the time limit, the answer is 504, except in two cases, which keep the refusal's 503: a refresh, which the
		// client repeats only after a 503, and a request that waited for a password worker.
		if r.Kind == refusal.KindUnavailable && c.timedOut() && !r.Busy() && !c.retries {
			p.status, p.code, p.msg = problemTimeout.status, problemTimeout.code, problemTimeout.msg
		}
		return p
	}
	if c.timedOut() {
		p := problemTimeout
		p.err = err
		return &p
	}
	return &problem{status: 500, code: refusal.CodeUnexpectedFailure, err: err,
		msg: "Unexpected failure, please check server logs for more information"}
}

var bearerScheme = []string{"Bearer"}

// writeError answers a failed request.
func (c *call) writeError(err error) {
	p := c.problemOf(err)
	c.code = p.code
	if c.err == nil && (p.status >= 500 || p.err != nil) {
		c.err = p.err
	}
	h := c.Header()
	if !p.oauth { // the error codes of RFC 6749 are not codes of this API
		h["X-Sb-Error-Code"] = []string{p.code}
	}
	if p.status == http.StatusUnauthorized { // required by RFC 9110, section 11.6.1
		h["Www-Authenticate"] = bearerScheme
	}
	if p.retryAfter > 0 {
		h["Retry-After"] = []string{strconv.Itoa(int(math.Ceil(p.retryAfter.Seconds())))}
	}
	dated := newForm(c.r)
	if dated {
		h["X-Supabase-Api-Version"] = []string{apiVersion}
	}
	if c.is(browsed) && prefersHTML(c.r.Header["Accept"]) {
		c.errorPage(p)
		return
	}
	status := p.status
	var b []byte
	switch {
	case p.oauth:
		status = http.StatusBadRequest
		b = append(jsontext.AppendString(append(b, `{"error":`...), p.code), `,"error_description":`...)
		b = append(jsontext.AppendString(b, p.msg), '}')
	case dated:
		b = append(jsontext.AppendString(append(b, `{"code":`...), p.code), `,"message":`...)
		b = appendReasons(jsontext.AppendString(b, p.msg), p.weak)
		b = append(b, '}')
	default:
		b = append(strconv.AppendInt(append(b, `{"code":`...), int64(status), 10), `,"error_code":`...)
		b = append(jsontext.AppendString(b, p.code), `,"msg":`...)
		b = jsontext.AppendString(b, p.msg)
		if status >= 500 {
			b = jsontext.AppendString(append(b, `,"error_id":`...), c.id)
		}
		b = append(appendReasons(b, p.weak), '}')
	}
	c.json(status, b)
}

func appendReasons(b []byte, reasons []string) []byte {
	if len(reasons) == 0 {
		return b
	}
	b = append(b, `,"weak_password":{"reasons":`...)
	return append(jsontext.AppendStrings(b, reasons), '}')
}

// newForm reports whether the client requests apiVersion or a newer version. A header that is not a date counts as
// missing.
func newForm(r *http.Request) bool {
	v := r.Header["X-Supabase-Api-Version"]
	if len(v) == 0 {
		return false
	}
	if v[0] == apiVersion {
		return true
	}
	day, err := time.Parse(time.DateOnly, v[0])
	return err == nil && day.Format(time.DateOnly) >= apiVersion
}

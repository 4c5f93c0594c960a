package h2grpc

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
)

const contentType = "application/grpc"

// header is the header block of a request, interpreted.
type header struct {
	// malformed means that the block violates HTTP/2's rules for requests, so that the stream is reset.
	malformed bool
	// refusal says why the request is refused; nil if it is not.
	refusal *refusal
	method  method
	subtype string
	// encoding is the name of the compression of messages; empty if messages are not compressed.
	encoding string
	// timed means that the request has a deadline; timeout is the time from its arrival to the deadline.
	timed   bool
	timeout time.Duration
	length  int64               // the content-length in bytes; -1: none
	fields  []hpack.HeaderField // all fields; kept only for tracing
}

// refusal is an answer that has a status but no message.
type refusal struct {
	status  int // the HTTP status; 0 means 200
	code    codes.Code
	message string
	subtype string
}

// request is a request's header while its fields are read.
type request struct {
	header header

	method, path, scheme string
	pseudo               int    // how many of method, path and scheme have come
	regular              bool   // a field that is no pseudo-header field has come
	contentType          string // the content type if it is not one of gRPC's
	isGRPC               bool
	authorities, hosts   int
	bad                  *refusal // the refusal of a malformed timeout or binary field
}

// pseudoField processes a pseudo-header field: method, path, scheme or authority. Each may come once, and before all
// other fields (RFC 9113, section 8.3).
func (q *request) pseudoField(f hpack.HeaderField) {
	var into *string
	switch f.Name {
	case ":method":
		into = &q.method
	case ":path":
		into = &q.path
	case ":scheme":
		into = &q.scheme
	}
	switch {
	case q.regular:
		q.header.malformed = true
	case f.Name == ":authority" && q.authorities == 0:
		q.authorities++
	case into == nil || *into != "" || f.Value == "":
		q.header.malformed = true
	default:
		*into = f.Value
		q.pseudo++
	}
}

func (q *request) regularField(f hpack.HeaderField) {
	h := &q.header
	q.regular = true
	h.malformed = h.malformed || !validName(f.Name) || !validValue(f.Value)
	switch f.Name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		h.malformed = true
	case "te":
		h.malformed = h.malformed || f.Value != "trailers"
	case "host":
		q.hosts++
	case "content-type":
		if sub, ok := grpcSubtype(f.Value); ok {
			q.isGRPC, h.subtype = true, sub
		} else {
			q.contentType = f.Value
		}
	case "content-length":
		n, err := strconv.ParseInt(f.Value, 10, 64)
		h.malformed = h.malformed || err != nil || n < 0 || h.length >= 0 && n != h.length
		h.length = n
	case "grpc-encoding":
		if h.encoding = f.Value; f.Value == encoding.Identity {
			h.encoding = ""
		}
	case "grpc-timeout":
		d, err := parseTimeout(f.Value)
		if err != nil {
			q.bad = badRequest("malformed grpc-timeout: " + err.Error())
		}
		h.timed, h.timeout = true, d
	default:
		if strings.HasSuffix(f.Name, "-bin") && !validBinary(f.Value) {
			q.bad = badRequest("malformed binary metadata in header " + strconv.Quote(f.Name))
		}
	}
}

// refused returns why the request is refused, or nil if it is not. If several things are wrong, it returns the same as
// grpc-go.
func (q *request) refused() *refusal {
	switch {
	case q.hosts > 1:
		return badRequest(fmt.Sprintf(
			"num values of :authority: %v, num values of host: %v, both must only have 1 value as per HTTP/2 spec",
			q.authorities, q.hosts))
	case !q.isGRPC:
		return &refusal{status: http.StatusUnsupportedMediaType, code: codes.InvalidArgument,
			message: fmt.Sprintf("invalid gRPC request content-type %q", q.contentType)}
	case q.bad != nil:
		return q.bad
	case q.authorities+q.hosts == 0:
		return badRequest("no host or :authority header present")
	case q.method != http.MethodPost:
		return &refusal{status: http.StatusMethodNotAllowed, code: codes.Internal,
			message: fmt.Sprintf("Received a HEADERS frame with :method %q which should be POST", q.method)}
	case q.header.timed && q.header.timeout <= 0:
		return &refusal{code: codes.DeadlineExceeded, message: "context deadline exceeded"}
	}
	return nil
}

func badRequest(message string) *refusal {
	return &refusal{status: http.StatusBadRequest, code: codes.Internal, message: message}
}

// method is the gRPC method that the path of a request names.
type method uint8

const (
	methodUnknown method = iota
	methodDecide         // ShouldRateLimit
	methodCheck
	methodList
	methodWatch
)

const healthService = "grpc.health.v1.Health"

// methodOf returns the method that a path names. decides is the path of ShouldRateLimit.
func methodOf(path, decides string) method {
	switch path {
	case decides:
		return methodDecide
	case "/" + healthService + "/Check":
		return methodCheck
	case "/" + healthService + "/List":
		return methodList
	case "/" + healthService + "/Watch":
		return methodWatch
	}
	return methodUnknown
}

// unimplemented returns the refusal of a path that names no method, with the same text as grpc-go. decides is the path
// of ShouldRateLimit.
func unimplemented(path, decides string) *refusal {
	r := &refusal{code: codes.Unimplemented, message: fmt.Sprintf("malformed method name: %q", path)}
	rest, slash := strings.CutPrefix(path, "/")
	at := strings.LastIndexByte(rest, '/')
	if !slash || at < 0 {
		return r
	}
	service, name := rest[:at], rest[at+1:]
	r.message = "unknown service " + service
	if service == healthService || strings.HasPrefix(decides, "/"+service+"/") {
		r.message = "unknown method " + name + " for service " + service
	}
	return r
}

// grpcSubtype returns the part of a content type after application/grpc and a + or ;. ok is false for any other content
// type.
func grpcSubtype(s string) (sub string, ok bool) {
	s = strings.ToLower(s)
	rest, ok := strings.CutPrefix(s, contentType)
	if !ok || rest == "" {
		return "", ok
	}
	return rest[1:], rest[0] == '+' || rest[0] == ';'
}

// validName reports whether a field name is lower case and a token, as HTTP/2 requires (RFC 9113, section 8.2.1).
func validName(name string) bool {
	return httpguts.ValidHeaderFieldName(name) && name == strings.ToLower(name)
}

func validValue(v string) bool {
	for i := range len(v) {
		if c := v[i]; c == 0 || c == '\r' || c == '\n' {
			return false
		}
	}
	return true
}

// validBinary reports whether v is base64, with or without padding, or a list of such values separated by commas.
func validBinary(v string) bool {
	for part := range strings.SplitSeq(v, ",") {
		text := strings.TrimRight(part, "=")
		if padding := len(part) - len(text); padding > 2 || padding > 0 && len(part)%4 != 0 || len(text)%4 == 1 {
			return false
		}
		for i := range len(text) {
			c := text[i] | 0x20
			if !(c >= 'a' && c <= 'z' || text[i] >= '0' && text[i] <= '9' || text[i] == '+' || text[i] == '/') {
				return false
			}
		}
	}
	return true
}

var timeoutUnits = map[byte]time.Duration{
	'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond,
	'n': time.Nanosecond,
}

// parseTimeout parses the value of grpc-timeout: 1 to 8 digits and a unit.
func parseTimeout(s string) (time.Duration, error) {
	if len(s) < 2 || len(s) > 9 {
		return 0, fmt.Errorf("%q: want 1 to 8 digits and a unit", s)
	}
	unit, known := timeoutUnits[s[len(s)-1]]
	if !known {
		return 0, fmt.Errorf("%q: the unit is not one of H, M, S, m, u, n", s)
	}
	n, err := strconv.ParseUint(s[:len(s)-1], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q: want 1 to 8 digits and a unit", s)
	}
	if n > uint64(math.MaxInt64/unit) {
		return math.MaxInt64, nil
	}
	return time.Duration(n) * unit, nil
}

// subtype returns the content type of the answer to a request whose content type is application/grpc+sub.
func subtype(sub string) string {
	if sub == "" {
		return contentType
	}
	return contentType + "+" + sub
}

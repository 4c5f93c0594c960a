package h2grpc

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
)

// request gathers what the fields of one request say.
type request struct {
	header header

	method, path, scheme string
	pseudo               int    // of these that have come
	regular              bool   // a regular field has come
	contentType          string // one that is not gRPC's
	isGRPC               bool
	authorities, hosts   int
	bad                  *refusal // of a malformed timeout or binary field
}

// pseudoField takes one of method, path, scheme and authority, each once and before the regular fields (RFC 9113,
// section 8.3).
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

// refused is why the request gets no further; nil: it does. Where several things are wrong, the order is grpc-go's.
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

// method is what a request's path names.
type method uint8

const (
	methodUnknown method = iota
	methodDecide         // ShouldRateLimit
	methodCheck
	methodList
	methodWatch
)

const healthService = "grpc.health.v1.Health"

// methodOf is the method that a path names; decides is the path of ShouldRateLimit.
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

// unimplemented refuses a path that names no method, as grpc-go does; decides is the path of ShouldRateLimit.
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

package h2grpc

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
)

// request gathers what the fields of one request say.
type request struct {
	header header

	method, path, scheme string
	pseudo               int    // of these that have come
	regular              bool   // a regular field has come
	contentType          string // one that is not gRPC's
	isGRPC               bool
	encoding             string
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
		q.encoding = f.Value
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
	var r *refusal
	switch {
	case q.hosts > 1:
		r = badRequest(fmt.Sprintf(
			"num values of :authority: %v, num values of host: %v, both must only have 1 value as per HTTP/2 spec",
			q.authorities, q.hosts))
	case !q.isGRPC:
		r = &refusal{status: http.StatusUnsupportedMediaType, code: codes.InvalidArgument,
			message: fmt.Sprintf("invalid gRPC request content-type %q", q.contentType)}
	case q.bad != nil:
		r = q.bad
	case q.authorities+q.hosts == 0:
		r = badRequest("no host or :authority header present")
	case q.method != http.MethodPost:
		r = &refusal{status: http.StatusMethodNotAllowed, code: codes.Internal,
			message: fmt.Sprintf("Received a HEADERS frame with :method %q which should be POST", q.method)}
	case q.header.timed && q.header.timeout <= 0:
		r = &refusal{code: codes.DeadlineExceeded, message: "context deadline exceeded"}
	default:
		return nil
	}
	r.subtype = q.header.subtype
	return r
}

func badRequest(message string) *refusal {
	return &refusal{status: http.StatusBadRequest, code: codes.Internal, message: message}
}

package h2grpc

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
)

// stream is one call from its HEADERS to its answer. The reader owns what stands first, the outbox, under its lock, the
// rest. A call that is answered in the read that completed it never meets the outbox's table.
type stream struct {
	id     uint32
	header header
	body   []byte // what DATA frames have brought of the message, where it is more than one
	kept   int    // bytes of body that are accounted for
	// received counts the bytes of the body for content-length.
	received int64
	ended    bool // the client has sent all
	refused  bool // answered early; what still comes is dropped
	window   int  // what the client may still send
	began    time.Time

	registered bool
	inStore    bool
	open       bool   // the client has not sent all; kept for registered streams
	gone       bool   // answered in full, or reset
	early      bool   // answered before the client had sent all
	credit     int64  // what WINDOW_UPDATEs gave beyond the initial window, less what was sent
	pending    []byte // of an answer, waiting for a window
	queued     bool   // in the outbox's list of those
	buried     bool   // in the outbox's list of streams for the reader to reuse
	exchange   *exchange
}

// maxMessage is the longest message of a call, as grpc-go has it.
const maxMessage = 4 << 20

// message takes the one message out of a finished request's body.
func (s *stream) message(b []byte) ([]byte, *refusal) {
	if len(b) == 0 {
		return nil, s.refusal(codes.Internal,
			"cardinality violation: received no request message from non-client-streaming RPC")
	}
	message, rest, r := s.cutMessage(b)
	if r != nil || len(rest) == 0 {
		return message, r
	}
	if _, _, r := s.cutMessage(rest); r != nil {
		return nil, r
	}
	return nil, s.refusal(codes.Internal,
		"cardinality violation: received multiple request messages for non-client-streaming RPC")
}

// cutMessage takes the first message off a body that is not empty.
func (s *stream) cutMessage(b []byte) (message, rest []byte, r *refusal) {
	if len(b) < messageHeader {
		return nil, nil, s.refusal(codes.Internal, "unexpected EOF")
	}
	n, text := messageLength(b), b[messageHeader:]
	switch {
	case n > maxMessage:
		return nil, nil, s.tooLong(b)
	case n > len(text):
		return nil, nil, s.refusal(codes.Internal, "unexpected EOF")
	case b[0] == 1:
		return nil, nil, s.refusal(codes.Internal, "grpc: compressed flag set with identity or empty encoding")
	case b[0] != 0:
		return nil, nil, s.refusal(codes.Internal, fmt.Sprintf("grpc: received unexpected payload format %d", b[0]))
	default:
		return text[:n], text[n:], nil
	}
}

func messageLength(b []byte) int {
	return int(uint32(b[1])<<24 | uint32(b[2])<<16 | uint32(b[3])<<8 | uint32(b[4]))
}

// tooLong is why a body that begins so is refused, before all of it is kept; nil: it is not.
func (s *stream) tooLong(b []byte) *refusal {
	if len(b) >= messageHeader {
		if n := messageLength(b); n > maxMessage {
			return s.refusal(codes.ResourceExhausted, fmt.Sprintf("grpc: received message larger than max (%d vs. %d)",
				n, maxMessage))
		}
	}
	return nil
}

func (s *stream) refusal(code codes.Code, message string) *refusal {
	return &refusal{code: code, message: message, subtype: s.header.subtype}
}

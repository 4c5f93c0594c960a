package h2grpc

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
)

// stream is one call from its HEADERS to its answer. The reader owns what stands first, the send queue, under its lock, the
// rest. A call that is answered in the read that completed it never meets the send queue's table.
type stream struct {
	id     uint32
	header header
	parts  bool // DATA frames have brought a part of the message
	// received counts the bytes of the body for content-length.
	received int64
	ended    bool // the client has sent all
	refused  bool // answered early; what still comes is dropped
	window   int  // what the client may still send
	began    time.Time

	registered bool
	inStore    bool
	open       bool               // the client has not sent all; kept for registered streams
	gone       bool               // answered in full, or reset
	early      bool               // answered before the client had sent all
	body       []byte             // what DATA frames have brought of the message, where it is more than one
	held       int                // bytes allocated for body and pending, which the send queue accounts for
	credit     int64              // what WINDOW_UPDATEs gave beyond the initial window, less what was sent
	pending    []byte             // of an answer, waiting for a window
	queued     bool               // in the send queue's list of those
	stalled    time.Time          // when a part of pending was sent last, or pending was made
	removed    bool               // in the send queue's list of streams for the reader to reuse
	begun      bool               // its HEADERS were sent; of a watch
	watch      context.CancelFunc // ends its Health/Watch; nil of any other call
}

const (
	// maxMessage is the longest message of a call, as grpc-go has it.
	maxMessage    = 4 << 20
	messageHeader = 5
)

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

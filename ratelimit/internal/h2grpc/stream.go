package h2grpc

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
)

// stream is one call from its HEADERS to its answer. The reader owns the first group of fields; the second belongs to
// the send queue, under its lock. A call that is answered in the read that completed it never enters the send queue's
// table.
type stream struct {
	id     uint32
	header header
	parts  bool // DATA frames have brought a part of the message
	// received counts the bytes of the body for content-length.
	received int64
	ended    bool // the client has sent the whole request
	refused  bool // answered early; further frames are dropped
	window   int  // bytes that the client may still send
	began    time.Time

	registered bool
	inStore    bool
	open       bool               // the client has not sent the whole request; kept for registered streams
	gone       bool               // answered in full, or reset
	early      bool               // answered before the client had sent the whole request
	body       []byte             // the message so far, where it arrives in several DATA frames
	held       int                // bytes allocated for body and pending, as accounted
	credit     int64              // bytes that WINDOW_UPDATEs added to the initial window, less the bytes sent
	pending    []byte             // the rest of an answer that waits for a window
	queued     bool               // in the send queue's list blocked
	stalled    time.Time          // when a part of pending was last sent, or pending was set
	removed    bool               // in the send queue's list dead, or taken from it
	begun      bool               // of a watch: its HEADERS were sent
	watch      context.CancelFunc // ends a Health/Watch; nil for any other call
}

const (
	// maxMessage is the longest message of a call, as in grpc-go.
	maxMessage    = 4 << 20
	messageHeader = 5
)

func messageLength(b []byte) int {
	return int(uint32(b[1])<<24 | uint32(b[2])<<16 | uint32(b[3])<<8 | uint32(b[4]))
}

// tooLong returns why a body that begins with b is refused before all of it is kept; nil if it is not.
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

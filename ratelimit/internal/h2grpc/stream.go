package h2grpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // registers gzip
)

// stream is one call from its HEADERS to its answer. The first group of fields belongs to the reader, the second to the
// send queue, under its lock. A stream that is answered in the read that completed its request is never registered in
// the send queue.
type stream struct {
	id     uint32
	header header
	parts  bool // an earlier DATA frame has brought a part of the message
	// received is how many bytes of the body have arrived, to be compared with content-length.
	received int64
	ended    bool // the client has sent its whole request
	refused  bool // answered before the request was complete; further frames are dropped
	window   int  // how many bytes the client may still send on the stream
	began    time.Time

	registered bool
	inStore    bool
	open       bool               // the client has not sent its whole request; set only for registered streams
	gone       bool               // answered completely, or reset
	early      bool               // answered before the client has sent its whole request
	body       []byte             // the message so far, if it arrives in several DATA frames
	held       int                // how many bytes of the account are counted for body and pending
	credit     int64              // how many bytes WINDOW_UPDATE has added to the initial window, less the bytes sent
	pending    []byte             // the rest of an answer, which waits for flow control
	queued     bool               // it is in sendQueue.blocked
	stalled    time.Time          // when a part of pending was last sent, or when pending was set
	removed    bool               // it is in sendQueue.dead, or was taken from there
	begun      bool               // for a health watch: its HEADERS were sent
	watch      context.CancelFunc // ends a health watch; nil for any other call
}

const (
	// maxMessage is the longest message of a call, in bytes, as in grpc-go.
	maxMessage    = 4 << 20
	messageHeader = 5
)

func messageLength(b []byte) int {
	return int(uint32(b[1])<<24 | uint32(b[2])<<16 | uint32(b[3])<<8 | uint32(b[4]))
}

// tooLong returns why a body that begins with b is refused before all of it has arrived, or nil if the body is not
// refused.
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

// decompress returns the message decompressed. It refuses a message that then has more than maxMessage bytes.
func (s *stream) decompress(message []byte) ([]byte, *refusal) {
	r, err := encoding.GetCompressor(s.header.encoding).Decompress(bytes.NewReader(message))
	if err != nil {
		return nil, s.refusal(codes.Internal, "grpc: failed to decompress the message: "+err.Error())
	}
	if closer, ok := r.(io.Closer); ok {
		defer closer.Close()
	}
	text, err := io.ReadAll(io.LimitReader(r, maxMessage+1))
	if err != nil {
		return nil, s.refusal(codes.Internal, "grpc: failed to read decompressed data: "+err.Error())
	}
	if len(text) > maxMessage {
		return nil, s.refusal(codes.ResourceExhausted,
			fmt.Sprintf("grpc: received message after decompression larger than max %d", maxMessage))
	}
	return text, nil
}

// beginMessage appends room for the prefix of a message, which seal fills in.
func beginMessage(dst []byte) []byte { return append(dst, 0, 0, 0, 0, 0) }

// seal completes the message whose prefix is at index from of b. If the request was compressed, it compresses the
// message. Then it sets the length in the prefix.
func (s *stream) seal(b []byte, from int) ([]byte, error) {
	text := b[from+messageHeader:]
	if s.header.encoding != "" && len(text) > 0 {
		var packed bytes.Buffer
		w, err := encoding.GetCompressor(s.header.encoding).Compress(&packed)
		if err == nil {
			_, err = w.Write(text)
		}
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			return b[:from], fmt.Errorf("compressing: %w", err)
		}
		b = append(b[:from+messageHeader], packed.Bytes()...)
		b[from] = 1
	}
	binary.BigEndian.PutUint32(b[from+1:], uint32(len(b)-from-messageHeader))
	return b, nil
}

// message returns the message in the body of a request that is complete. A request must have exactly one.
func (s *stream) message(b []byte) ([]byte, *refusal) {
	if len(b) == 0 {
		return nil, s.refusal(codes.Internal,
			"cardinality violation: received no request message from non-client-streaming RPC")
	}
	message, rest, r := s.cutMessage(b)
	if r == nil && b[0] == 1 {
		message, r = s.decompress(message)
	}
	if r != nil || len(rest) == 0 {
		return message, r
	}
	if _, _, r := s.cutMessage(rest); r != nil {
		return nil, r
	}
	return nil, s.refusal(codes.Internal,
		"cardinality violation: received multiple request messages for non-client-streaming RPC")
}

// cutMessage splits the first message off a body that is not empty.
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
	case b[0] == 1 && s.header.encoding == "":
		return nil, nil, s.refusal(codes.Internal, "grpc: compressed flag set with identity or empty encoding")
	case b[0] > 1:
		return nil, nil, s.refusal(codes.Internal, fmt.Sprintf("grpc: received unexpected payload format %d", b[0]))
	default:
		return text[:n], text[n:], nil
	}
}

package h2grpc

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

const (
	frameHeaderLen = 9
	// maxFrame is the longest payload of a frame that a client may send, and the longest that the server sends unless
	// the client's SETTINGS_MAX_FRAME_SIZE allows more.
	maxFrame = 1 << 14
	// maxWindow is the largest flow-control window, in bytes.
	maxWindow = 1<<31 - 1
	// defaultWindow is the flow-control window of a connection, and of a stream unless SETTINGS say otherwise, in
	// bytes.
	defaultWindow = 1<<16 - 1
)

// lastHeaders are the flags of a HEADERS frame that ends an answer.
const lastHeaders = http2.FlagHeadersEndHeaders | http2.FlagHeadersEndStream

type frameHeader struct {
	length int
	kind   http2.FrameType
	flags  http2.Flags
	stream uint32
}

// parseFrameHeader parses the frame header, the 9 bytes before a payload.
func parseFrameHeader(b []byte) frameHeader {
	_ = b[frameHeaderLen-1]
	return frameHeader{
		length: int(b[0])<<16 | int(b[1])<<8 | int(b[2]),
		kind:   http2.FrameType(b[3]),
		flags:  http2.Flags(b[4]),
		stream: binary.BigEndian.Uint32(b[5:]) &^ (1 << 31),
	}
}

func (h frameHeader) has(flag http2.Flags) bool { return h.flags.Has(flag) }

func appendFrameHeader(dst []byte, length int, kind http2.FrameType, flags http2.Flags, stream uint32) []byte {
	return append(dst, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags),
		byte(stream>>24), byte(stream>>16), byte(stream>>8), byte(stream))
}

func appendReset(dst []byte, stream uint32, code http2.ErrCode) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHeader(dst, 4, http2.FrameRSTStream, 0, stream), uint32(code))
}

func appendWindowUpdate(dst []byte, stream uint32, n int) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHeader(dst, 4, http2.FrameWindowUpdate, 0, stream), uint32(n))
}

func appendPing(dst []byte, flags http2.Flags, data []byte) []byte {
	return append(appendFrameHeader(dst, 8, http2.FramePing, flags, 0), data[:8]...)
}

func appendGoAway(dst []byte, last uint32, code http2.ErrCode, debug string) []byte {
	dst = appendFrameHeader(dst, 8+len(debug), http2.FrameGoAway, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, last)
	return append(binary.BigEndian.AppendUint32(dst, uint32(code)), debug...)
}

func appendSettings(dst []byte, settings ...http2.Setting) []byte {
	dst = appendFrameHeader(dst, 6*len(settings), http2.FrameSettings, 0, 0)
	for _, s := range settings {
		dst = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(dst, uint16(s.ID)), s.Val)
	}
	return dst
}

// unpad removes the padding from the payload of a DATA or HEADERS frame; both types have the same flag for it. It
// returns false if there is more padding than payload.
func unpad(h frameHeader, payload []byte) (rest []byte, ok bool) {
	if !h.has(http2.FlagDataPadded) {
		return payload, true
	}
	if len(payload) == 0 || int(payload[0]) > len(payload)-1 {
		return nil, false
	}
	return payload[1 : len(payload)-int(payload[0])], true
}

// connError is a fault of the client for which the connection is ended with GOAWAY.
type connError struct {
	code   http2.ErrCode
	reason reason
	debug  string // GOAWAY's debug data, which says what was wrong
}

func protocolError(debug string) *connError {
	return &connError{http2.ErrCodeProtocol, reasonProtocol, debug}
}

func frameSizeError(debug string) *connError {
	return &connError{http2.ErrCodeFrameSize, reasonProtocol, debug}
}

// reason names in one word why a connection or a stream was ended. It is the tag of a counter.
type reason string

const (
	reasonPreface      reason = "preface"       // the client does not speak HTTP/2
	reasonSilent       reason = "silent"        // the client did not send its preface and SETTINGS in time
	reasonProtocol     reason = "protocol"      // the client violated HTTP/2
	reasonCompression  reason = "compression"   // the client sent a header block that HPACK cannot decode
	reasonFlowControl  reason = "flow_control"  // the client sent more than flow control allows
	reasonHeaders      reason = "headers"       // a header block was too long, in too many pieces, or too slow
	reasonFlood        reason = "flood"         // too many control frames, resets or empty frames between calls
	reasonPings        reason = "pings"         // the client sent pings more often than GRPC_KEEPALIVE_MIN_TIME
	reasonSettings     reason = "settings"      // the client did not acknowledge SETTINGS in time
	reasonKeepalive    reason = "keepalive"     // the client did not answer a keepalive ping in time
	reasonNotReading   reason = "not_reading"   // the client did not read its answers in time
	reasonTooManyCalls reason = "streams"       // the client opened more streams than GRPC_MAX_CONCURRENT_STREAMS
	reasonBuffered     reason = "buffered"      // unfinished messages took more memory than is set aside
	reasonUnfinished   reason = "unfinished"    // the client did not finish a request in time
	reasonHandshake    reason = "tls_handshake" // the TLS handshake failed
)

var reasons = []reason{
	reasonPreface, reasonSilent, reasonProtocol, reasonCompression, reasonFlowControl, reasonHeaders, reasonFlood,
	reasonPings,
	reasonSettings, reasonKeepalive, reasonNotReading, reasonTooManyCalls, reasonBuffered, reasonUnfinished,
	reasonHandshake,
}

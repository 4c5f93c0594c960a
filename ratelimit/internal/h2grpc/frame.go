package h2grpc

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

const (
	frameHeaderLen = 9
	// maxFrame is the longest payload that a peer may send, and the default of the longest payload that a peer accepts
	// (SETTINGS_MAX_FRAME_SIZE).
	maxFrame = 1 << 14
	// maxWindow is the largest flow-control window.
	maxWindow = 1<<31 - 1
	// defaultWindow is the window of a connection, and of a stream before SETTINGS say otherwise.
	defaultWindow = 1<<16 - 1
)

// lastHeaders are the flags of a HEADERS frame that ends an answer. CONTINUATION has the same flag for the end of the
// headers.
const lastHeaders = http2.FlagHeadersEndHeaders | http2.FlagHeadersEndStream

type frameHeader struct {
	length int
	kind   http2.FrameType
	flags  http2.Flags
	stream uint32
}

// parseFrameHeader parses the 9 bytes before a payload.
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

// unpad removes the padding from the payload of a DATA or HEADERS frame, which have the same flag for it. ok is false if
// there is more padding than payload.
func unpad(h frameHeader, payload []byte) (rest []byte, ok bool) {
	if !h.has(http2.FlagDataPadded) {
		return payload, true
	}
	if len(payload) == 0 || int(payload[0]) > len(payload)-1 {
		return nil, false
	}
	return payload[1 : len(payload)-int(payload[0])], true
}

// connError ends the connection with GOAWAY.
type connError struct {
	code   http2.ErrCode
	reason reason
	debug  string // why, in GOAWAY's debug data
}

func protocolError(debug string) *connError {
	return &connError{http2.ErrCodeProtocol, reasonProtocol, debug}
}

func frameSizeError(debug string) *connError {
	return &connError{http2.ErrCodeFrameSize, reasonProtocol, debug}
}

// reason says in one word why a connection or a stream was ended; it is the tag of a counter.
type reason string

const (
	reasonPreface      reason = "preface"       // does not speak HTTP/2
	reasonSilent       reason = "silent"        // did not send its preface and SETTINGS in time
	reasonProtocol     reason = "protocol"      // broke a rule of HTTP/2
	reasonCompression  reason = "compression"   // a header block that HPACK cannot decode
	reasonFlowControl  reason = "flow_control"  // sent more than its window
	reasonHeaders      reason = "headers"       // header blocks that are too long, or in too many pieces
	reasonFlood        reason = "flood"         // control frames, resets or empty frames without calls
	reasonPings        reason = "pings"         // pings more often than GRPC_KEEPALIVE_MIN_TIME
	reasonSettings     reason = "settings"      // did not acknowledge SETTINGS in time
	reasonKeepalive    reason = "keepalive"     // did not answer a keepalive ping in time
	reasonNotReading   reason = "not_reading"   // did not read its answers in time
	reasonTooManyCalls reason = "streams"       // more streams than GRPC_MAX_CONCURRENT_STREAMS
	reasonBuffered     reason = "buffered"      // more unfinished messages than memory is set aside for
	reasonUnfinished   reason = "unfinished"    // requests that were not finished in time
	reasonHandshake    reason = "tls_handshake" // TLS failed
)

var reasons = []reason{
	reasonPreface, reasonSilent, reasonProtocol, reasonCompression, reasonFlowControl, reasonHeaders, reasonFlood,
	reasonPings,
	reasonSettings, reasonKeepalive, reasonNotReading, reasonTooManyCalls, reasonBuffered, reasonUnfinished,
	reasonHandshake,
}

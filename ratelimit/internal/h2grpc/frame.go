package h2grpc

import "encoding/binary"

// frameType is the type of an HTTP/2 frame (RFC 9113, section 6).
type frameType byte

const (
	frameData         frameType = 0x0
	frameHeaders      frameType = 0x1
	framePriority     frameType = 0x2
	frameReset        frameType = 0x3
	frameSettings     frameType = 0x4
	framePushPromise  frameType = 0x5
	framePing         frameType = 0x6
	frameGoAway       frameType = 0x7
	frameWindowUpdate frameType = 0x8
	frameContinuation frameType = 0x9
)

// Flags. The same bit means different things on different frames.
const (
	flagAck        = 0x1
	flagEndStream  = 0x1
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20
)

// errCode is the error code of RST_STREAM and GOAWAY (RFC 9113, section 7).
type errCode uint32

const (
	codeNo              errCode = 0x0
	codeProtocol        errCode = 0x1
	codeInternal        errCode = 0x2
	codeFlowControl     errCode = 0x3
	codeSettingsTimeout errCode = 0x4
	codeStreamClosed    errCode = 0x5
	codeFrameSize       errCode = 0x6
	codeRefusedStream   errCode = 0x7
	codeCancel          errCode = 0x8
	codeCompression     errCode = 0x9
	codeEnhanceYourCalm errCode = 0xb
)

// Identifiers of SETTINGS parameters.
const (
	settingHeaderTableSize      = 0x1
	settingEnablePush           = 0x2
	settingMaxConcurrentStreams = 0x3
	settingInitialWindowSize    = 0x4
	settingMaxFrameSize         = 0x5
	settingMaxHeaderListSize    = 0x6
)

const (
	preface        = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	frameHeaderLen = 9
	// maxFrame is the longest payload that a peer may send, and the default of the longest payload that a peer accepts
	// (SETTINGS_MAX_FRAME_SIZE).
	maxFrame = 1 << 14
	// maxWindow is the largest flow-control window.
	maxWindow = 1<<31 - 1
	// defaultWindow is the window of a connection, and of a stream before SETTINGS say otherwise.
	defaultWindow = 1<<16 - 1
)

type frameHeader struct {
	length int
	kind   frameType
	flags  byte
	stream uint32
}

// parseFrameHeader parses the 9 bytes before a payload.
func parseFrameHeader(b []byte) frameHeader {
	_ = b[frameHeaderLen-1]
	return frameHeader{
		length: int(b[0])<<16 | int(b[1])<<8 | int(b[2]),
		kind:   frameType(b[3]),
		flags:  b[4],
		stream: binary.BigEndian.Uint32(b[5:]) &^ (1 << 31),
	}
}

func (h frameHeader) has(flag byte) bool { return h.flags&flag != 0 }

func appendFrameHeader(dst []byte, length int, kind frameType, flags byte, stream uint32) []byte {
	return append(dst, byte(length>>16), byte(length>>8), byte(length), byte(kind), flags,
		byte(stream>>24), byte(stream>>16), byte(stream>>8), byte(stream))
}

func appendReset(dst []byte, stream uint32, code errCode) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHeader(dst, 4, frameReset, 0, stream), uint32(code))
}

func appendWindowUpdate(dst []byte, stream uint32, n int) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHeader(dst, 4, frameWindowUpdate, 0, stream), uint32(n))
}

func appendPing(dst []byte, flags byte, data []byte) []byte {
	return append(appendFrameHeader(dst, 8, framePing, flags, 0), data[:8]...)
}

func appendGoAway(dst []byte, last uint32, code errCode, debug string) []byte {
	dst = appendFrameHeader(dst, 8+len(debug), frameGoAway, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, last)
	return append(binary.BigEndian.AppendUint32(dst, uint32(code)), debug...)
}

type setting struct {
	id    uint16
	value uint32
}

func appendSettings(dst []byte, settings ...setting) []byte {
	dst = appendFrameHeader(dst, 6*len(settings), frameSettings, 0, 0)
	for _, s := range settings {
		dst = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(dst, s.id), s.value)
	}
	return dst
}

// unpad removes the padding from the payload of a DATA or HEADERS frame. ok is false if there is more padding than
// payload.
func unpad(h frameHeader, payload []byte) (rest []byte, ok bool) {
	if !h.has(flagPadded) {
		return payload, true
	}
	if len(payload) == 0 || int(payload[0]) > len(payload)-1 {
		return nil, false
	}
	return payload[1 : len(payload)-int(payload[0])], true
}

// connError ends the connection with GOAWAY.
type connError struct {
	code   errCode
	reason reason
	debug  string // why, in GOAWAY's debug data
}

func protocolError(debug string) *connError { return &connError{codeProtocol, reasonProtocol, debug} }

func frameSizeError(debug string) *connError { return &connError{codeFrameSize, reasonProtocol, debug} }

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

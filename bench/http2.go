//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// client is one HTTP/2 connection that makes one kind of gRPC call. It does what Envoy does as a client and no more,
// because it uses the same cores as the server that it measures: it has prepared header blocks, no goroutines and no
// locks, and sends all calls that have begun since the last write in one write.
//
// It is not a general client: responses must have unpadded frames and header blocks of a single frame, and it gives up
// where another client would reconnect. Only one goroutine may use it.
type client struct {
	socket
	in  []byte // bytes that have arrived but are not parsed yet
	buf []byte

	nextID     uint32
	headers    []byte     // header block of the next call
	laterBlock []byte     // header block of all calls after the first
	window     int64      // bytes that the server's flow-control window lets the client send
	waiting    []call     // calls that wait until window is large enough
	unreported int64      // bytes of responses that the client has not yet reported to the server in a WINDOW_UPDATE
	calls      [4096]call // indexed by stream id; far more than are ever in flight

	decoder     *hpack.Decoder
	status      string
	okHead      []byte // header blocks that have been decoded and whose meaning has not changed
	okTrailer   []byte
	inFlight    int
	lastRefused string
}

// call is one call in flight.
type call struct {
	id      uint32 // stream id; 0 if the place is free
	begun   int64  // when the call began, in ns on the load's clock
	overall byte   // RateLimitResponse.overall_code
	bad     bool
	large   bool // a call of the scenario large
}

const (
	ourWindow = 1 << 30 // all responses fit into it
	fullPath  = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
)

// dial connects to an IPv4 address on this machine. timeout is the header grpc-timeout of the calls; "" means none.
// literalPath makes each call have :path in full, as Envoy sends it.
func dial(addr, timeout string, literalPath bool) (*client, error) {
	s, err := connect(addr)
	if err != nil {
		return nil, err
	}
	c := &client{socket: s, buf: make([]byte, 256<<10), nextID: 1, window: 65535}
	c.decoder = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		switch f.Name {
		case "grpc-status":
			c.status = f.Value
		case "grpc-message":
			c.lastRefused = f.Value
		}
	})
	c.headers, c.laterBlock = headerBlocks(addr, timeout, literalPath)
	c.out = append(c.out, http2.ClientPreface...)
	c.out = appendFrame(c.out, http2.FrameSettings, 0, 0, nil)
	c.out = appendFrame(c.out, http2.FrameWindowUpdate, 0, 0, binary.BigEndian.AppendUint32(nil, ourWindow))
	return c, nil
}

// headerBlocks returns two blocks with the headers of a call: a first block, which adds the headers to the server's
// header table, and a block for later calls, which refers to the table.
func headerBlocks(authority, timeout string, literalPath bool) (first, later []byte) {
	fields := []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"},
		{Name: ":path", Value: fullPath, Sensitive: literalPath}, {Name: ":authority", Value: authority},
		{Name: "te", Value: "trailers"}, {Name: "content-type", Value: "application/grpc"},
		{Name: "user-agent", Value: "gatehouse-bench"},
	}
	if timeout != "" {
		fields = append(fields, hpack.HeaderField{Name: "grpc-timeout", Value: timeout})
	}
	var b bytes.Buffer
	encoder := hpack.NewEncoder(&b)
	for _, block := range []*[]byte{&first, &later} {
		b.Reset()
		for _, f := range fields {
			encoder.WriteField(f) // writing to a bytes.Buffer cannot fail
		}
		*block = bytes.Clone(b.Bytes())
	}
	return first, later
}

func appendFrame(to []byte, kind http2.FrameType, flags http2.Flags, stream uint32, payload []byte) []byte {
	n := len(payload)
	to = append(to, byte(n>>16), byte(n>>8), byte(n), byte(kind), byte(flags))
	to = binary.BigEndian.AppendUint32(to, stream)
	return append(to, payload...)
}

// begin appends a call to the bytes that flush writes. If the server's flow-control window is too small, it appends the
// call to c.waiting instead.
func (c *client) begin(message []byte, now int64, large bool) {
	size := int64(len(message))
	if c.window < size {
		c.waiting = append(c.waiting, call{begun: now, large: large})
		return
	}
	c.window -= size
	slot := c.slot(c.nextID)
	for slot.id != 0 { // an older call is still using this place: skip the stream id
		c.nextID += 2
		slot = c.slot(c.nextID)
	}
	*slot = call{id: c.nextID, begun: now, large: large}
	c.inFlight++
	c.out = appendFrame(c.out, http2.FrameHeaders, http2.FlagHeadersEndHeaders, c.nextID, c.headers)
	c.headers = c.laterBlock
	c.out = appendFrame(c.out, http2.FrameData, http2.FlagDataEndStream, c.nextID, message)
	c.nextID += 2
}

func (c *client) slot(id uint32) *call { return &c.calls[id>>1%uint32(len(c.calls))] }

// full reports whether so many calls are in flight that begin might find no free place.
func (c *client) full() bool { return c.inFlight+len(c.waiting) >= len(c.calls)/2 }

// receive reads the bytes that have arrived. It passes each call that has ended to done, which may begin other calls.
func (c *client) receive(done func(*call)) error {
	for {
		n, err := c.read(c.buf)
		if n == 0 {
			return err
		}
		data := c.buf[:n]
		if len(c.in) > 0 {
			c.in = append(c.in, data...)
			data = c.in
		}
		rest, err := c.frames(data, done)
		if err != nil {
			return err
		}
		c.in = append(c.in[:0], rest...)
		if n < len(c.buf) {
			return nil
		}
	}
}

// frames handles all complete frames in data and returns the bytes of the incomplete frame at the end.
func (c *client) frames(data []byte, done func(*call)) ([]byte, error) {
	for len(data) >= 9 {
		size := int(data[0])<<16 | int(data[1])<<8 | int(data[2])
		if len(data) < 9+size {
			break
		}
		kind, flags, id := http2.FrameType(data[3]), http2.Flags(data[4]), binary.BigEndian.Uint32(data[5:])&(1<<31-1)
		if err := c.frame(kind, flags, id, data[9:9+size], done); err != nil {
			return nil, err
		}
		data = data[9+size:]
	}
	return data, nil
}

func (c *client) frame(kind http2.FrameType, flags http2.Flags, id uint32, payload []byte, done func(*call)) error {
	switch kind {
	case http2.FrameData, http2.FrameHeaders, http2.FrameRSTStream:
		slot := c.slot(id)
		if slot.id != id {
			return fmt.Errorf("frame %d for stream %d, which is not open", kind, id)
		}
		if kind != http2.FrameRSTStream && flags&http2.FlagDataPadded != 0 {
			return errors.New("padded frames are beyond this client")
		}
		if err := c.streamFrame(slot, kind, flags, payload); err != nil {
			return err
		}
		if kind == http2.FrameRSTStream || flags&http2.FlagDataEndStream != 0 {
			c.inFlight--
			finished := *slot
			slot.id = 0
			done(&finished)
		}
	case http2.FrameSettings:
		if flags&http2.FlagSettingsAck == 0 {
			c.out = appendFrame(c.out, http2.FrameSettings, http2.FlagSettingsAck, 0, nil)
		}
	case http2.FramePing:
		if flags&http2.FlagSettingsAck == 0 {
			c.out = appendFrame(c.out, http2.FramePing, http2.FlagSettingsAck, 0, payload)
		}
	case http2.FrameWindowUpdate:
		if id == 0 { // only the connection's window matters: a request is far smaller than its stream's
			c.window += int64(binary.BigEndian.Uint32(payload) & (1<<31 - 1))
		}
	case http2.FrameGoAway:
		return fmt.Errorf("the server sent GOAWAY: %q", payload[min(8, len(payload)):])
	case http2.FrameContinuation:
		return errors.New("continued header blocks are beyond this client")
	}
	return nil
}

// streamFrame handles a frame that is part of the response to a call.
func (c *client) streamFrame(to *call, kind http2.FrameType, flags http2.Flags, payload []byte) error {
	switch kind {
	case http2.FrameRSTStream:
		to.bad = true
		c.lastRefused = "RST_STREAM"
	case http2.FrameData:
		c.unreported += int64(len(payload))
		if c.unreported > ourWindow/2 {
			c.out = appendFrame(c.out, http2.FrameWindowUpdate, 0, 0, binary.BigEndian.AppendUint32(nil, uint32(c.unreported)))
			c.unreported = 0
		}
		// The message begins with gRPC's five bytes, followed by field 1, overall_code, which all known encoders write
		// first.
		if to.overall == 0 && len(payload) >= 7 && payload[5] == 8 {
			to.overall = payload[6]
		}
	case http2.FrameHeaders:
		ok, err := c.headersOK(payload, flags&http2.FlagDataEndStream != 0)
		if err != nil {
			return err
		}
		to.bad = to.bad || !ok
	}
	return nil
}

// headersOK decodes a header block, and reports whether it says that the call is going well. A block that is equal to
// an earlier one has the same meaning as long as no block has changed the header table since, and a server without
// failures always sends the same two blocks, so most blocks are not decoded.
func (c *client) headersOK(block []byte, trailer bool) (bool, error) {
	known := &c.okHead
	if trailer {
		known = &c.okTrailer
	}
	if len(block) > 0 && bytes.Equal(block, *known) {
		return true, nil
	}
	addsEntry := slices.ContainsFunc(block, func(b byte) bool { return b < 0x80 || b == 0xff })
	if addsEntry {
		c.okHead, c.okTrailer = c.okHead[:0], c.okTrailer[:0]
	}
	c.status = ""
	_, err := c.decoder.Write(block)
	if err := errors.Join(err, c.decoder.Close()); err != nil {
		return false, fmt.Errorf("header block: %w", err)
	}
	ok := !trailer || c.status == "0"
	if ok && !addsEntry {
		*known = append((*known)[:0], block...)
	}
	return ok, nil
}

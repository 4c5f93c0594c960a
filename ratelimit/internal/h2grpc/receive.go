package h2grpc

import (
	"encoding/binary"
	"net/http"
	"time"

	"golang.org/x/net/http2"
)

// This file has one method for each type of frame, except DATA, whose method is in reader.go. The reader calls the
// methods in the order in which the frames arrive. An error of a method ends the connection.

func (c *conn) headersFrame(h frameHeader, payload []byte) *connError {
	if h.stream%2 == 0 {
		return protocolError("HEADERS on a stream that no client opens")
	}
	b, ok := unpad(h, payload)
	if !ok {
		return protocolError("more padding than payload")
	}
	if h.has(http2.FlagHeadersPriority) {
		if len(b) < 5 {
			return frameSizeError("HEADERS with a priority")
		}
		if uint32At(b)&^(1<<31) == h.stream {
			return protocolError("a stream depends on itself")
		}
		b = b[5:]
	}
	if h.has(http2.FlagHeadersEndHeaders) {
		return c.headersDone(h.stream, h.has(http2.FlagHeadersEndStream), b)
	}
	c.in.block = block{open: true, stream: h.stream, ends: h.has(http2.FlagHeadersEndStream)}
	c.out.keepBlock(b)
	return nil
}

func (c *conn) continuation(h frameHeader, payload []byte) *connError {
	k := &c.in.block
	if !k.open {
		return protocolError("CONTINUATION without HEADERS")
	}
	if k.frames++; k.frames > maxContinuations || c.out.keepBlock(payload) > maxBlock {
		return &connError{http2.ErrCodeEnhanceYourCalm, reasonHeaders, "the header block is too long"}
	}
	if !h.has(http2.FlagHeadersEndHeaders) {
		return nil
	}
	k.open = false
	return c.headersDone(k.stream, k.ends, c.out.takeBlock())
}

// headersDone processes a complete header block, which opens a stream or has the trailers of a request. ends says that
// the HEADERS frame had END_STREAM.
func (c *conn) headersDone(id uint32, ends bool, block []byte) *connError {
	if id <= c.ids.opened() {
		return c.trailers(id, ends, block)
	}
	served := c.ids.open(id)
	head, err := c.in.headers.read(block)
	if err != nil {
		return err
	}
	c.register()
	most := c.server.o.MaxStreams
	switch {
	case !served:
		c.charge()
		return c.spend() // a GOAWAY has told the client to try elsewhere
	case head.malformed || ends && head.length > 0:
		return c.turnAway(id, http2.ErrCodeProtocol)
	case head.method != methodCheck && c.in.open >= most && c.out.open() >= most:
		c.server.refused(reasonTooManyCalls)
		return c.turnAway(id, http2.ErrCodeRefusedStream)
	}
	s := c.newStream(id)
	s.header, s.ended = head, ends
	switch {
	case head.refusal != nil:
		if head.refusal.status == http.StatusRequestHeaderFieldsTooLarge {
			c.noteUnread(s, head.refusal)
		}
		c.refuse(s, head.refusal)
		c.charge()
		return c.spendIf(c.limits.budget.left <= 0)
	case ends:
		c.complete(s, nil)
	default:
		c.in.current = s
	}
	return nil
}

// turnAway resets a stream that is not served at all.
func (c *conn) turnAway(id uint32, code http2.ErrCode) *connError {
	c.out.reset(id, code)
	c.in.ended.add(id)
	c.charge()
	return c.spend()
}

func (c *conn) trailers(id uint32, ends bool, block []byte) *connError {
	ok, err := c.in.headers.trailers(block)
	if err != nil {
		return err
	}
	s := c.find(id)
	switch {
	case s == nil && (c.in.ended.has(id) || id > c.ids.last()):
		return c.spend()
	case s == nil:
		return &connError{http2.ErrCodeStreamClosed, reasonProtocol, "HEADERS on a closed stream"}
	case s.refused:
		return c.spend()
	case s.ended:
		return &connError{http2.ErrCodeStreamClosed, reasonProtocol, "HEADERS behind END_STREAM"}
	case !ok || !ends:
		return c.abort(id, http2.ErrCodeProtocol)
	}
	return c.endOfRequest(s, nil)
}

func (c *conn) windowUpdate(h frameHeader, payload []byte) *connError {
	if len(payload) != 4 {
		return frameSizeError("WINDOW_UPDATE")
	}
	n := int64(uint32At(payload) &^ (1 << 31))
	if h.stream == 0 {
		if n == 0 {
			return protocolError("WINDOW_UPDATE by 0")
		}
		c.out.mu.Lock()
		defer c.out.mu.Unlock()
		if c.out.window += n; c.out.window > maxWindow {
			return &connError{http2.ErrCodeFlowControl, reasonFlowControl, "the connection's window is too large"}
		}
		c.out.pump()
		return c.spend()
	}
	if h.stream > c.ids.opened() || h.stream%2 == 0 {
		return protocolError("WINDOW_UPDATE on a stream that is not open")
	}
	c.register()
	if n == 0 {
		return c.abort(h.stream, http2.ErrCodeProtocol)
	}
	c.findFlushed(h.stream)
	c.out.mu.Lock()
	s := c.out.streams[h.stream]
	over := false
	if s != nil {
		s.credit += n
		if over = c.out.initial+s.credit > maxWindow; !over {
			c.out.pump()
		}
	}
	c.out.mu.Unlock()
	if over {
		c.server.refused(reasonFlowControl)
		return c.abort(h.stream, http2.ErrCodeFlowControl)
	}
	return c.spend()
}

func (c *conn) resetFrame(h frameHeader, payload []byte) *connError {
	if len(payload) != 4 {
		return frameSizeError("RST_STREAM")
	}
	if h.stream > c.ids.opened() || h.stream%2 == 0 {
		return protocolError("RST_STREAM on a stream that is not open")
	}
	if s := c.in.current; s != nil && s.id == h.stream {
		c.in.current = nil
		free(s)
	} else if s := c.findFlushed(h.stream); s != nil {
		c.out.mu.Lock()
		c.out.cut(s)
		c.out.mu.Unlock()
	}
	return c.spend()
}

func (c *conn) ping(h frameHeader, payload []byte) *connError {
	if len(payload) != 8 {
		return frameSizeError("PING")
	}
	if h.stream != 0 {
		return protocolError("PING on a stream")
	}
	if h.has(http2.FlagPingAck) {
		if string(payload) == string(drainPing) {
			c.drained.Store(true)
			c.server.tick(c, time.Now())
		}
		return c.spend()
	}
	c.out.mu.Lock()
	sent := c.out.sent
	c.out.sent = false
	c.out.put(func(b []byte) []byte { return appendPing(b, http2.FlagPingAck, payload) })
	c.out.mu.Unlock()
	// As in grpc-go, on which its clients rely, an answer that was sent since the last ping resets the count of pings
	// that came too early.
	now := time.Now()
	switch {
	case sent:
		c.limits.strikes = 0
	case !c.limits.lastPing.IsZero() && now.Sub(c.limits.lastPing) < c.server.o.MinPing:
		c.limits.strikes++
	}
	c.limits.lastPing = now
	if c.limits.strikes > 2 {
		return &connError{http2.ErrCodeEnhanceYourCalm, reasonPings, "too_many_pings"}
	}
	return c.spend()
}

func (c *conn) settings(h frameHeader, payload []byte) *connError {
	if h.stream != 0 {
		return protocolError("SETTINGS on a stream")
	}
	if h.has(http2.FlagSettingsAck) {
		if len(payload) != 0 {
			return frameSizeError("SETTINGS acknowledgement")
		}
		c.settingsAck.Store(true)
		return c.spend()
	}
	if len(payload)%6 != 0 {
		return frameSizeError("SETTINGS")
	}
	if !c.in.settled {
		c.in.settled = true
		c.net.SetReadDeadline(time.Time{})
	}
	if len(payload) > 6*64 {
		return &connError{http2.ErrCodeEnhanceYourCalm, reasonFlood, "too many SETTINGS"}
	}
	if err := c.out.configure(payload); err != nil {
		return err
	}
	return c.spend()
}

// configure applies the client's SETTINGS and acknowledges them.
func (o *sendQueue) configure(payload []byte) *connError {
	o.mu.Lock()
	defer o.mu.Unlock()
	widest := int64(-1)
	for ; len(payload) > 0; payload = payload[6:] {
		v := uint32At(payload[2:])
		switch http2.SettingID(binary.BigEndian.Uint16(payload)) {
		case http2.SettingHeaderTableSize:
			o.encoder.resize(int(min(v, tableSize)))
		case http2.SettingEnablePush:
			if v > 1 {
				return protocolError("SETTINGS_ENABLE_PUSH is neither 0 nor 1")
			}
		case http2.SettingInitialWindowSize:
			if v > maxWindow {
				return &connError{http2.ErrCodeFlowControl, reasonFlowControl, "SETTINGS_INITIAL_WINDOW_SIZE is too large"}
			}
			o.initial = int64(v)
			widest = max(widest, o.initial)
		case http2.SettingMaxFrameSize:
			if v < maxFrame || v > 1<<24-1 {
				return protocolError("SETTINGS_MAX_FRAME_SIZE is not between 16384 and 16777215")
			}
			o.frameSize = int(v)
		}
	}
	if widest >= 0 { // checked only once, even if the frame sets the window several times
		for _, s := range o.streams {
			if widest+s.credit > maxWindow {
				return &connError{http2.ErrCodeFlowControl, reasonFlowControl, "a stream's window is too large"}
			}
		}
	}
	o.put(func(b []byte) []byte { return appendFrameHeader(b, 0, http2.FrameSettings, http2.FlagSettingsAck, 0) })
	o.pump()
	return nil
}

func (c *conn) priority(h frameHeader, payload []byte) *connError {
	if h.stream == 0 {
		return protocolError("PRIORITY without a stream")
	}
	if len(payload) != 5 {
		return c.abortIdle(h.stream, http2.ErrCodeFrameSize)
	}
	if uint32At(payload)&^(1<<31) == h.stream {
		return c.abortIdle(h.stream, http2.ErrCodeProtocol)
	}
	return c.spend()
}

// abortIdle handles a faulty PRIORITY frame. It resets the frame's stream or, if the stream was never opened, returns
// an error that ends the connection.
func (c *conn) abortIdle(id uint32, code http2.ErrCode) *connError {
	if id > c.ids.opened() || id%2 == 0 {
		return &connError{code, reasonProtocol, "PRIORITY"}
	}
	return c.abort(id, code)
}

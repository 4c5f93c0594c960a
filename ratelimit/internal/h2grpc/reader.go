package h2grpc

import (
	"errors"
	"os"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// serve reads the connection until it ends. Its goroutine is called the reader.
func (c *conn) serve() {
	defer func() {
		if p := recover(); p != nil { // ends this connection but not the daemon
			c.server.o.Panicked(p)
		}
		c.close()
		c.giveBack()
	}()
	c.net.SetReadDeadline(time.Now().Add(greeting))
	c.out.add(func(b []byte) []byte {
		b = appendSettings(b,
			http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: uint32(c.server.o.MaxStreams)},
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow},
			http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHeaderList})
		return appendWindowUpdate(b, 0, connWindow-defaultWindow)
	})
	c.out.flush()
	room, giveBack := c.room, c.giveBack // made once, since each method value is allocated
	for {
		n, err := c.wire.read(room, giveBack)
		if err != nil {
			if c.in.greeted < len(http2.ClientPreface) || !c.in.settled {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					c.server.refused(reasonSilent)
				}
			}
			return
		}
		c.reading.Store(true)
		c.in.now, c.in.arrived = time.Now(), c.server.o.Service.Now()
		c.lastRead.Store(c.in.now.UnixNano())
		bad := c.feed(c.in.buf[:len(c.in.buf)+n])
		c.giveBack()
		c.dispatch()
		c.reading.Store(false)
		if bad != nil {
			c.fail(bad)
			c.linger()
			return
		}
		c.server.relieve()
		if c.ids.last() != maxWindow {
			c.leaveIfDone()
		}
		c.out.flush()
		var ok bool
		if c.in.open, ok = c.out.waitRoom(c.server.o.MaxStreams); !ok {
			c.linger()
			return
		}
	}
}

// room returns the part of the buffer to read into: the part after the beginning of a frame that has already arrived.
func (c *conn) room() []byte {
	if c.in.buf == nil {
		b := bufferPool.Get().(*[bufferBytes]byte)
		c.in.buf = append(b[:0], c.in.partial...)
	}
	return c.in.buf[len(c.in.buf):bufferBytes]
}

func (c *conn) giveBack() {
	if c.in.buf != nil {
		recycle(c.in.buf)
		c.in.buf = nil
	}
}

// feed processes all complete frames of b, and keeps the remaining bytes for the next read.
func (c *conn) feed(b []byte) *connError {
	c.in.work = workPool.Get().(*work)
	if c.in.greeted < len(http2.ClientPreface) {
		n := min(len(b), len(http2.ClientPreface))
		if string(b[:n]) != http2.ClientPreface[:n] {
			return &connError{http2.ErrCodeProtocol, reasonPreface, "this port speaks HTTP/2"}
		}
		if n < len(http2.ClientPreface) {
			return c.keep(b)
		}
		c.in.greeted = n
		b = b[n:]
	}
	for len(b) >= frameHeaderLen {
		h := parseFrameHeader(b)
		if h.length > maxFrame {
			return frameSizeError("a frame is longer than SETTINGS_MAX_FRAME_SIZE")
		}
		if len(b) < frameHeaderLen+h.length {
			break
		}
		if err := c.frame(h, b[frameHeaderLen:frameHeaderLen+h.length]); err != nil {
			return err
		}
		b = b[frameHeaderLen+h.length:]
	}
	return c.keep(b)
}

func (c *conn) keep(b []byte) *connError {
	if len(b) == 0 {
		if cap(c.in.partial) > 1<<10 {
			c.in.partial = nil
		}
		c.in.partial = c.in.partial[:0]
		return nil
	}
	c.in.partial = append(c.in.partial[:0], b...)
	return nil
}

// frame processes one frame by calling the method for its type.
func (c *conn) frame(h frameHeader, payload []byte) *connError {
	switch {
	case !c.in.settled && (h.kind != http2.FrameSettings || h.has(http2.FlagSettingsAck)):
		return protocolError("the first frame has to be SETTINGS")
	case c.in.block.open && (h.kind != http2.FrameContinuation || h.stream != c.in.block.stream):
		return protocolError("a header block was interrupted")
	}
	switch h.kind {
	case http2.FrameData:
		return c.data(h, payload)
	case http2.FrameHeaders:
		return c.headersFrame(h, payload)
	case http2.FrameContinuation:
		return c.continuation(h, payload)
	case http2.FrameWindowUpdate:
		return c.windowUpdate(h, payload)
	case http2.FrameRSTStream:
		return c.resetFrame(h, payload)
	case http2.FramePing:
		return c.ping(h, payload)
	case http2.FrameSettings:
		return c.settings(h, payload)
	case http2.FramePriority:
		return c.priority(h, payload)
	case http2.FrameGoAway:
		if h.stream != 0 {
			return protocolError("GOAWAY on a stream")
		}
		if len(payload) < 8 {
			return frameSizeError("GOAWAY")
		}
		return c.spend()
	case http2.FramePushPromise:
		return protocolError("a client pushes nothing")
	}
	return c.spend() // a frame of unknown type, which is ignored
}

func (c *conn) data(h frameHeader, payload []byte) *connError {
	if h.stream%2 == 0 || h.stream > c.ids.opened() {
		return protocolError("DATA on a stream that is not open")
	}
	if c.in.window -= len(payload); c.in.window < connWindow/2 {
		n := connWindow - c.in.window
		c.in.window = connWindow
		c.out.add(func(b []byte) []byte { return appendWindowUpdate(b, 0, n) })
	}
	b, ok := unpad(h, payload)
	if !ok {
		return protocolError("more padding than payload")
	}
	s := c.find(h.stream)
	if s == nil {
		if c.in.ended.has(h.stream) || h.stream > c.ids.last() {
			return c.spend()
		}
		return c.abort(h.stream, http2.ErrCodeStreamClosed)
	}
	if s.refused {
		return c.spend()
	}
	if s.ended {
		return c.abort(s.id, http2.ErrCodeStreamClosed)
	}
	if s.window -= len(payload); s.window < 0 {
		c.server.refused(reasonFlowControl)
		return c.abort(s.id, http2.ErrCodeFlowControl)
	}
	s.received += int64(len(b))
	if h.has(http2.FlagDataEndStream) && !s.parts {
		return c.endOfRequest(s, b)
	}
	if c.in.current == s && !c.register() {
		return nil
	}
	s.parts = true
	body, room := c.out.keepBody(s, b)
	switch r := s.tooLong(body); {
	case r != nil:
		c.noteUnread(s, r)
		c.refuse(s, r)
		return nil
	case !room:
		c.server.refused(reasonBuffered)
		c.refuse(s, s.refusal(codes.ResourceExhausted, "too many unfinished messages"))
		return nil
	case h.has(http2.FlagDataEndStream):
		return c.endOfRequest(s, nil)
	}
	if s.window < streamWindow/2 {
		n := streamWindow - s.window
		s.window = streamWindow
		c.out.add(func(b []byte) []byte { return appendWindowUpdate(b, s.id, n) })
	}
	return c.spendIf(len(b) == 0)
}

// endOfRequest processes END_STREAM, which ends a request. If the message has arrived in one DATA frame, it is body, in
// the read buffer; otherwise the send queue has it.
func (c *conn) endOfRequest(s *stream, body []byte) *connError {
	if s.header.length >= 0 && s.header.length != s.received {
		return c.abort(s.id, http2.ErrCodeProtocol)
	}
	s.ended = true
	if c.in.current == s {
		c.in.current = nil
	}
	if s.registered {
		parts, ok := c.out.takeBody(s)
		if !ok {
			return nil
		}
		if s.parts {
			body = parts
		}
	}
	c.complete(s, body)
	return nil
}

// complete processes a request that has arrived completely; body is its message with the prefix.
func (c *conn) complete(s *stream, body []byte) {
	c.limits.budget.earn()
	message, r := s.message(body)
	switch {
	case r != nil:
		c.noteUnread(s, r)
		c.refuse(s, r)
	case s.header.method == methodDecide:
		c.decide(s, message)
	case s.header.method == methodWatch:
		c.watch(s, message)
	default:
		c.health(s, message)
	}
}

// dispatch ends the processing of a read: it passes on the answers and calls, and returns the streams that have ended
// to the pool.
func (c *conn) dispatch() {
	c.flush()
	c.register()
	c.in.work.dead = c.out.removed(c.in.work.dead[:0])
	for _, s := range c.in.work.dead {
		if s.watch == nil { // otherwise the goroutine of the health watch may still use s
			free(s)
		}
	}
	clear(c.in.work.dead)
	workPool.Put(c.in.work)
	c.in.work = nil
}

// flush passes the answers of this read to the send queue, and its calls to the store.
func (c *conn) flush() {
	c.flushBundle()
	if len(c.in.work.waiting) > 0 {
		c.server.startAll(c, c.in.work.waiting)
		clear(c.in.work.waiting)
		c.in.work.waiting = c.in.work.waiting[:0]
	}
}

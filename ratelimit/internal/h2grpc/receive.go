package h2grpc

import (
	"time"

	"google.golang.org/grpc/codes"
)

// This file is the receiving side: one method for each type of frame. The reader calls them, in
// the order of the frames.

func (c *conn) headersFrame(h frameHeader, payload []byte) *connError {
	if h.stream%2 == 0 {
		return protocolError("HEADERS on a stream that no client opens")
	}
	b, ok := unpad(h, payload)
	if !ok {
		return protocolError("more padding than payload")
	}
	if h.has(flagPriority) {
		if len(b) < 5 {
			return frameSizeError("HEADERS with a priority")
		}
		if uint32At(b)&^(1<<31) == h.stream {
			return protocolError("a stream depends on itself")
		}
		b = b[5:]
	}
	if h.has(flagEndHeaders) {
		return c.headersDone(h.stream, h.has(flagEndStream), b)
	}
	c.block = block{open: true, stream: h.stream, ends: h.has(flagEndStream), text: append(c.block.text[:0], b...)}
	return nil
}

func (c *conn) continuation(h frameHeader, payload []byte) *connError {
	k := &c.block
	if !k.open {
		return protocolError("CONTINUATION without HEADERS")
	}
	if k.frames++; k.frames > maxContinuations || len(k.text)+len(payload) > maxBlock {
		return &connError{codeEnhanceYourCalm, reasonHeaders, "the header block is too long"}
	}
	k.text = append(k.text, payload...)
	if !h.has(flagEndHeaders) {
		return nil
	}
	k.open = false
	err := c.headersDone(k.stream, k.ends, k.text)
	if cap(k.text) > maxRemembered {
		k.text = nil
	}
	return err
}

// headersDone takes a whole header block: a new request's, or the trailers of one.
func (c *conn) headersDone(id uint32, ends bool, block []byte) *connError {
	if id <= c.ids.opened() {
		return c.trailers(id, ends, block)
	}
	served := c.ids.open(id)
	head, err := c.headers.read(block)
	if err != nil {
		return err
	}
	c.park()
	switch {
	case !served:
		return c.spend() // it will be tried elsewhere: our GOAWAY said so
	case head.malformed || ends && head.length > 0:
		return c.turnAway(id, codeProtocol)
	case c.open >= c.server.o.MaxStreams && c.out.open() >= c.server.o.MaxStreams:
		c.server.refused(reasonTooManyCalls)
		return c.turnAway(id, codeRefusedStream)
	}
	s := c.newStream(id)
	s.header, s.ended = head, ends
	switch {
	case head.tooLong:
		c.refuse(s, head.refusal)
		c.budget.left -= longListCost
		return c.spend()
	case head.refusal != nil:
		c.refuse(s, head.refusal)
	case !head.decides:
		return c.startExchange(s)
	case ends:
		c.complete(s, nil)
	default:
		c.current = s
	}
	return nil
}

// turnAway resets a stream that was not opened.
func (c *conn) turnAway(id uint32, code errCode) *connError {
	c.out.reset(id, code)
	c.forgetting(id)
	return c.spend()
}

// refuse answers a request that gets no further, whether it is complete or not.
func (c *conn) refuse(s *stream, r *refusal) {
	c.work.bundle.refuse(s, r)
	s.refused = true
	c.release(s)
	if !s.ended {
		c.forgetting(s.id)
	}
	if c.current == s {
		c.current = nil
	}
}

func (c *conn) trailers(id uint32, ends bool, block []byte) *connError {
	ok, err := c.headers.trailers(block)
	if err != nil {
		return err
	}
	s := c.find(id)
	switch {
	case s == nil && (c.wasReset(id) || id > c.lastID.Load()):
		return c.spend()
	case s == nil:
		return &connError{codeStreamClosed, reasonProtocol, "HEADERS on a closed stream"}
	case s.refused:
		return c.spend()
	case s.ended:
		return &connError{codeStreamClosed, reasonProtocol, "HEADERS behind END_STREAM"}
	case !ok || !ends:
		return c.abort(id, codeProtocol)
	}
	return c.endOfRequest(s, s.body)
}

func (c *conn) data(h frameHeader, payload []byte) *connError {
	if h.stream%2 == 0 || h.stream > c.ids.opened() {
		return protocolError("DATA on a stream that is not open")
	}
	if c.window -= len(payload); c.window < connWindow/2 {
		n := connWindow - c.window
		c.window = connWindow
		c.out.add(func(b []byte) []byte { return appendWindowUpdate(b, 0, n) })
	}
	b, ok := unpad(h, payload)
	if !ok {
		return protocolError("more padding than payload")
	}
	s := c.find(h.stream)
	if s == nil {
		if c.wasReset(h.stream) || h.stream > c.lastID.Load() {
			return c.spend()
		}
		return c.abort(h.stream, codeStreamClosed)
	}
	if s.refused {
		return c.spend()
	}
	if s.ended {
		return c.abort(s.id, codeStreamClosed)
	}
	if s.exchange != nil {
		s.window += int(s.exchange.credited.Swap(0))
	}
	if s.window -= len(payload); s.window < 0 {
		c.server.refused(reasonFlowControl)
		return c.abort(s.id, codeFlowControl)
	}
	s.received += int64(len(b))
	if s.exchange != nil {
		if !c.account(s, len(b)) {
			c.server.refused(reasonBuffered)
			return c.abort(s.id, codeEnhanceYourCalm)
		}
		s.exchange.receive(b, len(payload)-len(b))
		if h.has(flagEndStream) {
			return c.endOfRequest(s, nil)
		}
		return c.spendIf(len(b) == 0)
	}
	if h.has(flagEndStream) && s.kept == 0 {
		return c.endOfRequest(s, b)
	}
	kept := c.keepBody(s, b)
	if r := s.tooLong(s.body); r != nil {
		c.refuse(s, r)
		return nil
	}
	if !kept {
		c.server.refused(reasonBuffered)
		c.refuse(s, s.refusal(codes.ResourceExhausted, "too many unfinished messages"))
		return nil
	}
	if h.has(flagEndStream) {
		return c.endOfRequest(s, s.body)
	}
	if s.window < streamWindow/2 {
		n := streamWindow - s.window
		s.window = streamWindow
		c.out.add(func(b []byte) []byte { return appendWindowUpdate(b, s.id, n) })
	}
	return c.spendIf(len(b) == 0)
}

// maxBuffered bounds the unfinished messages of a connection, in bytes.
const maxBuffered = 8 << 20

// endOfRequest is END_STREAM. The body may lie in the read buffer.
func (c *conn) endOfRequest(s *stream, body []byte) *connError {
	if s.header.length >= 0 && s.header.length != s.received {
		return c.abort(s.id, codeProtocol)
	}
	s.ended = true
	if c.current == s {
		c.current = nil
	}
	if s.registered {
		c.out.mu.Lock()
		s.open = false
		c.out.mu.Unlock()
	}
	if s.exchange != nil {
		s.exchange.receiveEnd()
		return nil
	}
	c.complete(s, body)
	return nil
}

// complete decides a request that has come in full.
func (c *conn) complete(s *stream, body []byte) {
	c.budget.earn()
	if message, r := s.message(body); r != nil {
		c.refuse(s, r)
	} else {
		c.decide(s, message)
	}
	c.release(s)
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
			return &connError{codeFlowControl, reasonFlowControl, "the connection's window is too large"}
		}
		c.out.pump()
		return c.spend()
	}
	if h.stream > c.ids.opened() || h.stream%2 == 0 {
		return protocolError("WINDOW_UPDATE on a stream that is not open")
	}
	c.park()
	if n == 0 {
		return c.abort(h.stream, codeProtocol)
	}
	c.findPassed(h.stream)
	c.out.mu.Lock()
	s := c.out.streams[h.stream]
	over := false
	if s != nil {
		s.credit += n
		if over = c.out.initial+s.credit > maxWindow; !over {
			c.out.pump()
			if s.exchange != nil {
				s.exchange.roomier()
			}
		}
	}
	c.out.mu.Unlock()
	if over {
		c.server.refused(reasonFlowControl)
		return c.abort(h.stream, codeFlowControl)
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
	if s := c.current; s != nil && s.id == h.stream {
		c.current = nil
		c.release(s)
		free(s)
	} else if s := c.findPassed(h.stream); s != nil {
		c.release(s)
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
	if h.has(flagAck) {
		if string(payload) == string(drainPing) {
			c.drained.Store(true)
			c.server.tick(c, time.Now())
		}
		return c.spend()
	}
	c.out.mu.Lock()
	sent := c.out.sent
	c.out.sent = false
	if !c.out.closed {
		c.out.grab()
		c.out.buf = appendPing(c.out.buf, flagAck, payload)
	}
	c.out.mu.Unlock()
	// As grpc-go judges pings, since its clients reckon with it: answers in between forgive them.
	now := time.Now()
	switch {
	case sent:
		c.strikes = 0
	case !c.lastPing.IsZero() && now.Sub(c.lastPing) < c.server.o.MinPing:
		c.strikes++
	}
	c.lastPing = now
	if c.strikes > 2 {
		return &connError{codeEnhanceYourCalm, reasonPings, "too_many_pings"}
	}
	return c.spend()
}

func (c *conn) settings(h frameHeader, payload []byte) *connError {
	if h.stream != 0 {
		return protocolError("SETTINGS on a stream")
	}
	if h.has(flagAck) {
		if len(payload) != 0 {
			return frameSizeError("SETTINGS acknowledgement")
		}
		c.settingsAck.Store(true)
		return c.spend()
	}
	if len(payload)%6 != 0 {
		return frameSizeError("SETTINGS")
	}
	if !c.settled {
		c.settled = true
		c.net.SetReadDeadline(time.Time{})
	}
	if len(payload) > 6*64 {
		return &connError{codeEnhanceYourCalm, reasonFlood, "too many SETTINGS"}
	}
	if err := c.out.configure(payload); err != nil {
		return err
	}
	return c.spend()
}

// configure takes the peer's SETTINGS and acknowledges them.
func (o *outbox) configure(payload []byte) *connError {
	o.mu.Lock()
	defer o.mu.Unlock()
	for ; len(payload) > 0; payload = payload[6:] {
		id, v := uint16(payload[0])<<8|uint16(payload[1]), uint32At(payload[2:])
		switch id {
		case settingHeaderTableSize:
			o.encoder.resize(int(min(v, tableSize)))
		case settingEnablePush:
			if v > 1 {
				return protocolError("SETTINGS_ENABLE_PUSH is neither 0 nor 1")
			}
		case settingInitialWindowSize:
			if v > maxWindow {
				return &connError{codeFlowControl, reasonFlowControl, "SETTINGS_INITIAL_WINDOW_SIZE is too large"}
			}
			for _, s := range o.streams {
				if int64(v)+s.credit > maxWindow {
					return &connError{codeFlowControl, reasonFlowControl, "a stream's window is too large"}
				}
			}
			o.initial = int64(v)
		case settingMaxFrameSize:
			if v < maxFrame || v > 1<<24-1 {
				return protocolError("SETTINGS_MAX_FRAME_SIZE is not between 16384 and 16777215")
			}
			o.frameSize = int(v)
		}
	}
	if !o.closed {
		o.grab()
		o.buf = appendFrameHeader(o.buf, 0, frameSettings, flagAck, 0)
	}
	o.pump()
	for _, s := range o.streams {
		if s.exchange != nil {
			s.exchange.roomier()
		}
	}
	return nil
}

func (c *conn) priority(h frameHeader, payload []byte) *connError {
	if h.stream == 0 {
		return protocolError("PRIORITY without a stream")
	}
	if len(payload) != 5 {
		return c.abortIdle(h.stream, codeFrameSize)
	}
	if uint32At(payload)&^(1<<31) == h.stream {
		return c.abortIdle(h.stream, codeProtocol)
	}
	return c.spend()
}

// abortIdle resets a stream that may not have been opened: that is a connection error then.
func (c *conn) abortIdle(id uint32, code errCode) *connError {
	if id > c.ids.opened() || id%2 == 0 {
		return &connError{code, reasonProtocol, "PRIORITY"}
	}
	return c.abort(id, code)
}

// budget is how many frames a connection may send that begin no call. Every call earns some, and so does time.
type budget struct {
	left   int
	filled time.Time
}

const (
	budgetMost      = 2000
	budgetPerCall   = 4
	budgetPerSecond = 200
	longListCost    = 100 // of a list of fields that is too long: decoding one takes a millisecond
)

func newBudget() budget { return budget{left: budgetMost, filled: time.Now()} }

func (b *budget) earn() {
	if b.left < budgetMost {
		b.left += budgetPerCall
	}
}

func (b *budget) spend() bool {
	if b.left--; b.left > 0 {
		return true
	}
	now := time.Now()
	b.left = min(budgetMost, int(now.Sub(b.filled).Seconds()*budgetPerSecond))
	b.filled = now
	return b.left > 0
}

// spend pays for a frame that is no part of a call.
func (c *conn) spend() *connError {
	if !c.budget.spend() {
		return &connError{codeEnhanceYourCalm, reasonFlood, "too many frames without calls"}
	}
	return nil
}

func (c *conn) spendIf(pays bool) *connError {
	if pays {
		return c.spend()
	}
	return nil
}

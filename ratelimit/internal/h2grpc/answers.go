package h2grpc

import (
	"bytes"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// answer is the answer to one call: a message, or a refusal.
type answer struct {
	stream *stream
	// from and to are where the message begins and ends in bundle.text. They have no meaning in a refusal.
	from, to int
	refusal  *refusal
	// early means that the client has not sent its whole request. It gets RST_STREAM after the answer, so that it stops
	// sending.
	early bool
}

// bundle collects answers that are sent together: the answers to the calls of one read, or of one batch of the store.
// It is reused.
type bundle struct {
	answers []answer
	text    []byte
}

var bundlePool = sync.Pool{New: func() any { return new(bundle) }}

func (b *bundle) reset() {
	clear(b.answers)
	b.answers, b.text = b.answers[:0], b.text[:0]
	if cap(b.text) > bufferBytes {
		b.text = nil
	}
}

// answer appends the frames of all answers of a bundle to the queue. finished is how many of the answers are to calls
// that were in the store.
func (o *sendQueue) answer(b *bundle, finished int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.inStore -= finished; finished > 0 {
		o.room.Signal()
	}
	if o.closed {
		return
	}
	o.grab()
	for i := range b.answers {
		a := &b.answers[i]
		if a.stream.inStore = false; a.stream.gone { // the client has reset the stream meanwhile
			o.remove(a.stream)
			continue
		}
		if a.refusal != nil {
			o.refuse(a)
			continue
		}
		o.reply(a, b.text[a.from:a.to])
	}
}

// reply appends the frames of an answer that has a message. If flow control does not allow all of the message, the rest
// waits in the stream's pending. o.mu is held.
func (o *sendQueue) reply(a *answer, message []byte) {
	s := a.stream
	s.early = a.early
	o.sent = true
	size := len(message)
	whole := int64(size) <= min(o.window, o.initial+s.credit) && size <= o.frameSize && len(o.blocked) == 0
	o.begin(s)
	if !whole {
		s.pending = bytes.Clone(message)
		o.hold(s)
		s.inStore = false
		o.register(s)
		o.queue(s)
		return
	}
	o.window -= int64(size)
	o.buf = append(appendFrameHeader(o.buf, size, http2.FrameData, 0, s.id), message...)
	o.finish(s)
}

// begin appends the HEADERS frame that comes before the message of an answer. o.mu is held.
func (o *sendQueue) begin(s *stream) {
	at := len(o.buf)
	o.buf = appendFrameHeader(o.buf, 0, http2.FrameHeaders, http2.FlagHeadersEndHeaders, s.id)
	o.buf = o.encoder.headers(o.buf, &s.header)
	o.setLength(at)
}

// finish appends the HEADERS frame with the trailers, after the message of an answer, and ends the stream. o.mu is
// held.
func (o *sendQueue) finish(s *stream) {
	at := len(o.buf)
	o.buf = appendFrameHeader(o.buf, 0, http2.FrameHeaders, lastHeaders, s.id)
	o.buf = o.encoder.trailers(o.buf)
	o.setLength(at)
	if s.early {
		o.buf = appendReset(o.buf, s.id, http2.ErrCodeNo)
	}
	o.forget(s)
}

// refuse appends the frames of an answer that has no message, and ends the stream. o.mu is held.
func (o *sendQueue) refuse(a *answer) {
	o.sent = true
	at := len(o.buf)
	o.buf = appendFrameHeader(o.buf, 0, http2.FrameHeaders, lastHeaders, a.stream.id)
	o.buf = o.encoder.refusal(o.buf, a.refusal)
	o.setLength(at)
	if a.early {
		o.buf = appendReset(o.buf, a.stream.id, http2.ErrCodeNo)
	}
	o.forget(a.stream)
}

// flush sends the frames in the queue, as far as that is possible without waiting. If some are left, it has a goroutine
// send them.
func (o *sendQueue) flush() {
	o.mu.Lock()
	if o.writing || len(o.buf) == 0 && o.wire.left() == 0 {
		o.mu.Unlock()
		return
	}
	o.writing = true
	if len(o.buf) == 0 { // the TLS layer has written something on its own, such as an answer to a change of keys
		o.mu.Unlock()
		go o.drain()
		return
	}
	for len(o.buf) > 0 {
		b := o.buf
		o.buf = nil
		o.mu.Unlock()
		sent, err := o.wire.write(b)
		recycle(b)
		if err != nil {
			o.broken(err)
			return // o.writing stays true, so that nothing more is sent
		}
		if !sent {
			go o.drain()
			return
		}
		o.mu.Lock()
	}
	o.sentAll()
}

// drain sends the remaining frames until the queue is empty. It waits for the client, for at most o.patience for each
// write.
func (o *sendQueue) drain() {
	for {
		o.mu.Lock()
		o.waiting = o.wire.left()
		o.mu.Unlock()
		if err := o.wire.drain(time.Now().Add(o.patience)); err != nil {
			o.broken(err)
			return
		}
		o.mu.Lock()
		o.waiting = 0
		b := o.buf
		if len(b) == 0 {
			o.sentAll()
			return
		}
		o.buf = nil
		o.room.Signal()
		o.mu.Unlock()
		_, err := o.wire.write(b)
		recycle(b)
		if err != nil {
			o.broken(err)
			return
		}
	}
}

// sentAll ends a flush after which nothing is left to send. It is called with o.mu held, and unlocks it.
func (o *sendQueue) sentAll() {
	o.writing = false
	if o.buf != nil {
		recycle(o.buf)
		o.buf = nil
	}
	end := o.ending && !o.closed
	o.room.Signal()
	o.mu.Unlock()
	if end {
		o.broken(nil)
	}
}

// queue adds a stream to the streams that wait for flow control, and sends as much of the streams' answers as flow
// control allows now. o.mu is held.
func (o *sendQueue) queue(s *stream) {
	if !s.queued {
		s.queued, s.stalled = true, time.Now()
		o.blocked = append(o.blocked, s)
	}
	o.pump()
}

// pump appends as much of the waiting answers as flow control allows now. o.mu is held.
func (o *sendQueue) pump() {
	if o.closed || len(o.blocked) == 0 {
		return
	}
	o.keepBlocked(o.pumpOne)
}

// pumpOne is pump for the answer of one stream. It reports whether a part of the answer still has to wait.
func (o *sendQueue) pumpOne(s *stream) (blocked bool) {
	for len(s.pending) > 0 {
		n := min(o.window, o.initial+s.credit, int64(o.frameSize), int64(len(s.pending)))
		if n <= 0 {
			return true
		}
		s.stalled = time.Now()
		o.grab()
		o.buf = append(appendFrameHeader(o.buf, int(n), http2.FrameData, 0, s.id), s.pending[:n]...)
		s.pending = s.pending[n:]
		o.window -= n
		s.credit -= n
	}
	s.pending = nil
	o.hold(s)
	if s.watch == nil { // a health watch stays open: its next message queues it again
		o.grab()
		o.finish(s)
	}
	return false
}

package h2grpc

import (
	"bytes"
	"time"
)

// answer is the answer to one call: a message, or a refusal.
type answer struct {
	stream *stream
	// from and to are where the message lies in the bundle's text.
	from, to int
	refusal  *refusal
	// early: the client has not ended its request, and gets RST_STREAM so that it stops.
	early bool
}

// bundle is the answers to the calls of one read, or of one batch of the store. It is reused.
type bundle struct {
	answers []answer
	text    []byte
}

func (b *bundle) reset() {
	clear(b.answers)
	b.answers, b.text = b.answers[:0], b.text[:0]
	if cap(b.text) > bufferBytes {
		b.text = nil
	}
}

// answer appends all answers of a bundle; finished is how many of them a store has finished.
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
		if a.stream.inStore = false; a.stream.gone { // reset meanwhile
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

// reply appends an answer with a message, or as much as the windows allow. The lock is held.
func (o *sendQueue) reply(a *answer, message []byte) {
	s := a.stream
	s.early = a.early
	o.sent = true
	size := len(message)
	whole := int64(size) <= min(o.window, o.initial+s.credit) && size <= o.frameSize && len(o.blocked) == 0
	at := len(o.buf)
	o.buf = o.encoder.headers(appendFrameHeader(o.buf, 0, frameHeaders, flagEndHeaders, s.id), &s.header)
	o.setLength(at)
	if !whole {
		s.pending = bytes.Clone(message)
		o.hold(s)
		s.inStore = false
		o.register(s)
		o.queue(s)
		return
	}
	o.window -= int64(size)
	o.buf = append(appendFrameHeader(o.buf, size, frameData, 0, s.id), message...)
	o.finish(s)
}

// finish appends the trailers of an answer whose message has been appended. The lock is held.
func (o *sendQueue) finish(s *stream) {
	at := len(o.buf)
	o.buf = appendFrameHeader(o.buf, 0, frameHeaders, flagEndHeaders|flagEndStream, s.id)
	o.buf = o.encoder.trailers(o.buf)
	o.setLength(at)
	if s.early {
		o.buf = appendReset(o.buf, s.id, codeNo)
	}
	o.forget(s)
}

// refuse appends an answer without a message. The lock is held.
func (o *sendQueue) refuse(a *answer) {
	o.sent = true
	at := len(o.buf)
	o.buf = o.encoder.refusal(appendFrameHeader(o.buf, 0, frameHeaders, flagEndHeaders|flagEndStream, a.stream.id),
		a.refusal)
	o.setLength(at)
	if a.early {
		o.buf = appendReset(o.buf, a.stream.id, codeNo)
	}
	o.forget(a.stream)
}

// queue puts a stream behind those that wait for a window, and sends what goes. The lock is held.
func (o *sendQueue) queue(s *stream) {
	if !s.queued {
		s.queued, s.stalled = true, time.Now()
		o.blocked = append(o.blocked, s)
	}
	o.pump()
}

// pump appends of the blocked answers what the windows allow now. The lock is held.
func (o *sendQueue) pump() {
	if o.closed || len(o.blocked) == 0 {
		return
	}
	o.keepBlocked(o.pumpOne)
}

// keepBlocked drops the streams that are gone or need not wait any longer. The lock is held.
func (o *sendQueue) keepBlocked(waits func(*stream) bool) {
	kept := o.blocked[:0]
	for _, s := range o.blocked {
		if !s.gone && waits(s) {
			kept = append(kept, s)
			continue
		}
		s.queued = false
		o.remove(s)
	}
	clear(o.blocked[len(kept):])
	o.blocked, o.lost = kept, 0
}

// cut ends a stream that was reset. The lock is held.
func (o *sendQueue) cut(s *stream) {
	if s.gone {
		return
	}
	o.forget(s)
	if !s.queued {
		return
	}
	// A peer that opens no window and resets its calls must not make this list grow.
	if o.lost++; o.lost < 64 || 2*o.lost < len(o.blocked) {
		return
	}
	o.keepBlocked(func(*stream) bool { return true })
}

// pumpOne reports whether the stream still has to wait.
func (o *sendQueue) pumpOne(s *stream) (blocked bool) {
	for len(s.pending) > 0 {
		n := min(o.window, o.initial+s.credit, int64(o.frameSize), int64(len(s.pending)))
		if n <= 0 {
			return true
		}
		s.stalled = time.Now()
		o.grab()
		o.buf = append(appendFrameHeader(o.buf, int(n), frameData, 0, s.id), s.pending[:n]...)
		s.pending = s.pending[n:]
		o.window -= n
		s.credit -= n
	}
	s.pending = nil
	o.hold(s)
	if s.watch == nil { // else its next state queues it again
		o.grab()
		o.finish(s)
	}
	return false
}

// admit registers a stream whose request is not complete, unless there are too many.
func (o *sendQueue) admit(s *stream, limit int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s.registered {
		return true
	}
	if len(o.streams) >= limit {
		o.refuseStream(s)
		return false
	}
	o.register(s)
	return true
}

func (o *sendQueue) refuseStream(s *stream) {
	o.put(func(b []byte) []byte { return appendReset(b, s.id, codeRefusedStream) })
	o.forget(s)
}

// reset ends a stream by RST_STREAM.
func (o *sendQueue) reset(id uint32, code errCode) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.streams[id]; s != nil {
		o.cut(s)
	}
	o.put(func(b []byte) []byte { return appendReset(b, id, code) })
}

// push appends a message of a watch, which stays open; false: the stream has ended.
func (o *sendQueue) push(s *stream, message []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s.gone || o.closed {
		return false
	}
	o.sent = true
	o.grab()
	if !s.begun {
		s.begun = true
		at := len(o.buf)
		o.buf = o.encoder.headers(appendFrameHeader(o.buf, 0, frameHeaders, flagEndHeaders, s.id), &s.header)
		o.setLength(at)
	}
	s.pending = append(s.pending, message...)
	o.hold(s)
	o.queue(s)
	return true
}

// endWatch ends a watch with a status, and resets it if a message waits for a window.
func (o *sendQueue) endWatch(s *stream, r *refusal) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case s.gone || o.closed:
	case !s.begun:
		o.grab()
		o.refuse(&answer{stream: s, refusal: r})
	case len(s.pending) > 0:
		o.put(func(b []byte) []byte { return appendReset(b, s.id, codeCancel) })
		o.cut(s)
	default:
		o.grab()
		at := len(o.buf)
		o.buf = o.encoder.failure(appendFrameHeader(o.buf, 0, frameHeaders, flagEndHeaders|flagEndStream, s.id), r)
		o.setLength(at)
		o.forget(s)
	}
}

package h2grpc

import (
	"time"

	"golang.org/x/net/http2"
)

// queue adds a stream to those that wait for a window, and sends what the windows allow. The lock is held.
func (o *sendQueue) queue(s *stream) {
	if !s.queued {
		s.queued, s.stalled = true, time.Now()
		o.blocked = append(o.blocked, s)
	}
	o.pump()
}

// pump appends as much of the blocked answers as the windows allow now. The lock is held.
func (o *sendQueue) pump() {
	if o.closed || len(o.blocked) == 0 {
		return
	}
	o.keepBlocked(o.pumpOne)
}

// keepBlocked keeps the blocked streams that have to wait longer. The lock is held.
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

// pumpOne reports whether the stream still has to wait.
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
	if s.watch == nil { // a watch is queued again by its next state
		o.grab()
		o.finish(s)
	}
	return false
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
	// A peer that opens no window and resets its calls must not make o.blocked grow.
	if o.lost++; o.lost < 64 || 2*o.lost < len(o.blocked) {
		return
	}
	o.keepBlocked(func(*stream) bool { return true })
}

package h2grpc

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

// fullQueue is how many bytes may wait to be sent before the connection is no longer read.
const fullQueue = 256 << 10

// sendQueue is the sending side of a connection: the bytes to send, the peer's windows, and the streams that have no
// answer yet. One lock guards all of them, and nothing waits while the lock is held.
type sendQueue struct {
	wire wire
	// patience is how long the peer may take for the rest of one write.
	patience time.Duration
	// broken is called, without the lock, with an error when nothing more can be sent; with nil, perhaps twice, when
	// all is sent and the queue is ending.
	broken func(error)

	mu      sync.Mutex
	room    sync.Cond // signaled when the reader may go on
	buf     []byte    // frames that no flush has taken; nil or pooled
	writing bool      // a flush is running, and takes the frames that others append meanwhile
	waiting int       // bytes that the wire has not sent yet
	closed  bool      // nothing more is sent
	ending  bool      // closes when all is sent
	encoder encoder
	sent    bool // HEADERS or DATA were sent since the last ping was judged

	window    int64 // of the connection; never negative
	initial   int64 // window of a new stream
	frameSize int
	streams   map[uint32]*stream // registered, by id
	blocked   []*stream          // streams whose answers wait for a window, in order
	lost      int                // how many streams in blocked were reset
	inStore   int                // calls that a store has not finished, including those of reset streams
	dead      []*stream          // registered streams that have ended, for the reader to reuse

	account *account
	held    atomic.Int64 // how much of the account this connection's streams and block hold
	block   []byte       // a header block that arrives in several frames
	opened  time.Time    // when the block began
}

func newSendQueue(w wire, a *account, patience time.Duration, broken func(error)) *sendQueue {
	o := &sendQueue{
		wire: w, account: a, patience: patience, broken: broken, encoder: newEncoder(),
		window: defaultWindow, initial: defaultWindow, frameSize: maxFrame, streams: map[uint32]*stream{},
	}
	o.room.L = &o.mu
	return o
}

var bufferPool = sync.Pool{New: func() any { return new([bufferBytes]byte) }}

// grab ensures that there is a buffer to append to. The lock is held.
func (o *sendQueue) grab() {
	if o.buf == nil {
		o.buf = bufferPool.Get().(*[bufferBytes]byte)[:0]
	}
}

// recycle returns to the pool a buffer from grab, unless it has grown.
func recycle(b []byte) {
	if cap(b) == bufferBytes {
		bufferPool.Put((*[bufferBytes]byte)(b[:bufferBytes]))
	}
}

// add appends frames that need no window.
func (o *sendQueue) add(f func(dst []byte) []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.put(f)
}

// put is add with the lock held.
func (o *sendQueue) put(f func(dst []byte) []byte) {
	if !o.closed {
		o.grab()
		o.buf = f(o.buf)
	}
}

// setLength sets the length of the frame that begins at an offset, and splits it into CONTINUATION frames where it is
// too long. The lock is held.
func (o *sendQueue) setLength(at int) {
	n := len(o.buf) - at - frameHeaderLen
	if n > o.frameSize {
		o.split(at, n)
		return
	}
	o.buf[at], o.buf[at+1], o.buf[at+2] = byte(n>>16), byte(n>>8), byte(n)
}

func (o *sendQueue) split(at, n int) {
	head := parseFrameHeader(o.buf[at:])
	block := append([]byte(nil), o.buf[at+frameHeaderLen:]...)
	o.buf = o.buf[:at]
	kind, flags := head.kind, head.flags&^http2.FlagHeadersEndHeaders
	for n > 0 {
		k := min(n, o.frameSize)
		if k == n {
			flags |= http2.FlagHeadersEndHeaders
		}
		o.buf = append(appendFrameHeader(o.buf, k, kind, flags, head.stream), block[:k]...)
		block, n = block[k:], n-k
		kind, flags = http2.FrameContinuation, 0
	}
}

// find returns the registered stream with that id, or nil.
func (o *sendQueue) find(id uint32) *stream {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.streams[id]
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

// register enters a stream into the table, in which the peer's frames find it. The lock is held.
func (o *sendQueue) register(s *stream) {
	if !s.registered {
		s.registered = true
		o.streams[s.id] = s
	}
}

// forget ends a stream. The lock is held.
func (o *sendQueue) forget(s *stream) {
	if s.gone {
		return
	}
	s.gone = true
	s.body, s.pending = nil, nil
	o.hold(s)
	if s.watch != nil {
		s.watch()
	}
	if s.registered {
		delete(o.streams, s.id)
		o.remove(s)
	}
}

// remove lets the reader reuse a stream that has ended, once no list and no store refers to it. The lock is held.
func (o *sendQueue) remove(s *stream) {
	if s.gone && s.registered && !s.removed && !s.queued && !s.inStore {
		s.removed = true
		o.dead = append(o.dead, s)
	}
}

// removed appends the streams that have ended since the last call.
func (o *sendQueue) removed(into []*stream) []*stream {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.dead {
		if s.removed = !s.inStore; s.removed { // a stream reset while the store has its call is still in use
			into = append(into, s)
		}
	}
	clear(o.dead)
	o.dead = o.dead[:0]
	return into
}

// reset ends a stream by RST_STREAM.
func (o *sendQueue) reset(id uint32, code http2.ErrCode) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.streams[id]; s != nil {
		o.cut(s)
	}
	o.put(func(b []byte) []byte { return appendReset(b, id, code) })
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

func (o *sendQueue) refuseStream(s *stream) {
	o.put(func(b []byte) []byte { return appendReset(b, s.id, http2.ErrCodeRefusedStream) })
	o.forget(s)
}

// goAway appends GOAWAY, after which the connection ends. The lock is held.
func (o *sendQueue) goAway(last uint32, code http2.ErrCode, debug string) {
	if !o.closed {
		o.grab()
		o.buf = appendGoAway(o.buf, last, code, debug)
		o.ending = true
	}
}

// waitRoom waits until the peer has taken enough answers and the store has finished enough calls that more may be read.
// It returns how many streams are open; ok is false when nothing more is sent.
func (o *sendQueue) waitRoom(calls int) (open int, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.closed && (len(o.buf)+o.waiting > fullQueue || o.inStore >= calls) {
		o.room.Wait()
	}
	return len(o.streams), !o.closed
}

// open returns how many streams are registered.
func (o *sendQueue) open() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.streams)
}

// close ends the sending side and all its streams.
func (o *sendQueue) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for _, s := range o.streams {
		o.forget(s)
	}
	o.blocked = nil
	o.holdBlock(nil)
	o.room.Broadcast()
}

package h2grpc

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

// fullQueue is how many bytes may wait to be sent. While there are more, the connection is not read.
const fullQueue = 256 << 10

// sendQueue is the sending side of a connection: the bytes to send, the client's flow-control windows, and the streams
// that are not answered yet. One lock guards all of them; no goroutine waits for the network while it holds the lock.
type sendQueue struct {
	wire wire
	// patience is how long the client may take to accept the rest of one write.
	patience time.Duration
	// broken is called, while o.mu is not held: with an error when nothing more can be sent; with nil, perhaps twice,
	// when all is sent and the connection is to end.
	broken func(error)

	mu      sync.Mutex
	room    sync.Cond // signaled when the reader may read again; see waitRoom
	buf     []byte    // frames that no flush has taken yet; nil, or from a pool
	writing bool      // a flush is running, which also sends frames that are appended meanwhile
	waiting int       // how many bytes the wire has not sent yet
	closed  bool      // nothing more is sent
	ending  bool      // the connection is to end when all is sent
	encoder encoder
	sent    bool // HEADERS or DATA were sent since the last ping of the client

	window    int64 // how many bytes may be sent on the connection; never negative
	initial   int64 // how many bytes may be sent on a new stream
	frameSize int
	streams   map[uint32]*stream // the streams that are registered, by their numbers
	blocked   []*stream          // the streams whose answers wait for flow control, in order
	lost      int                // how many streams in blocked were reset
	inStore   int                // how many calls are in a store, including those of streams that were reset
	dead      []*stream          // registered streams that have ended, for the reader to reuse

	account *account
	held    atomic.Int64 // how many bytes of the account this connection's streams and header block hold
	block   []byte       // the header block that arrives in several frames, so far
	opened  time.Time    // when that block began
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

// grab makes o.buf a buffer from the pool if it is nil. o.mu is held.
func (o *sendQueue) grab() {
	if o.buf == nil {
		o.buf = bufferPool.Get().(*[bufferBytes]byte)[:0]
	}
}

// recycle returns a buffer that grab has taken to the pool, unless it has grown.
func recycle(b []byte) {
	if cap(b) == bufferBytes {
		bufferPool.Put((*[bufferBytes]byte)(b[:bufferBytes]))
	}
}

// add appends frames that flow control does not limit. f appends them to dst.
func (o *sendQueue) add(f func(dst []byte) []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.put(f)
}

// put is add for callers that hold o.mu.
func (o *sendQueue) put(f func(dst []byte) []byte) {
	if !o.closed {
		o.grab()
		o.buf = f(o.buf)
	}
}

// setLength sets the length of the HEADERS frame that begins at index at of o.buf and ends with o.buf. If the frame is
// too long, setLength splits it into CONTINUATION frames. o.mu is held.
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

// find returns the registered stream with the number id, or nil.
func (o *sendQueue) find(id uint32) *stream {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.streams[id]
}

// admit registers a stream whose request is not complete. If limit streams are registered already, it refuses the
// stream and returns false.
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

// register enters a stream into o.streams, so that later frames of the stream find it. o.mu is held.
func (o *sendQueue) register(s *stream) {
	if !s.registered {
		s.registered = true
		o.streams[s.id] = s
	}
}

// forget ends a stream. o.mu is held.
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

// remove adds a stream that has ended to o.dead for reuse, once neither the list blocked nor a store refers to it. o.mu
// is held.
func (o *sendQueue) remove(s *stream) {
	if s.gone && s.registered && !s.removed && !s.queued && !s.inStore {
		s.removed = true
		o.dead = append(o.dead, s)
	}
}

// removed appends the streams of o.dead to into, and empties o.dead.
func (o *sendQueue) removed(into []*stream) []*stream {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.dead {
		if s.removed = !s.inStore; s.removed { // a stream that was reset while its call is in the store is still in use
			into = append(into, s)
		}
	}
	clear(o.dead)
	o.dead = o.dead[:0]
	return into
}

// reset resets the stream with the number id: it sends RST_STREAM and ends the stream.
func (o *sendQueue) reset(id uint32, code http2.ErrCode) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.streams[id]; s != nil {
		o.cut(s)
	}
	o.put(func(b []byte) []byte { return appendReset(b, id, code) })
}

// cut ends a stream that was reset. o.mu is held.
func (o *sendQueue) cut(s *stream) {
	if s.gone {
		return
	}
	o.forget(s)
	if !s.queued {
		return
	}
	// Remove reset streams from o.blocked when 64 or more may be in it and they may be half of it. Otherwise a client
	// that leaves its windows closed and resets its calls would make the list grow.
	if o.lost++; o.lost < 64 || 2*o.lost < len(o.blocked) {
		return
	}
	o.keepBlocked(func(*stream) bool { return true })
}

// keepBlocked removes from o.blocked the streams that have ended, and the streams for which the function waits returns
// false. o.mu is held.
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

// goAway appends GOAWAY, and has the connection end when the GOAWAY is sent. o.mu is held.
func (o *sendQueue) goAway(last uint32, code http2.ErrCode, debug string) {
	if !o.closed {
		o.grab()
		o.buf = appendGoAway(o.buf, last, code, debug)
		o.ending = true
	}
}

// waitRoom waits until more may be read: until the client has accepted enough of the answers, and the store has
// finished enough calls. open is how many streams are registered; ok is false if nothing more can be sent.
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

// close ends the sending side and all streams.
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

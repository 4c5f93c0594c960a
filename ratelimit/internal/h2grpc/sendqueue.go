package h2grpc

import (
	"bytes"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// fullQueue is how much may wait to be sent before the connection is no longer read.
	fullQueue = 256 << 10
	// bufferBytes is the size of pooled buffers, for reading and for writing.
	bufferBytes = 64 << 10
)

// sendQueue is the sending side of a connection: what is to be sent, the peer's windows, and the streams that have no
// answer yet. Its lock is the only one over them, and nothing waits while it is held.
type sendQueue struct {
	wire wire
	// patience is how long the peer may take for what one write has left.
	patience time.Duration
	// broken is called without the lock when nothing can be sent any more; with nil, perhaps twice, when all is sent.
	broken func(error)

	mu      sync.Mutex
	room    sync.Cond // signalled when the reader may go on
	buf     []byte    // frames that no flush has taken; nil or pooled
	writing bool      // a flush is at work; it takes what others append meanwhile
	waiting int       // bytes that the wire has left
	closed  bool      // nothing is sent any more
	ending  bool      // closes when all is sent
	encoder encoder
	sent    bool // HEADERS or DATA were sent since the last ping was judged

	window    int64 // of the connection; negative never
	initial   int64 // window of a new stream
	frameSize int
	streams   map[uint32]*stream // registered, by id
	blocked   []*stream          // answers that wait for a window, first come first
	lost      int                // of blocked: streams that were reset
	inStore   int                // calls that a store has not finished, those of reset streams among them
	dead      []*stream          // registered ones that have ended, for the reader to reuse

	account *account
	held    atomic.Int64 // of the account: what this connection's streams and block hold
	block   []byte       // a header block that comes in several frames
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

var buffers = sync.Pool{New: func() any { return new([bufferBytes]byte) }}

// grab makes sure that there is a buffer to append to. The lock is held.
func (o *sendQueue) grab() {
	if o.buf == nil {
		o.buf = buffers.Get().(*[bufferBytes]byte)[:0]
	}
}

// recycle gives back a buffer that grab got, unless it has grown.
func recycle(b []byte) {
	if cap(b) == bufferBytes {
		buffers.Put((*[bufferBytes]byte)(b[:bufferBytes]))
	}
}

// add appends frames that no window holds back.
func (o *sendQueue) add(f func(dst []byte) []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.grab()
		o.buf = f(o.buf)
	}
}

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

// setLength completes the frame that begins at an offset, and splits off CONTINUATION frames where it is too long.
// The lock is held.
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
	kind, flags := head.kind, head.flags&^flagEndHeaders
	for n > 0 {
		k := min(n, o.frameSize)
		if k == n {
			flags |= flagEndHeaders
		}
		o.buf = append(appendFrameHeader(o.buf, k, kind, flags, head.stream), block[:k]...)
		block, n = block[k:], n-k
		kind, flags = frameContinuation, 0
	}
}

const messageHeader = 5

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

// handOver registers the streams of calls that go to a store, and reports how many of the first are within the limit of
// streams; the others are refused.
func (o *sendQueue) handOver(calls []*Call, limit int) (accepted int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, x := range calls {
		s := x.stream
		if !s.registered && len(o.streams) >= limit {
			for _, x := range calls[i:] {
				o.refuseStream(x.stream)
			}
			return i
		}
		o.register(s)
		s.inStore = true
		o.inStore++
	}
	return len(calls)
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
	if !o.closed {
		o.grab()
		o.buf = appendReset(o.buf, s.id, codeRefusedStream)
	}
	o.forget(s)
}

// find is the registered stream of that id, or nil.
func (o *sendQueue) find(id uint32) *stream {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.streams[id]
}

// removed takes the streams that have ended since the last call.
func (o *sendQueue) removed(into []*stream) []*stream {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.dead {
		if s.removed = !s.inStore; s.removed { // else it was reset on its way to the store, which will be done with it
			into = append(into, s)
		}
	}
	clear(o.dead)
	o.dead = o.dead[:0]
	return into
}

// register makes frames of the peer find the stream. The lock is held.
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
		s.watch.cancel()
	}
	if s.registered {
		delete(o.streams, s.id)
		o.remove(s)
	}
}

// remove lets the reader reuse a stream that has ended, once no list and no store has it any more. The lock is held.
func (o *sendQueue) remove(s *stream) {
	if s.gone && s.registered && !s.removed && !s.queued && !s.inStore {
		s.removed = true
		o.dead = append(o.dead, s)
	}
}

// reset ends a stream by RST_STREAM.
func (o *sendQueue) reset(id uint32, code errCode) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.streams[id]; s != nil {
		o.cut(s)
	}
	if !o.closed {
		o.grab()
		o.buf = appendReset(o.buf, id, code)
	}
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
		o.grab()
		o.buf = appendReset(o.buf, s.id, codeCancel)
		o.cut(s)
	default:
		o.grab()
		at := len(o.buf)
		o.buf = o.encoder.failure(appendFrameHeader(o.buf, 0, frameHeaders, flagEndHeaders|flagEndStream, s.id), r)
		o.setLength(at)
		o.forget(s)
	}
}

// goAway appends GOAWAY, behind which the connection ends. The lock is held.
func (o *sendQueue) goAway(last uint32, code errCode, debug string) {
	if !o.closed {
		o.grab()
		o.buf = appendGoAway(o.buf, last, code, debug)
		o.ending = true
	}
}

// flush sends what has been appended, as far as it goes without waiting.
func (o *sendQueue) flush() {
	o.mu.Lock()
	if o.writing || len(o.buf) == 0 && o.wire.left() == 0 {
		o.mu.Unlock()
		return
	}
	o.writing = true
	if len(o.buf) == 0 { // TLS has answered the peer on its own
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
			return // writing stays: nothing is sent any more
		}
		if !sent {
			go o.drain()
			return
		}
		o.mu.Lock()
	}
	o.sentAll()
}

// drain sends the rest, however long the peer takes for it, until the send queue is empty.
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

// sentAll ends a flush; it is called with the lock and gives it up.
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

// waitRoom waits until the peer has taken enough of its answers, and the store has finished enough calls, for more
// to be read. It returns how many streams are open; ok is false when nothing more is sent.
func (o *sendQueue) waitRoom(calls int) (open int, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.closed && (len(o.buf)+o.waiting > fullQueue || o.inStore >= calls) {
		o.room.Wait()
	}
	return len(o.streams), !o.closed
}

// open is how many streams are registered.
func (o *sendQueue) open() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.streams)
}

// close ends the sending side, and all streams with it.
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

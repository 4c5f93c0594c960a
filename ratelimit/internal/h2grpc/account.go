package h2grpc

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxHeld bounds what the streams of one connection hold, in bytes.
	maxHeld = 8 << 20
	// leastMemory and mostMemory bound Options.Memory.
	leastMemory = 16 << 20
	mostMemory  = 256 << 20
	// announced is how much of a message has to arrive before memory for the whole message is allocated.
	announced = 64 << 10
)

// account is the memory that peers make the server keep: messages and header blocks that are not complete, long
// messages of calls that wait for the store, and answers that wait for a window. Allocated memory counts, not only the
// part in use.
type account struct {
	limit int64
	used  atomic.Int64
	mu    sync.Mutex // held while relieve makes room
}

func (a *account) over() bool { return a.used.Load() > a.limit }

// hold accounts for the memory that a stream holds now. The lock is held.
func (o *sendQueue) hold(s *stream) {
	n := cap(s.body) + cap(s.pending)
	o.count(n - s.held)
	s.held = n
}

func (o *sendQueue) count(n int) {
	o.held.Add(int64(n))
	o.account.used.Add(int64(n))
}

// holdBlock replaces the unfinished header block. The lock is held.
func (o *sendQueue) holdBlock(b []byte) {
	o.count(cap(b) - cap(o.block))
	o.block = b
}

// keepBlock appends to the incomplete header block and returns its length, or 0 when the connection is ending.
func (o *sendQueue) keepBlock(b []byte) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.ending {
		return 0
	}
	if o.block == nil {
		o.opened = time.Now()
	}
	o.holdBlock(append(o.block, b...))
	return len(o.block)
}

// takeBlock returns the header block, which is now complete.
func (o *sendQueue) takeBlock() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := o.block
	o.holdBlock(nil)
	return b
}

// keepBody keeps a part of a stream's message. It returns the message so far, and false where the connection holds too
// much.
func (o *sendQueue) keepBody(s *stream, b []byte) ([]byte, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s.gone || o.closed {
		return nil, true
	}
	if have := len(s.body); have >= announced && have+len(b) > cap(s.body) {
		whole := messageHeader + messageLength(s.body)
		if whole <= messageHeader+maxMessage {
			s.body = slices.Grow(s.body, max(len(b), whole-have))
		}
	}
	s.body = append(s.body, b...)
	o.hold(s)
	return s.body, o.held.Load() <= maxHeld
}

// takeBody returns the body of a stream whose request is complete; false if the stream has ended.
func (o *sendQueue) takeBody(s *stream) ([]byte, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.open = false
	b := s.body
	s.body = nil
	o.hold(s)
	return b, !s.gone
}

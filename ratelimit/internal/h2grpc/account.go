package h2grpc

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxHeld bounds the memory that the streams of one connection make the server keep, in bytes.
	maxHeld = 8 << 20
	// leastMemory and mostMemory bound Options.Memory, in bytes.
	leastMemory = 16 << 20
	mostMemory  = 256 << 20
	// announced is how many bytes of a message must have arrived before memory for its whole announced length is
	// allocated.
	announced = 64 << 10
)

// account counts the bytes that clients make the server keep, on all connections: messages and header blocks that have
// not arrived completely, long messages of calls that wait for the store, and answers that wait for flow control. It
// counts the memory allocated, not only the part in use.
type account struct {
	limit int64
	used  atomic.Int64
	mu    sync.Mutex // held while Server.relieve makes room
}

func (a *account) over() bool { return a.used.Load() > a.limit }

// hold updates the account with the memory that a stream holds now: its incomplete message and its pending answer. o.mu
// is held.
func (o *sendQueue) hold(s *stream) {
	n := cap(s.body) + cap(s.pending)
	o.count(n - s.held)
	s.held = n
}

func (o *sendQueue) count(n int) {
	o.held.Add(int64(n))
	o.account.used.Add(int64(n))
}

// holdBlock replaces the incomplete header block, and updates the account. o.mu is held.
func (o *sendQueue) holdBlock(b []byte) {
	o.count(cap(b) - cap(o.block))
	o.block = b
}

// keepBlock appends b to the incomplete header block. It returns the length of the block so far, or 0 if the connection
// is ending.
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

// takeBlock returns the header block, which is complete now, and no longer holds it.
func (o *sendQueue) takeBlock() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := o.block
	o.holdBlock(nil)
	return b
}

// keepBody appends b to the message of a stream, which has not arrived completely. It returns the message so far, and
// false if the connection now holds more than maxHeld.
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

// takeBody returns the message of a stream whose request is complete, and no longer holds it. It returns false if the
// stream has ended.
func (o *sendQueue) takeBody(s *stream) ([]byte, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.open = false
	b := s.body
	s.body = nil
	o.hold(s)
	return b, !s.gone
}

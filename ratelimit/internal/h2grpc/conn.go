package h2grpc

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/ratelimit/internal/counter"
)

const (
	connWindow   = 1 << 20
	streamWindow = 64 << 10
	// greeting is how long a client may take for the preface and its SETTINGS, and for TLS before them.
	greeting = 10 * time.Second
	// lingering is how long a connection that was ended by GOAWAY is still read, so that the peer gets to see why.
	lingering = time.Second
)

// conn is one connection. The goroutine of serve reads it; answers go out through its outbox.
type conn struct {
	server *Server
	id     uint64
	net    net.Conn
	wire   wire
	out    *outbox

	// The reader's.
	buf      []byte    // pooled; nil while nothing is there to be read
	partial  []byte    // the beginning of a frame whose rest has not come
	greeted  int       // bytes of the preface that have come
	settled  bool      // the first SETTINGS have come
	now      time.Time // of this read; arrived is the same by the clock of the service
	arrived  time.Time
	headers  *headerReader
	block    block      // a header block in several frames
	current  *stream    // whose HEADERS came last; not registered, since its DATA mostly comes next
	open     int        // registered streams, when this read began
	window   int        // what the client may still send
	reset    [32]uint32 // streams that ended before the client knew it, the last ones
	resets   int
	budget   budget
	buffered int   // bytes of unfinished messages
	work     *work // of the read that is being taken; nil between reads
	lastPing time.Time
	strikes  int

	started     time.Time
	age         time.Duration // at which the connection is to go; 0: never
	lastRead    atomic.Int64  // Unix nanoseconds
	settingsAck atomic.Bool
	ids         ids
	lastID      atomic.Uint32 // of a GOAWAY, once that is decided; maxWindow before
	reading     atomic.Bool   // the reader is at work, and may hold calls that the outbox doesn't know
	drained     atomic.Bool   // the ping between the two GOAWAYs was answered

	mu        sync.Mutex // of what follows: the steps of a connection's end
	pinged    time.Time  // a keepalive ping is out
	draining  time.Time  // the first GOAWAY was sent
	leaving   bool       // the second GOAWAY was sent
	over      bool       // the connection is being ended
	why       string     // the connection is to go, in the GOAWAYs
	closeOnce sync.Once
}

// ids are the two numbers that say which streams are served: the highest that the client has opened, and the last that
// is served. Both are in one word, since the reader sets one and the watch the other.
type ids struct{ word atomic.Uint64 }

// opened is the highest stream that the client has opened.
func (i *ids) opened() uint32 { return uint32(i.word.Load()) }

// open notes a new stream, and reports whether it is served.
func (i *ids) open(id uint32) bool {
	for {
		old := i.word.Load()
		if i.word.CompareAndSwap(old, old>>32<<32|uint64(id)) {
			return id <= uint32(old>>32)
		}
	}
}

// stop makes the highest stream so far the last that is served.
func (i *ids) stop() (last uint32) {
	for {
		old := i.word.Load()
		last = uint32(old)
		if i.word.CompareAndSwap(old, uint64(last)<<32|uint64(last)) {
			return last
		}
	}
}

// work is what one read brings. It is pooled, since a connection has none between reads.
type work struct {
	bundle  bundle
	waiting []*Call            // for the store
	costly  []*Call            // for goroutines of their own
	handed  []*counter.Started // of one Start
	dead    []*stream          // that have ended
}

var works = sync.Pool{New: func() any { return new(work) }}

// block is a header block that comes in several frames.
type block struct {
	open   bool
	stream uint32
	ends   bool // END_STREAM
	text   []byte
	frames int
}

var drainPing = []byte{'g', 'o', ' ', 'a', 'w', 'a', 'y', 0}
var keepalivePing = make([]byte, 8)

func newConn(s *Server, c net.Conn) *conn {
	k := &conn{
		server: s, id: s.ids.Add(1), net: c, wire: newWire(c), headers: newHeaderReader(s.o.Path), window: connWindow,
		started: time.Now(), budget: newBudget(),
	}
	k.lastID.Store(maxWindow)
	k.ids.word.Store(maxWindow << 32)
	if s.o.MaxAge > 0 {
		k.age = s.o.MaxAge*9/10 + rand.N(s.o.MaxAge/5+1)
	}
	k.out = newOutbox(k.wire, s.o.KeepaliveTimeout, k.broken)
	return k
}

// serve reads the connection until it ends.
func (c *conn) serve() {
	defer func() {
		if p := recover(); p != nil { // ends this connection, and not the daemon
			c.server.o.Panicked(p)
		}
		c.close()
		c.giveBack()
		c.server.buffer(-c.buffered)
	}()
	c.net.SetReadDeadline(time.Now().Add(greeting))
	c.out.add(func(b []byte) []byte {
		b = appendSettings(b,
			setting{settingMaxConcurrentStreams, uint32(c.server.o.MaxStreams)},
			setting{settingInitialWindowSize, streamWindow}, setting{settingMaxHeaderListSize, maxHeaderList})
		return appendWindowUpdate(b, 0, connWindow-defaultWindow)
	})
	c.out.flush()
	room, giveBack := c.room, c.giveBack // bound once: a method value is allocated
	for {
		n, err := c.wire.read(room, giveBack)
		if err != nil {
			if c.greeted < len(preface) || !c.settled {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					c.server.refused(reasonSilent)
				}
			}
			return
		}
		c.reading.Store(true)
		c.now, c.arrived = time.Now(), c.server.o.Service.Now()
		c.lastRead.Store(c.now.UnixNano())
		bad := c.feed(c.buf[:len(c.buf)+n])
		c.giveBack()
		c.hand()
		c.reading.Store(false)
		if bad != nil {
			c.end(bad)
			c.linger()
			return
		}
		if c.lastID.Load() != maxWindow {
			c.leaveIfDone()
		}
		c.out.flush()
		var ok bool
		if c.open, ok = c.out.waitRoom(c.server.o.MaxStreams); !ok {
			c.linger()
			return
		}
	}
}

// room is where the next bytes are read to: behind the beginning of a frame that has come already.
func (c *conn) room() []byte {
	if c.buf == nil {
		b := buffers.Get().(*[bufferBytes]byte)
		c.buf = append(b[:0], c.partial...)
	}
	return c.buf[len(c.buf):bufferBytes]
}

func (c *conn) giveBack() {
	if c.buf != nil {
		recycle(c.buf)
		c.buf = nil
	}
}

// feed takes all complete frames of b, and keeps the rest.
func (c *conn) feed(b []byte) *connError {
	c.work = works.Get().(*work)
	if c.greeted < len(preface) {
		n := min(len(b), len(preface))
		if string(b[:n]) != preface[:n] {
			return &connError{codeProtocol, reasonPreface, "this port speaks HTTP/2"}
		}
		if n < len(preface) {
			return c.keep(b)
		}
		c.greeted = n
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
		if cap(c.partial) > 1<<10 {
			c.partial = nil
		}
		c.partial = c.partial[:0]
		return nil
	}
	c.partial = append(c.partial[:0], b...)
	return nil
}

// frame takes one frame.
func (c *conn) frame(h frameHeader, payload []byte) *connError {
	switch {
	case !c.settled && (h.kind != frameSettings || h.has(flagAck)):
		return protocolError("the first frame has to be SETTINGS")
	case c.block.open && (h.kind != frameContinuation || h.stream != c.block.stream):
		return protocolError("a header block was interrupted")
	}
	switch h.kind {
	case frameData:
		return c.data(h, payload)
	case frameHeaders:
		return c.headersFrame(h, payload)
	case frameContinuation:
		return c.continuation(h, payload)
	case frameWindowUpdate:
		return c.windowUpdate(h, payload)
	case frameReset:
		return c.resetFrame(h, payload)
	case framePing:
		return c.ping(h, payload)
	case frameSettings:
		return c.settings(h, payload)
	case framePriority:
		return c.priority(h, payload)
	case frameGoAway:
		if h.stream != 0 {
			return protocolError("GOAWAY on a stream")
		}
		if len(payload) < 8 {
			return frameSizeError("GOAWAY")
		}
		return c.spend()
	case framePushPromise:
		return protocolError("a client pushes nothing")
	}
	return c.spend() // of an unknown type
}

// hand passes on what one read has brought, and takes back the streams that have ended.
func (c *conn) hand() {
	c.pass()
	c.park()
	c.work.dead = c.out.buried(c.work.dead[:0])
	for _, s := range c.work.dead {
		c.release(s)
		if s.exchange == nil { // else its handler may have it
			free(s)
		}
	}
	clear(c.work.dead)
	works.Put(c.work)
	c.work = nil
}

// pass passes answers to the outbox and calls to the store.
func (c *conn) pass() {
	c.flushBundle()
	if len(c.work.waiting) > 0 {
		c.server.startAll(c, c.work.waiting)
		clear(c.work.waiting)
		c.work.waiting = c.work.waiting[:0]
	}
}

// flushBundle hands over the answers so far, then starts the calls that take long.
func (c *conn) flushBundle() {
	if len(c.work.bundle.answers) > 0 {
		c.out.answer(&c.work.bundle, 0)
		for i := range c.work.bundle.answers {
			s := c.work.bundle.answers[i].stream
			if !s.registered {
				free(s)
			}
		}
		c.work.bundle.reset()
	}
	if len(c.work.costly) > 0 {
		c.out.flush()
		n := c.out.handOver(c.work.costly, c.server.o.MaxStreams)
		for i, x := range c.work.costly {
			if i < n {
				c.server.askers.start(x)
			} else {
				c.server.refused(reasonTooManyCalls)
				x.release()
			}
		}
		clear(c.work.costly)
		c.work.costly = c.work.costly[:0]
	}
}

var streams = sync.Pool{New: func() any { return new(stream) }}

func (c *conn) newStream(id uint32) *stream {
	s := streams.Get().(*stream)
	body := s.body[:0]
	*s = stream{id: id, body: body, window: streamWindow, began: c.now}
	return s
}

// free keeps a stream without references for the next one.
func free(s *stream) {
	if cap(s.body) > 4<<10 {
		s.body = nil
	}
	streams.Put(s)
}

func (c *conn) find(id uint32) *stream {
	if c.current != nil && c.current.id == id {
		return c.current
	}
	return c.out.find(id)
}

// findPassed is the registered stream of that id, or nil. The answer or call of one that this read has completed is
// passed on before, since the outbox has to know of a stream that is waiting for a window, or for the store.
func (c *conn) findPassed(id uint32) *stream {
	s := c.out.find(id)
	if s == nil && len(c.work.bundle.answers)+len(c.work.waiting)+len(c.work.costly) > 0 {
		c.pass()
		s = c.out.find(id)
	}
	return s
}

// park registers the stream whose DATA did not come next.
func (c *conn) park() {
	s := c.current
	if s == nil {
		return
	}
	c.current = nil
	s.open = true
	if !c.out.admit(s, c.server.o.MaxStreams) {
		c.server.refused(reasonTooManyCalls)
		c.release(s)
		c.forgetting(s.id)
		free(s)
	}
}

// keepBody keeps a piece of a message that is not complete; it reports false where there is too much of that.
func (c *conn) keepBody(s *stream, b []byte) bool {
	s.body = append(s.body, b...)
	return c.account(s, len(b))
}

// account adds to what is kept of a stream's body, and reports false where that is too much. All that a call of another
// method has sent counts: grpc-go's handlers queue it without a bound of their own.
func (c *conn) account(s *stream, n int) bool {
	s.kept += n
	c.buffered += n
	return c.server.buffer(n) && c.buffered <= maxBuffered
}

// release lets go of what is kept of a stream's message.
func (c *conn) release(s *stream) {
	if s.kept > 0 {
		c.buffered -= s.kept
		c.server.buffer(-s.kept)
		s.kept, s.body = 0, nil // the call has a copy
	}
}

// forgetting remembers a stream that ended before the client knew, and may have more to say.
func (c *conn) forgetting(id uint32) {
	c.reset[c.resets%len(c.reset)] = id
	c.resets++
}

func (c *conn) wasReset(id uint32) bool {
	for _, r := range c.reset {
		if r == id {
			return true
		}
	}
	return false
}

// abort resets a stream. What was answered before goes out before.
func (c *conn) abort(id uint32, code errCode) *connError {
	c.pass()
	if s := c.find(id); s != nil {
		c.release(s)
	}
	c.out.reset(id, code)
	if c.current != nil && c.current.id == id {
		free(c.current)
		c.current = nil
	}
	c.forgetting(id)
	return c.spend()
}

// end sends GOAWAY; what was answered before goes out with it.
func (c *conn) end(e *connError) {
	c.server.refused(e.reason)
	c.out.mu.Lock()
	if !c.out.closed {
		c.out.grab()
		c.out.buf = appendGoAway(c.out.buf, min(c.ids.opened(), c.lastID.Load()), e.code, e.debug)
		c.out.ending = true
	}
	c.out.mu.Unlock()
	c.out.flush()
}

// broken is called when nothing more can be sent, or all that was to be sent before the end (nil).
func (c *conn) broken(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.server.refused(reasonNotReading)
	}
	if err != nil {
		c.close()
		return
	}
	if half, ok := c.net.(interface{ CloseWrite() error }); ok {
		half.CloseWrite()
		c.net.SetReadDeadline(time.Now().Add(lingering))
		c.out.close()
		return
	}
	c.close()
}

// linger drops what still comes: closing at once would make the peer's system forget our GOAWAY.
func (c *conn) linger() {
	c.net.SetReadDeadline(time.Now().Add(lingering))
	io.CopyN(io.Discard, c.net, 4*connWindow)
}

func (c *conn) close() {
	c.closeOnce.Do(func() {
		c.out.close()
		c.net.Close()
		c.server.gone(c)
	})
}

// leaveIfDone ends a connection that takes no new streams and has none left. While the reader is at work, that is the
// reader's to do.
func (c *conn) leaveIfDone() {
	if c.reading.Load() {
		return
	}
	c.out.mu.Lock()
	done := !c.out.closed && len(c.out.streams) == 0 && c.out.inStore == 0
	if done {
		c.out.ending = true
	}
	idle := done && !c.out.writing && len(c.out.buf) == 0
	c.out.mu.Unlock()
	switch {
	case idle:
		c.broken(nil)
	case done:
		c.out.flush()
	}
}

func uint32At(b []byte) uint32 { return binary.BigEndian.Uint32(b) }

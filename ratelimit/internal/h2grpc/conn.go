package h2grpc

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

const (
	connWindow   = 1 << 20
	streamWindow = 64 << 10
	// greeting is how long a client may take for the TLS handshake, and then again for HTTP/2's preface and its
	// SETTINGS. It is also how long a header block may take.
	greeting = 10 * time.Second
	// lingering is how long a connection is still read after it was ended by GOAWAY, so that the client receives the
	// GOAWAY.
	lingering = time.Second
)

// conn is one connection. The goroutine of serve, called the reader, reads it; its send queue sends the answers.
type conn struct {
	server *Server
	id     uint64
	net    net.Conn
	wire   wire
	out    *sendQueue

	in     receiving // used only by the reader
	limits allowance // used only by the reader
	end    connEnd   // has a lock of its own; used by Server.watch and Shutdown

	started     time.Time
	age         time.Duration // the age at which the connection is to end; 0: never
	lastRead    atomic.Int64  // when something was last read, in Unix nanoseconds
	settingsAck atomic.Bool
	ids         ids
	reading     atomic.Bool // the reader is processing a read, and may have calls that the send queue does not know yet
	drained     atomic.Bool // the client has answered the ping between the two GOAWAYs
	watches     atomic.Int32
}

func newConn(s *Server, c net.Conn) *conn {
	k := &conn{
		server: s, id: s.ids.Add(1), net: c, wire: newWire(c),
		in:      receiving{headers: newHeaderReader(s.o.Path, s.o.Tracing != nil), window: connWindow},
		started: time.Now(), limits: allowance{budget: budget{left: budgetMost, filled: time.Now()}},
	}
	k.ids.word.Store(maxWindow << 32)
	if s.o.MaxAge > 0 {
		k.age = s.o.MaxAge*9/10 + rand.N(s.o.MaxAge/5+1)
	}
	k.out = newSendQueue(k.wire, &s.account, s.o.KeepaliveTimeout, k.broken)
	return k
}

// receiving is the receiving side of a connection, which belongs to its reader.
type receiving struct {
	buf     []byte    // the read buffer, from a pool; nil while there is nothing to read
	partial []byte    // the beginning of a frame whose rest has not arrived
	greeted int       // how many bytes of HTTP/2's preface have arrived
	settled bool      // the client's first SETTINGS have arrived
	now     time.Time // now is when this read began; arrived is the same by the service's clock
	arrived time.Time
	headers *headerReader
	block   block   // a header block that arrives in several frames
	current *stream // the stream whose HEADERS came last; not registered, since its DATA usually comes next
	open    int     // how many streams were registered when this read began
	window  int     // how many bytes the client may still send on the connection
	ended   endedStreams
	work    *work // the calls and answers of this read; nil between reads
}

// connEnd says how far the end of a connection has come.
type connEnd struct {
	mu       sync.Mutex
	pinged   time.Time // when a keepalive ping was sent that has no answer
	draining time.Time // when the first GOAWAY was sent; zero: not yet
	leaving  bool      // the second GOAWAY was sent
	over     bool      // the connection is being closed
	why      string    // the reason that the GOAWAYs give
	once     sync.Once // makes close happen only once
}

// ids has two stream numbers: the highest that the client has opened, and the last that the server will serve. They are
// in one word, to be compared and changed together: the reader sets the first, and Server.watch the second.
type ids struct{ word atomic.Uint64 }

// opened returns the highest stream that the client has opened.
func (i *ids) opened() uint32 { return uint32(i.word.Load()) }

// last returns the last stream that the server will serve. It is maxWindow, the highest number possible, until stop.
func (i *ids) last() uint32 { return uint32(i.word.Load() >> 32) }

// open records that the client has opened a stream. It reports whether the server will serve it.
func (i *ids) open(id uint32) bool {
	for {
		old := i.word.Load()
		if i.word.CompareAndSwap(old, old>>32<<32|uint64(id)) {
			return id <= uint32(old>>32)
		}
	}
}

// stop makes the highest stream that the client has opened the last one to be served, and returns it.
func (i *ids) stop() (last uint32) {
	for {
		old := i.word.Load()
		last = uint32(old)
		if i.word.CompareAndSwap(old, uint64(last)<<32|uint64(last)) {
			return last
		}
	}
}

// endedStreams remembers streams that the server has ended when the client could not know yet, so that more frames of
// these streams may arrive.
type endedStreams struct {
	ring    [32]uint32
	n       int
	dropped uint32 // the highest stream that was dropped from the ring
}

func (e *endedStreams) add(id uint32) {
	place := &e.ring[e.n%len(e.ring)]
	e.dropped = max(e.dropped, *place)
	*place = id
	e.n++
}

// has reports whether id is a stream that e remembers, or may be one that it has dropped from the ring.
func (e *endedStreams) has(id uint32) bool { return id <= e.dropped || slices.Contains(e.ring[:], id) }

var drainPing = []byte{'g', 'o', ' ', 'a', 'w', 'a', 'y', 0}
var keepalivePing = make([]byte, 8)

var streamPool = sync.Pool{New: func() any { return new(stream) }}

func (c *conn) newStream(id uint32) *stream {
	s := streamPool.Get().(*stream)
	*s = stream{id: id, window: streamWindow, began: c.in.now}
	return s
}

// free returns a stream to the pool. Nothing may refer to it any longer.
func free(s *stream) { streamPool.Put(s) }

func (c *conn) find(id uint32) *stream {
	if c.in.current != nil && c.in.current.id == id {
		return c.in.current
	}
	return c.out.find(id)
}

// fail ends the connection because of e, with GOAWAY, after the answers so far.
func (c *conn) fail(e *connError) {
	c.server.refused(e.reason)
	c.endWith(e.code, e.debug)
}

// endWith ends the connection with GOAWAY. It may be called by any goroutine.
func (c *conn) endWith(code http2.ErrCode, debug string) {
	c.out.mu.Lock()
	c.out.goAway(c.lastStream(), code, debug)
	c.out.mu.Unlock()
	c.out.flush()
}

// lastStream returns the number for GOAWAY: the last stream that the server has served or may have served.
func (c *conn) lastStream() uint32 { return min(c.ids.opened(), c.ids.last()) }

// broken is called by the send queue: with an error if nothing more can be sent; with nil if all is sent and the
// connection is to end.
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

// linger reads what the client still sends, for at most the time lingering, and drops it. If the connection were closed
// with unread bytes, the client's system would discard the GOAWAY.
func (c *conn) linger() {
	c.net.SetReadDeadline(time.Now().Add(lingering))
	io.CopyN(io.Discard, c.net, 4*connWindow)
}

func (c *conn) close() {
	c.end.once.Do(func() {
		c.out.close()
		c.net.Close()
		c.server.gone(c)
	})
}

// leaveIfDone ends a connection that accepts no new streams and has no streams left. While the reader is processing a
// read, leaveIfDone does nothing, since the reader will call it afterwards.
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

// giveWay frees the memory of whatever holds most of it on the connection. A stream whose request is incomplete is
// refused, and a stream whose answer waits for flow control is reset. An incomplete header block ends the connection,
// since later blocks cannot be decoded without it.
func (c *conn) giveWay() {
	o := c.out
	o.mu.Lock()
	var s *stream
	for _, each := range o.streams {
		if s == nil || each.held > s.held {
			s = each
		}
	}
	switch {
	case o.closed, o.held.Load() == 0: // the connection has ended meanwhile
	case s == nil || s.held < cap(o.block):
		o.goAway(c.lastStream(), http2.ErrCodeEnhanceYourCalm, "the header block is not complete, and memory is short")
		o.holdBlock(nil)
	case s.pending != nil:
		o.put(func(b []byte) []byte { return appendReset(b, s.id, http2.ErrCodeEnhanceYourCalm) })
		o.cut(s)
	default:
		o.grab()
		o.refuse(&answer{stream: s, early: true,
			refusal: s.refusal(codes.ResourceExhausted, "too many unfinished messages")})
	}
	o.mu.Unlock()
	o.flush()
}

func uint32At(b []byte) uint32 { return binary.BigEndian.Uint32(b) }

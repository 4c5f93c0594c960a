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
	// greeting is how long a client may take for TLS, and then for the preface and its SETTINGS.
	greeting = 10 * time.Second
	// lingering is how long a connection ended by GOAWAY is still read, so that the peer receives the reason.
	lingering = time.Second
)

// conn is one connection. The goroutine of serve reads it; answers go out through its send queue.
type conn struct {
	server *Server
	id     uint64
	net    net.Conn
	wire   wire
	out    *sendQueue

	in     receiving // the reader's
	limits allowance // the reader's too
	end    connEnd   // the watch's

	started     time.Time
	age         time.Duration // age at which the connection is to end; 0: never
	lastRead    atomic.Int64  // Unix nanoseconds
	settingsAck atomic.Bool
	ids         ids
	reading     atomic.Bool // the reader is at work, and may hold calls that the send queue does not know
	drained     atomic.Bool // the ping between the two GOAWAYs was answered
	watches     atomic.Int32
}

func newConn(s *Server, c net.Conn) *conn {
	k := &conn{
		server: s, id: s.ids.Add(1), net: c, wire: newWire(c), in: receiving{headers: newHeaderReader(s.o.Path, s.o.Tracing != nil), window: connWindow},
		started: time.Now(), limits: allowance{budget: budget{left: budgetMost, filled: time.Now()}},
	}
	k.ids.word.Store(maxWindow << 32)
	if s.o.MaxAge > 0 {
		k.age = s.o.MaxAge*9/10 + rand.N(s.o.MaxAge/5+1)
	}
	k.out = newSendQueue(k.wire, &s.account, s.o.KeepaliveTimeout, k.broken)
	return k
}

// receiving is the receiving side of a connection.
type receiving struct {
	buf     []byte    // pooled; nil while there is nothing to read
	partial []byte    // the beginning of a frame whose rest has not arrived
	greeted int       // bytes of the preface that have arrived
	settled bool      // the first SETTINGS have arrived
	now     time.Time // now is when this read began; arrived is the same time by the service's clock
	arrived time.Time
	headers *headerReader
	block   block   // a header block in several frames
	current *stream // the stream whose HEADERS came last; not registered, since its DATA usually comes next
	open    int     // registered streams, when this read began
	window  int     // bytes that the client may still send
	ended   endedStreams
	work    *work // of this read; nil between reads
}

// connEnd is how far the end of a connection has come.
type connEnd struct {
	mu       sync.Mutex
	pinged   time.Time // when a keepalive ping without an answer was sent
	draining time.Time // when the first GOAWAY was sent
	leaving  bool      // the second GOAWAY was sent
	over     bool      // the connection is being ended
	why      string    // why the connection has to end, for the GOAWAYs
	once     sync.Once // guards closing the connection
}

// ids has two stream numbers: the highest that the client has opened, and the last that is served. Both are in one
// word, since the reader sets one and the watch the other.
type ids struct{ word atomic.Uint64 }

// opened is the highest stream that the client has opened.
func (i *ids) opened() uint32 { return uint32(i.word.Load()) }

// last is the last stream that is served; maxWindow until stop.
func (i *ids) last() uint32 { return uint32(i.word.Load() >> 32) }

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

// endedStreams remembers streams that ended before the client could know, so that more frames of these streams may
// arrive.
type endedStreams struct {
	ring    [32]uint32
	n       int
	dropped uint32 // the highest stream that the ring has dropped
}

func (e *endedStreams) add(id uint32) {
	place := &e.ring[e.n%len(e.ring)]
	e.dropped = max(e.dropped, *place)
	*place = id
	e.n++
}

// has reports whether id may be a stream that e remembers, or has dropped.
func (e *endedStreams) has(id uint32) bool { return id <= e.dropped || slices.Contains(e.ring[:], id) }

var drainPing = []byte{'g', 'o', ' ', 'a', 'w', 'a', 'y', 0}
var keepalivePing = make([]byte, 8)

var streamPool = sync.Pool{New: func() any { return new(stream) }}

func (c *conn) newStream(id uint32) *stream {
	s := streamPool.Get().(*stream)
	*s = stream{id: id, window: streamWindow, began: c.in.now}
	return s
}

// free returns a stream without references to the pool.
func free(s *stream) { streamPool.Put(s) }

func (c *conn) find(id uint32) *stream {
	if c.in.current != nil && c.in.current.id == id {
		return c.in.current
	}
	return c.out.find(id)
}

// fail sends GOAWAY, together with the answers before it.
func (c *conn) fail(e *connError) {
	c.server.refused(e.reason)
	c.endWith(e.code, e.debug)
}

// endWith sends GOAWAY and ends the connection, also from outside its reader.
func (c *conn) endWith(code http2.ErrCode, debug string) {
	c.out.mu.Lock()
	c.out.goAway(c.lastStream(), code, debug)
	c.out.mu.Unlock()
	c.out.flush()
}

// lastStream returns the last stream that was served or may have been.
func (c *conn) lastStream() uint32 { return min(c.ids.opened(), c.ids.last()) }

// broken is called when nothing more can be sent, or, with nil, when all is sent and the connection is to end.
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

// linger drops what still arrives: closing at once would make the peer's system discard our GOAWAY.
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

// leaveIfDone ends a connection that takes no new streams and has none left. While the reader is at work, it leaves
// this to the reader.
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

// giveWay ends what holds most memory on the connection: an unfinished call is refused; an answer that waits for a
// window is dropped with its stream; an unfinished header block ends the connection, since later blocks depend on it.
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

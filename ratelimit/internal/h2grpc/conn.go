package h2grpc

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
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

// conn is one connection. The goroutine of serve reads it; answers go out through its send queue.
type conn struct {
	server *Server
	id     uint64
	net    net.Conn
	wire   wire
	out    *sendQueue

	in     received  // the reader's
	limits allowance // the reader's, too
	end    connEnd   // the watch's

	started     time.Time
	age         time.Duration // at which the connection is to go; 0: never
	lastRead    atomic.Int64  // Unix nanoseconds
	settingsAck atomic.Bool
	ids         ids
	reading     atomic.Bool // the reader is at work, and may hold calls that the send queue doesn't know
	drained     atomic.Bool // the ping between the two GOAWAYs was answered
	watches     atomic.Int32
}

// received is the receiving side of a connection.
type received struct {
	buf     []byte    // pooled; nil while nothing is there to be read
	partial []byte    // the beginning of a frame whose rest has not come
	greeted int       // bytes of the preface that have come
	settled bool      // the first SETTINGS have come
	now     time.Time // of this read; arrived is the same by the clock of the service
	arrived time.Time
	headers *headerReader
	block   block   // a header block in several frames
	current *stream // whose HEADERS came last; not registered, since its DATA mostly comes next
	open    int     // registered streams, when this read began
	window  int     // what the client may still send
	ended   endedStreams
	work    *work // of the read that is being taken; nil between reads
}

// allowance is what a client has left of frames and pings that begin no call.
type allowance struct {
	budget   budget
	lastPing time.Time
	strikes  int
}

// connEnd is how far the end of a connection has come.
type connEnd struct {
	mu       sync.Mutex
	pinged   time.Time // a keepalive ping is out
	draining time.Time // the first GOAWAY was sent
	leaving  bool      // the second GOAWAY was sent
	over     bool      // the connection is being ended
	why      string    // it has to end, for the GOAWAYs
	once     sync.Once // closes the connection
}

// ids are the two numbers that say which streams are served: the highest that the client has opened, and the last that
// is served. Both are in one word, since the reader sets one and the watch the other.
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

// work is what one read brings. It is pooled, since a connection has none between reads.
type work struct {
	bundle  bundle
	waiting []*Call            // for the store
	costly  []*Call            // for goroutines of their own
	handed  []*counter.Pending // of one Start
	dead    []*stream          // that have ended
}

var works = sync.Pool{New: func() any { return new(work) }}

// block is a header block that comes in several frames. Its text is the send queue's.
type block struct {
	open   bool
	stream uint32
	ends   bool // END_STREAM
	frames int
}

// endedStreams remembers streams that ended before the client knew it, and about which more frames may come.
type endedStreams struct {
	ring    [32]uint32
	n       int
	dropped uint32 // the highest that the ring has lost
}

func (e *endedStreams) add(id uint32) {
	place := &e.ring[e.n%len(e.ring)]
	e.dropped = max(e.dropped, *place)
	*place = id
	e.n++
}

// has reports whether a closed stream may be one of them.
func (e *endedStreams) has(id uint32) bool { return id <= e.dropped || slices.Contains(e.ring[:], id) }

var drainPing = []byte{'g', 'o', ' ', 'a', 'w', 'a', 'y', 0}
var keepalivePing = make([]byte, 8)

// flush passes answers to the send queue and calls to the store.
func (c *conn) flush() {
	c.flushBundle()
	if len(c.in.work.waiting) > 0 {
		c.server.startAll(c, c.in.work.waiting)
		clear(c.in.work.waiting)
		c.in.work.waiting = c.in.work.waiting[:0]
	}
}

// flushBundle hands over the answers so far, then starts the calls that take long.
func (c *conn) flushBundle() {
	if len(c.in.work.bundle.answers) > 0 {
		c.out.answer(&c.in.work.bundle, 0)
		for i := range c.in.work.bundle.answers {
			s := c.in.work.bundle.answers[i].stream
			if !s.registered {
				free(s)
			}
		}
		c.in.work.bundle.reset()
	}
	if len(c.in.work.costly) > 0 {
		c.out.flush()
		n := c.out.handOver(c.in.work.costly, c.server.o.MaxStreams)
		for i, x := range c.in.work.costly {
			if i < n {
				c.server.askers.start(x)
			} else {
				c.server.refused(reasonTooManyCalls)
				x.drop()
			}
		}
		clear(c.in.work.costly)
		c.in.work.costly = c.in.work.costly[:0]
	}
}

var streams = sync.Pool{New: func() any { return new(stream) }}

func (c *conn) newStream(id uint32) *stream {
	s := streams.Get().(*stream)
	*s = stream{id: id, window: streamWindow, began: c.in.now}
	return s
}

// free keeps a stream without references for the next one.
func free(s *stream) { streams.Put(s) }

func (c *conn) find(id uint32) *stream {
	if c.in.current != nil && c.in.current.id == id {
		return c.in.current
	}
	return c.out.find(id)
}

// findFlushed is the registered stream of that id, or nil. The answer or call of one that this read has completed is
// passed on before, since the send queue has to know of a stream that is waiting for a window, or for the store.
func (c *conn) findFlushed(id uint32) *stream {
	s := c.out.find(id)
	if s == nil && len(c.in.work.bundle.answers)+len(c.in.work.waiting)+len(c.in.work.costly) > 0 {
		c.flush()
		s = c.out.find(id)
	}
	return s
}

// checksApart is how many unfinished health checks a connection may have beyond its other streams.
const checksApart = 16

// register registers the stream whose DATA did not come next; false: there are too many.
func (c *conn) register() bool {
	s := c.in.current
	if s == nil {
		return true
	}
	c.in.current = nil
	s.open = true
	limit := c.server.o.MaxStreams
	if s.header.method == methodCheck { // a health check is answered however many calls are open
		limit += checksApart
	}
	if !c.out.admit(s, limit) {
		c.server.refused(reasonTooManyCalls)
		c.in.ended.add(s.id)
		free(s)
		return false
	}
	return true
}

// abort resets a stream. What was answered before goes out before.
func (c *conn) abort(id uint32, code errCode) *connError {
	c.flush()
	c.out.reset(id, code)
	if c.in.current != nil && c.in.current.id == id {
		free(c.in.current)
		c.in.current = nil
	}
	c.in.ended.add(id)
	return c.spend()
}

// fail sends GOAWAY; what was answered before goes out with it.
func (c *conn) fail(e *connError) {
	c.server.refused(e.reason)
	c.endWith(e.code, e.debug)
}

// endWith sends GOAWAY and ends the connection, also from outside its reader.
func (c *conn) endWith(code errCode, debug string) {
	c.out.mu.Lock()
	c.out.goAway(c.lastStream(), code, debug)
	c.out.mu.Unlock()
	c.out.flush()
}

// lastStream is the last stream that was or may be served.
func (c *conn) lastStream() uint32 { return min(c.ids.opened(), c.ids.last()) }

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
	c.end.once.Do(func() {
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

package h2grpc

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/service"
)

// Call is one call of ShouldRateLimit from the arrival of its message to its answer. It owns the bytes of its request
// until then.
type Call struct {
	service.Call
	conn   *conn
	stream *stream
	body   []byte
	// deadline is when the client gives up; zero: never.
	deadline time.Time
	kept     int  // cap(body) as counted in the server's account, if body is long; otherwise 0
	begun    bool // Server.begin was called, and the store still has to be
	started  counter.Pending
	ctx      context.Context // has the call's span; without tracing, it is the server's
	end      func(*refusal)  // ends the span
}

var callPool = sync.Pool{New: func() any { return new(Call) }}

// costly is the estimated time for deciding a call from which on the call gets a goroutine of its own, so that other
// calls on the connection do not wait for it.
const costly = 200 * time.Microsecond

// decide decides a call whose message has arrived, and appends the answer to the bundle of this read. A call that needs
// the store, or that is costly, is only appended to the list of such calls in c.in.work.
func (c *conn) decide(s *stream, message []byte) {
	x := callPool.Get().(*Call)
	x.conn, x.stream = c, s
	x.ctx, x.end = c.startSpan(s)
	if len(message) <= bufferBytes {
		x.body = append(x.body[:0], message...)
	} else {
		x.body, x.kept = message, cap(message) // not copied: memory of the stream, or made by decompressing
		if c.server.account.used.Add(int64(x.kept)); !c.server.relieve() {
			c.server.refused(reasonBuffered)
			c.in.work.bundle.finish(x, s.refusal(codes.ResourceExhausted, "too many long messages"))
			return
		}
	}
	if s.header.timed {
		x.deadline = c.in.now.Add(s.header.timeout)
	}
	o := &c.server.o
	if err := x.Request.Unmarshal(x.body); err != nil {
		o.Service.NoteRefused(service.Malformed, err)
		c.in.work.bundle.finish(x,
			s.refusal(codes.Internal, "grpc: failed to unmarshal the received message: "+err.Error()))
		return
	}
	if o.Service.Cost(len(x.body)) > costly {
		c.flushBundle()
		c.in.work.costly = append(c.in.work.costly, x)
		return
	}
	if asks, ended := c.server.begin(x, c.in.arrived); asks {
		c.in.work.waiting = append(c.in.work.waiting, x)
	} else {
		c.in.work.bundle.finish(x, ended)
	}
}

// begin begins a call's decision (Service.Begin). asks reports whether the store has to be called; otherwise the call
// is decided, or refused by ended.
func (s *Server) begin(x *Call, now time.Time) (asks bool, ended *refusal) {
	defer s.recovered(x, &ended)
	asks, err := s.o.Service.Begin(x.ctx, &x.Call, now)
	if asks {
		x.begun = true
		return true, nil
	}
	s.count(&x.Call)
	return false, s.refusalOf(x, err)
}

// startAll passes the calls of one read to the store, together where possible. A store that can complete calls later
// does so on the goroutine that reads its replies. For any other store, a goroutine waits for each call.
func (s *Server) startAll(c *conn, calls []*Call) {
	n := c.out.handOver(calls, s.o.MaxStreams)
	for _, x := range calls[n:] {
		s.refused(reasonTooManyCalls)
		x.drop()
	}
	for i := 0; i < n; {
		to := s.asyncOf(calls[i], c.in.now)
		if to == nil {
			s.askers.start(calls[i])
			i++
			continue
		}
		c.in.work.handed = append(c.in.work.handed[:0], &calls[i].started)
		for i++; i < n && s.asyncOf(calls[i], c.in.now) == to; i++ {
			c.in.work.handed = append(c.in.work.handed, &calls[i].started)
		}
		for _, st := range to.Start(c.in.work.handed) {
			if x := st.Tag.(*Call); st.Err != nil {
				c.in.work.bundle.finish(x, s.complete(x, st.Err))
			} else {
				s.askers.start(x)
			}
		}
	}
	clear(c.in.work.handed)
	if n := len(c.in.work.bundle.answers); n > 0 {
		c.out.answer(&c.in.work.bundle, n)
		c.in.work.bundle.reset()
	}
}

// handOver registers the streams of calls that are about to be passed to a store. If that would exceed limit, it
// refuses the rest of the calls. It returns how many calls it has accepted, from the first on.
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

// asyncOf returns the store that will take the call and complete it later, or nil if a goroutine has to wait for the
// store. It also fills in x.started for the store.
func (s *Server) asyncOf(x *Call, now time.Time) counter.Async {
	store, request := s.o.Service.Pending(&x.Call)
	async, ok := store.(counter.AsyncStore)
	if !ok || !x.deadline.IsZero() && x.deadline.Sub(now) <= counter.Soon {
		return nil
	}
	x.started.Req, x.started.Deadline, x.started.Owner, x.started.Tag = request, x.deadline, s, x
	x.started.From = x.conn.id
	return async.Async(request)
}

// Complete implements counter.Owner: it answers calls that a store has finished. The answers on one connection are sent
// together.
func (s *Server) Complete(done []*counter.Pending) {
	b := bundlePool.Get().(*bundle)
	for i := 0; i < len(done); {
		c := done[i].Tag.(*Call).conn
		for ; i < len(done); i++ {
			x := done[i].Tag.(*Call)
			if x.conn != c {
				break
			}
			b.finish(x, s.complete(x, done[i].Err))
		}
		s.send(c, b)
	}
	bundlePool.Put(b)
}

// complete completes the decision of a call whose store has answered, or has failed with storeErr.
func (s *Server) complete(x *Call, storeErr error) (ended *refusal) {
	defer s.recovered(x, &ended)
	err := s.o.Service.Complete(&x.Call, storeErr, s.o.Service.Now())
	s.count(&x.Call)
	return s.refusalOf(x, err)
}

// send sends the answers of a bundle, which are to calls that were in the store, on their connection.
func (s *Server) send(c *conn, b *bundle) {
	c.out.answer(b, len(b.answers))
	b.reset()
	c.out.flush()
	s.relieve()
	if c.ids.last() != maxWindow {
		c.leaveIfDone()
	}
}

// finish appends the answer to a call to the bundle, or its refusal if ended is not nil. It returns the call to the
// pool.
func (b *bundle) finish(x *Call, ended *refusal) {
	if ended == nil {
		from := len(b.text)
		text, err := x.Response.Append(beginMessage(b.text))
		b.text = text
		b.add(x.stream, from, err)
	} else {
		b.refuse(x.stream, ended)
	}
	x.end(ended)
	x.release()
}

// add appends an answer whose message is in b.text and begins at index from. err is the error of encoding the message;
// if it is not nil, the answer is a refusal instead. The message begins with room for its prefix (beginMessage).
func (b *bundle) add(s *stream, from int, err error) {
	if err == nil {
		b.text, err = s.seal(b.text, from)
	}
	if err != nil {
		b.text = b.text[:from]
		b.refuse(s, s.refusal(codes.Internal, "grpc: error while marshaling: "+err.Error()))
		return
	}
	b.answers = append(b.answers, answer{stream: s, from: from, to: len(b.text)})
}

func (b *bundle) refuse(s *stream, r *refusal) {
	b.answers = append(b.answers, answer{stream: s, refusal: r, early: !s.ended})
}

func (s *Server) count(c *service.Call) {
	s.requests.Inc()
	if s.took.Enabled() {
		s.took.Observe(s.o.Service.Now().Sub(c.At))
	}
}

func (s *Server) refusalOf(x *Call, err error) *refusal {
	if err == nil {
		return nil
	}
	return x.stream.refusal(service.GRPCStatus(err))
}

// recovered is deferred by the functions that decide a call. It turns a panic into a refusal of the call.
func (s *Server) recovered(x *Call, ended **refusal) {
	if p := recover(); p != nil {
		s.o.Panicked(p)
		*ended = x.stream.refusal(service.GRPCStatus(nil))
	}
}

// drop returns a call to the pool that was refused because the connection has too many calls.
func (x *Call) drop() {
	x.end(&refusal{code: codes.Unavailable, message: "too many calls"})
	x.release()
}

// release returns x to the pool. x must not be used afterwards.
func (x *Call) release() {
	if x.kept > 0 {
		x.conn.server.account.used.Add(-int64(x.kept))
		x.kept = 0
	}
	x.Request.Reset()
	x.Response.Reset()
	if cap(x.body) > bufferBytes {
		x.body = nil
	}
	x.conn, x.stream, x.deadline, x.begun, x.ctx, x.end = nil, nil, time.Time{}, false, nil, nil
	x.started = counter.Pending{}
	callPool.Put(x)
}

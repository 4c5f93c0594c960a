package h2grpc

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/service"
)

// Call is one call of ShouldRateLimit on its way. It owns its request's bytes until it is finished.
type Call struct {
	service.Call
	conn   *conn
	stream *stream
	body   []byte
	// deadline is when the caller gives up; zero: never.
	deadline time.Time
	kept     int  // bytes of body that are accounted for, of a long one
	begun    bool // what needs no store is decided
	started  counter.Started
}

var calls = sync.Pool{New: func() any { return new(Call) }}

// release gives x back. Nothing of it may be used afterwards.
func (x *Call) release() {
	if x.kept > 0 {
		x.conn.server.buffer(-x.kept)
		x.kept = 0
	}
	x.Request.Reset()
	x.Response.Reset()
	if cap(x.body) > bufferBytes {
		x.body = nil
	}
	x.conn, x.stream, x.deadline, x.begun = nil, nil, time.Time{}, false
	x.started = counter.Started{}
	calls.Put(x)
}

// decide begins a call whose message has come. Its answer goes into the connection's bundle, now or, where a store is
// asked, when the store has answered.
func (c *conn) decide(s *stream, message []byte) {
	x := calls.Get().(*Call)
	x.conn, x.stream = c, s
	x.body = append(x.body[:0], message...)
	if len(message) > bufferBytes {
		x.kept = len(message)
		if !c.server.buffer(x.kept) {
			c.server.refused(reasonBuffered)
			c.work.bundle.refuse(s, s.refusal(codes.ResourceExhausted, "too many long messages"))
			x.release()
			return
		}
	}
	if s.header.timed {
		x.deadline = c.now.Add(s.header.timeout)
	}
	o := &c.server.o
	if err := x.Request.Unmarshal(x.body); err != nil {
		o.Service.NoteRefused(service.Malformed, err)
		c.work.bundle.refuse(s,
			s.refusal(codes.Internal, "grpc: failed to unmarshal the received message: "+err.Error()))
		x.release()
		return
	}
	if o.Service.Cost(len(x.body)) > costly {
		c.flushBundle()
		c.work.costly = append(c.work.costly, x)
		return
	}
	asks, ended := c.server.begin(x, c.arrived)
	switch {
	case ended != nil:
		c.work.bundle.refuse(s, ended)
	case asks:
		c.work.waiting = append(c.work.waiting, x)
		return
	default:
		c.work.bundle.reply(x)
	}
	x.release()
}

// begin decides as much as needs no store; asks says that one has to be called. A store that answers at once is.
func (s *Server) begin(x *Call, now time.Time) (asks bool, ended *refusal) {
	defer func() {
		if p := recover(); p != nil {
			asks, ended = false, s.panicked(x, p)
		}
	}()
	asks, err := s.o.Service.Begin(&x.Call, now)
	if err == nil && asks && s.o.Service.Immediate() {
		asks, err = false, s.o.Service.Ask(context.Background(), &x.Call)
	}
	if asks {
		x.begun = true
		return true, nil
	}
	s.count(&x.Call)
	return false, s.refusalOf(x, err)
}

// ask asks the store for a call that begin has left, and waits for it.
func (s *Server) ask(x *Call) (ended *refusal) {
	defer func() {
		if p := recover(); p != nil {
			ended = s.panicked(x, p)
		}
	}()
	ctx := context.Background()
	if !x.deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, x.deadline)
		defer cancel()
	}
	err := s.o.Service.Ask(ctx, &x.Call)
	s.count(&x.Call)
	return s.refusalOf(x, err)
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
	if r, ok := errors.AsType[*service.Refusal](err); ok {
		return x.stream.refusal(refusalCodes[r.Kind], r.Msg)
	}
	return x.stream.refusal(codes.Internal, "internal error")
}

var refusalCodes = map[service.Kind]codes.Code{
	service.Invalid:     codes.InvalidArgument,
	service.Unavailable: codes.Unavailable,
	service.TimedOut:    codes.DeadlineExceeded,
}

// panicked answers a call whose decision panicked.
func (s *Server) panicked(x *Call, p any) *refusal {
	s.o.Panicked(p)
	return x.stream.refusal(codes.Internal, "internal error")
}

// reply appends a call's answer.
func (b *bundle) reply(x *Call) {
	from := len(b.text)
	text, err := x.Response.Append(b.text)
	if err != nil {
		b.text = text[:from]
		b.refuse(x.stream, x.stream.refusal(codes.Internal, "grpc: error while marshaling: "+err.Error()))
		return
	}
	b.text = text
	b.answers = append(b.answers, answer{stream: x.stream, from: from, to: len(text)})
}

func (b *bundle) refuse(s *stream, r *refusal) {
	b.answers = append(b.answers, answer{stream: s, refusal: r, early: !s.ended})
}

// costly is what a call may be estimated to take on the goroutine that reads the connection, where its neighbours wait
// for it.
const costly = 200 * time.Microsecond

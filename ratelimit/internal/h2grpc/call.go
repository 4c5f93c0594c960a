package h2grpc

import (
	"context"
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
	started  counter.Pending
	ctx      context.Context // of the span
	end      func(*refusal)  // ends the span
}

var calls = sync.Pool{New: func() any { return new(Call) }}

// release gives x back. Nothing of it may be used afterwards.
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
	calls.Put(x)
}

// begin decides as much as needs no store; asks says that one has to be called.
func (s *Server) begin(x *Call, now time.Time) (asks bool, ended *refusal) {
	defer func() {
		if p := recover(); p != nil {
			asks, ended = false, s.panicked(x, p)
		}
	}()
	asks, err := s.o.Service.Begin(x.ctx, &x.Call, now)
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
	ctx := x.ctx
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
	return x.stream.refusal(service.GRPCStatus(err))
}

// panicked answers a call whose decision panicked.
func (s *Server) panicked(x *Call, p any) *refusal {
	s.o.Panicked(p)
	return x.stream.refusal(service.GRPCStatus(nil))
}

// finish appends the answer to a call, or its refusal, and gives the call back.
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

// drop gives back a call that is not served.
func (x *Call) drop() {
	x.end(&refusal{code: codes.Unavailable, message: "too many calls"})
	x.release()
}

// add appends an answer whose message, behind the place of its prefix, is the text from an offset on.
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

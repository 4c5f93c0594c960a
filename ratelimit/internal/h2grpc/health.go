package h2grpc

import (
	"context"
	"errors"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"gatehouse/ratelimit/internal/service"
)

// health answers a call of the health service's Check or List, on the reader's goroutine.
func (c *conn) health(s *stream, message []byte) {
	began := time.Now()
	name := "ratelimit_server.Check"
	if s.header.method == methodList {
		name = "ratelimit_server.List"
	}
	o := &c.server.o
	o.Stats.Counter(name + ".total_requests").Inc()
	ctx, end := c.startSpan(s)
	b := &c.in.work.bundle
	from := len(b.text)
	answer, r := c.healthAnswer(ctx, s, message)
	if r != nil {
		c.refuse(s, r)
	} else {
		text, err := proto.MarshalOptions{}.MarshalAppend(beginMessage(b.text), answer)
		b.text = text
		b.add(s, from, err)
	}
	end(r)
	o.Stats.Timer(name + ".response_time").Observe(time.Since(began))
}

func (c *conn) healthAnswer(ctx context.Context, s *stream, message []byte) (answer proto.Message, r *refusal) {
	var err error
	if s.header.method == methodCheck {
		in := &healthpb.HealthCheckRequest{}
		if r := s.unmarshal(message, in); r != nil {
			return nil, r
		}
		answer, err = c.server.o.Health.Check(ctx, in)
	} else {
		in := &healthpb.HealthListRequest{}
		if r := s.unmarshal(message, in); r != nil {
			return nil, r
		}
		answer, err = c.server.o.Health.List(ctx, in)
	}
	if err != nil {
		return nil, s.refusal(status.Code(err), status.Convert(err).Message())
	}
	return answer, nil
}

func (s *stream) unmarshal(message []byte, into proto.Message) *refusal {
	if err := proto.Unmarshal(message, into); err != nil {
		return s.refusal(codes.Internal, "grpc: failed to unmarshal the received message: "+err.Error())
	}
	return nil
}

// watchesPerConn and watchesInAll bound the calls of the health service's Watch, since each has a goroutine.
const (
	watchesPerConn = 16
	watchesInAll   = 1000
)

// watcher is a call of the health service's Watch (a health watch), in the form that grpc-go's health server requires.
type watcher struct {
	grpc.ServerStream // nil, since the health server calls only Context and Send
	conn              *conn
	stream            *stream
	ctx               context.Context // ends with the stream
	cancel            context.CancelFunc
}

// Context implements grpc.ServerStream.
func (w *watcher) Context() context.Context { return w.ctx }

// Send implements healthpb.Health_WatchServer.
func (w *watcher) Send(state *healthpb.HealthCheckResponse) error {
	text, err := proto.MarshalOptions{}.MarshalAppend(beginMessage(nil), state)
	if err == nil {
		text, err = w.stream.seal(text, 0)
	}
	if err == nil && !w.conn.out.push(w.stream, text) {
		err = errors.New("the stream has ended")
	}
	w.conn.out.flush()
	return err
}

// watch serves a health watch on a goroutine of its own.
func (c *conn) watch(s *stream, message []byte) {
	in := &healthpb.HealthCheckRequest{}
	if r := s.unmarshal(message, in); r != nil {
		c.refuse(s, r)
		return
	}
	if !c.enterWatch() {
		c.server.refused(reasonTooManyCalls)
		c.out.reset(s.id, http2.ErrCodeRefusedStream)
		c.in.ended.add(s.id)
		return
	}
	w := &watcher{conn: c, stream: s}
	ctx, end := c.startSpan(s)
	if s.header.timed {
		w.ctx, w.cancel = context.WithTimeout(ctx, s.header.timeout)
	} else {
		w.ctx, w.cancel = context.WithCancel(ctx)
	}
	c.out.mu.Lock()
	s.watch = w.cancel
	c.out.mu.Unlock()
	if !c.out.admit(s, c.server.o.MaxStreams) {
		c.server.refused(reasonTooManyCalls)
		c.in.ended.add(s.id)
		c.leaveWatch()
		w.cancel()
		end(s.refusal(codes.Unavailable, "too many calls"))
		return
	}
	go func() {
		defer c.leaveWatch()
		defer w.cancel()
		r := s.refusal(service.GRPCStatus(nil))
		defer func() {
			if p := recover(); p != nil {
				c.server.o.Panicked(p)
			}
			end(r)
			c.out.endWatch(s, r)
			c.out.flush()
			if c.ids.last() != maxWindow {
				c.leaveIfDone()
			}
		}()
		err := c.server.o.Health.Watch(in, w)
		r = s.refusal(status.Code(err), status.Convert(err).Message())
	}()
}

// enterWatch counts one more health watch. It returns false if there are too many.
func (c *conn) enterWatch() bool {
	mine, all := c.watches.Add(1), c.server.watches.Add(1)
	if mine > watchesPerConn || all > watchesInAll {
		c.leaveWatch()
		return false
	}
	return true
}

func (c *conn) leaveWatch() {
	c.server.watches.Add(-1)
	c.watches.Add(-1)
}

// push appends a message of a health watch to the queue; the stream stays open. It returns false if the stream has
// ended.
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
		o.begin(s)
	}
	s.pending = append(s.pending, message...)
	o.hold(s)
	o.queue(s)
	return true
}

// endWatch ends a health watch with the status in r. If a message still waits for flow control, it resets the stream
// instead.
func (o *sendQueue) endWatch(s *stream, r *refusal) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case s.gone || o.closed:
	case !s.begun:
		o.grab()
		o.refuse(&answer{stream: s, refusal: r})
	case len(s.pending) > 0:
		o.put(func(b []byte) []byte { return appendReset(b, s.id, http2.ErrCodeCancel) })
		o.cut(s)
	default:
		o.grab()
		at := len(o.buf)
		o.buf = o.encoder.failure(appendFrameHeader(o.buf, 0, http2.FrameHeaders, lastHeaders, s.id), r)
		o.setLength(at)
		o.forget(s)
	}
}

package redis

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

// patient is how much time before its deadline a waiting caller must have at least for the watchdog to end its call in
// time. Callers with less time use a timer of their own. A timer and a select for each caller would cost 1.0 of the 2.5
// µs that a hit takes (BenchmarkKVStore).
const patient = 10 * time.Millisecond

// Server is a counter.Store that counts hits in one server, Redis or compatible, that many processes share.
//
// While a batch is on its way to the server and back, the hits of further requests are collected. They form the next
// batch, which has one command for each key, for all callers; each caller gets its own total, in the order in which the
// requests arrived. So a single caller need not wait for others, and many callers share one write and one read. See the
// types batch and pipeline, and the method watch, which supervises them.
type Server struct {
	*link.PoolStats
	o       Options
	newLink func(timeout time.Duration) connection
	skew    *skew
	trouble func() // called when the server has failed, since another server may have taken its place; must not block
	breaker link.Breaker
	seen    seenKeys
	seed    maphash.Seed
	calls   sync.Pool // holds *call
	begun   time.Time // when the store's clock was 0

	mu         sync.Mutex
	queue      []*call     // the calls that wait for a batch, in the order of arrival
	idle       []*pipeline // the pipelines that are idle; the last one was used last
	pipelines  []*pipeline // all pipelines, including overflow ones
	busy       int         // how many pipelines have a batch or a PING, or are about to take one
	dispatched int64       // when the last batch was sent, on the store's clock
	trip       int64       // moving average of the round trips of batches, in ns
	asleep     bool        // the watchdog runs rarely until wake has a value
	closed     bool
	canceled   []*counter.Pending // requests of Start that the breaker or the watchdog has ended; settle completes them
	probe      connection         // the connection of a probe in progress, for Close to drop

	wake chan struct{}   // a value wakes the watchdog
	ctx  context.Context // ends when the store is closed
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// errNeedsTLS keeps a rediss:// URL, which asks for encryption, from being used without TLS.
var errNeedsTLS = errors.New("rediss:// needs TLS")

// NewServer connects to a server, and returns when the server has answered a PING. It tries again, with exponential
// backoff, until ctx ends or Start.MaxElapsed is over.
func NewServer(ctx context.Context, o Options) (*Server, error) {
	t, err := o.Settings.target()
	if err != nil {
		return nil, err
	}
	if WantsTLS(o.Settings.URL) && o.TLS == nil {
		return nil, errNeedsTLS
	}
	s := newServer(o)
	s.at(t, func() link.Endpoint { return t.at }, anyServer)
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// at sets the server's address, credentials and role. The function where returns the address, which may change.
func (s *Server) at(t target, where func() link.Endpoint, as role) {
	s.newLink = func(timeout time.Duration) connection {
		a := s.o.access(t, timeout, s.PoolStats)
		a.skew = s.skew
		return &redisLink{ctx: s.ctx, access: a, where: where, role: as}
	}
}

// open waits until the server has answered a PING, and then starts the goroutines.
func (s *Server) open(ctx context.Context) error {
	first := s.newLink(s.o.Settings.Timeout)
	err := reach(ctx, s.o, func(ctx context.Context) error {
		defer context.AfterFunc(ctx, first.drop)()
		return first.ping()
	})
	if err != nil {
		s.stop()
		first.close()
		return err
	}
	s.run(first)
	return nil
}

func newServer(o Options) *Server {
	o = o.withDefaults()
	ctx, stop := context.WithCancel(context.Background())
	return &Server{
		PoolStats: o.pool,

		o:       o,
		skew:    &skew{report: o.Skew, log: o.Log},
		trouble: func() {},
		breaker: link.Breaker{Stall: o.Stall},
		seen:    seenKeys{generation: seenGeneration},
		seed:    maphash.MakeSeed(),
		calls:   sync.Pool{New: func() any { return newCall() }},
		begun:   time.Now(),
		wake:    make(chan struct{}, 1),
		ctx:     ctx,
		stop:    stop,
	}
}

// run starts the watchdog, and the first pipeline, which begins with the open connection first.
func (s *Server) run(first connection) {
	s.mu.Lock()
	s.idle = append(s.idle, s.newPipeline(first, false))
	s.mu.Unlock()
	s.wg.Go(s.watch)
}

// reach calls try until it succeeds, ctx ends or Start.MaxElapsed is over. Pauses are random, between Start.Initial and
// a bound that doubles up to Start.Max.
func reach(ctx context.Context, o Options, try func(context.Context) error) error {
	step := o.Start.Initial
	for begun := time.Now(); ; step = min(2*step, o.Start.Max) {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		pause := o.Start.Initial + rand.N(step-o.Start.Initial+1)
		if o.Start.MaxElapsed > 0 && time.Since(begun)+pause > o.Start.MaxElapsed {
			return fmt.Errorf("%w: not reached within %s: %w", counter.ErrUnavailable, o.Start.MaxElapsed, err)
		}
		o.Log.Warn("the key-value store does not answer yet", "error", err, "next try in",
			pause.Round(time.Millisecond))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// Add implements Store.
func (s *Server) Add(ctx context.Context, req *counter.Request) error {
	if len(req.Hits) == 0 {
		return nil
	}
	c, err := s.begin(ctx, req, nil)
	if err != nil {
		return err
	}
	undone, err := s.finish(ctx, c, req)
	if undone == nil {
		return err
	}
	return s.addLater(ctx, req, undone)
}

// addLater sends the hits again that the server has not executed, until it has executed all of them or the caller's
// time is over.
func (s *Server) addLater(ctx context.Context, req *counter.Request, undone *call) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.Settings.Timeout)
	defer cancel()
	var left remainder
	left.take(undone, req, nil, "")
	for n := 0; ; n++ {
		s.recycle(undone)
		if err := pause(ctx, n); err != nil {
			return err
		}
		c, err := s.begin(ctx, &left.req, nil)
		if err != nil {
			return err
		}
		if undone, err = s.finish(ctx, c, &left.req); err != nil {
			return err
		}
		left.deliver(req)
		if undone == nil {
			return nil
		}
		var less remainder
		less.take(undone, &left.req, left.at, "")
		left = less
	}
}

// begin copies a request into a call and puts the call into the queue. asking is as in call.fill.
func (s *Server) begin(ctx context.Context, req *counter.Request, asking []bool) (*call, error) {
	if s.breaker.IsOpen() {
		return nil, counter.ErrOpen
	}
	now, stay := s.clock(), s.o.Settings.Timeout
	if deadline, ok := ctx.Deadline(); ok {
		remaining := deadline.Sub(s.begun) - time.Duration(now)
		stay = min(stay, remaining-min(link.LeaveBefore, remaining/4))
	}
	if stay <= 0 {
		return nil, counter.ErrTimeout
	}
	c := s.calls.Get().(*call)
	c.fill(req, asking, s.hash)
	c.arrived, c.stay = now, stay
	if stay > patient {
		c.ctx, c.leave = ctx, c.arrived+int64(stay-watchTick)
	}
	if err := s.enqueue(c); err != nil {
		s.free(c)
		return nil, err
	}
	return c, nil
}

// finish waits until the batch of call c has its replies, and copies the answers to req. If the server has not executed
// some hits, it returns c, which says which hits these are; the caller then has to recycle it.
func (s *Server) finish(ctx context.Context, c *call, req *counter.Request) (undone *call, err error) {
	if c.ctx != nil {
		<-c.ready
	} else if err := c.wait(ctx, c.stay-time.Duration(s.clock()-c.arrived)); err != nil {
		return nil, err // c now belongs to the batch
	}
	err = c.err
	if c.state.Load() != answered {
		return nil, err
	}
	if err == nil {
		c.deliver(req)
		if c.undone > 0 {
			return c, nil
		}
	}
	s.recycle(c)
	return nil, err
}

func (s *Server) hash(key []byte) uint64 { return maphash.Bytes(s.seed, key) | 1 }

// wait waits until the call is answered, for at most stay or until ctx ends. After an error, the caller must not use
// the call any longer: it belongs to the queue or to the batch that contains it.
func (c *call) wait(ctx context.Context, stay time.Duration) error {
	_, gone := link.Await(ctx, c.ready, stay)
	if gone == nil || c.claim(left) {
		return gone
	}
	<-c.ready // the call was answered at the same moment
	return nil
}

// recycle keeps a call for reuse, unless its keys are unusually long.
func (s *Server) recycle(c *call) {
	if c.ctx = nil; cap(c.keys) > 16<<10 {
		return
	}
	s.calls.Put(c)
}

// Peek implements Store.
func (s *Server) Peek(ctx context.Context, h *counter.Hit) error { return counter.Peek(ctx, s, h) }

// Reset implements Store.
func (s *Server) Reset(ctx context.Context, h *counter.Hit) error { return reset(ctx, s, h) }

// reset deletes the key of the hit's counter.
func reset(ctx context.Context, s counter.Store, h *counter.Hit) error {
	gone := *h
	gone.N, gone.Refund, gone.Undo, gone.Delete = 0, false, false, true
	gone.End = h.Window // as if it were now 0: if a hit creates the key meanwhile, the key lives for a whole window
	return s.Add(ctx, &counter.Request{Hits: []counter.Hit{gone}})
}

// Close implements Store. It drops the connections. No call may be in flight.
func (s *Server) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	s.stop()
	for _, l := range s.pipelines {
		l.link.drop()
	}
	if s.probe != nil {
		s.probe.drop()
	}
	s.mu.Unlock()
	link.Wait(&s.wg)
	s.settle()
}

// Open reports whether the breaker is open, so that hits are refused without a call to the server.
func (s *Server) Open() bool { return s.breaker.IsOpen() }

// Flapping reports whether the breaker has opened more than link.Flaps times within a minute.
func (s *Server) Flapping() bool { return s.breaker.Flapping(time.Duration(s.clock())) }

// clock returns the time since the store was created, in ns. It is monotonic.
func (s *Server) clock() int64 { return int64(time.Since(s.begun)) }

func (s *Server) log(level slog.Level, msg string, args ...any) {
	s.o.Log.Log(context.Background(), level, msg, args...)
}

package redis

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/ratelimit/internal/counter"
)

// slowLink answers each batch when released, or after a while; it counts those under way.
type slowLink struct {
	pool   *slowPool
	broken chan struct{}
}

type slowPool struct {
	mu               sync.Mutex
	out, most, links int
	takes            time.Duration // how long a batch is in the store
	pings            time.Duration // how long a PING is
	fail             error
	sent             int
	hits             int64
	dropped, closed  int
	sentAt           []time.Time
}

func (p *slowPool) newLink(time.Duration) connection {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.links++
	return &slowLink{pool: p, broken: make(chan struct{}, 1)}
}

func (l *slowLink) send(b *batch) error {
	p := l.pool
	select {
	case <-l.broken: // an old connection
	default:
	}
	p.mu.Lock()
	p.out++
	p.sent++
	p.most = max(p.most, p.out)
	p.sentAt = append(p.sentAt, time.Now())
	for i := range b.ops {
		p.hits += b.ops[i].n
	}
	takes, err := p.takes, p.fail
	p.mu.Unlock()
	if err == nil {
		select {
		case <-time.After(takes):
		case <-l.broken:
			err = errors.New("broken off")
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out--
	return err
}

func (l *slowLink) ping() error {
	l.pool.mu.Lock()
	fail, pings := l.pool.fail, l.pool.pings
	l.pool.mu.Unlock()
	select {
	case <-time.After(pings):
		return fail
	case <-l.broken:
		return errors.New("broken off")
	}
}

func (l *slowLink) drop() {
	l.pool.mu.Lock()
	l.pool.dropped++
	l.pool.mu.Unlock()
	select {
	case l.broken <- struct{}{}:
	default:
	}
}

func (l *slowLink) close() {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	l.pool.closed++
}

func newSlowStore(t *testing.T, o Options, takes time.Duration) (*Server, *slowPool) {
	p := &slowPool{takes: takes}
	s := newServer(o)
	s.newLink = p.newLink
	s.run(s.newLink(0))
	return s, p
}

// arrive starts callers one after another, gap apart, and returns their errors in order when all are back.
func arrive(s *Server, n int, gap, deadline time.Duration) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			ctx := context.Background()
			if deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, deadline)
				defer cancel()
			}
			errs[i] = s.Add(ctx, &counter.Request{Hits: []counter.Hit{hit("key", 1, 10, noon+60)}, Now: noon})
		})
		time.Sleep(gap)
	}
	wg.Wait()
	return errs
}

func count(errs []error, target error) (n int) {
	for _, err := range errs {
		if errors.Is(err, target) {
			n++
		}
	}
	return n
}

func TestPool(t *testing.T) {
	// f lets callers arrive at a store whose batches take a second, longer than any of the waits below.
	f := func(name string, o Options, deadline time.Duration, check func(t *testing.T, errs []error, p *slowPool)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o.Stall = -1
				s, p := newSlowStore(t, o, time.Second)
				errs := arrive(s, 20, 10*time.Millisecond, deadline)
				s.Close()
				check(t, errs, p)
			})
		})
	}
	all := func(t *testing.T, errs []error, p *slowPool, most int) {
		t.Helper()
		if n := count(errs, nil); n != len(errs) || p.most != most {
			t.Errorf("%d of %d counted, %d batches at once; want all and %d", n, len(errs), p.most, most)
		}
	}
	f("pool", Options{Settings: Settings{PoolSize: 4}, OnEmpty: Wait}, 0,
		func(t *testing.T, errs []error, p *slowPool) {
			all(t, errs, p, 4)
		})
	f("create", Options{Settings: Settings{PoolSize: 2}, OnEmpty: Create, OnEmptyWait: 20 * time.Millisecond}, 0,
		func(t *testing.T, errs []error, p *slowPool) {
			all(t, errs, p, 4)
		})
	f("create later", Options{Settings: Settings{PoolSize: 2}, OnEmpty: Create, OnEmptyWait: 5 * time.Second}, 0,
		func(t *testing.T, errs []error, p *slowPool) {
			all(t, errs, p, 2)
		})
	f("refuse", Options{Settings: Settings{PoolSize: 2}, OnEmpty: Refuse, OnEmptyWait: 50 * time.Millisecond}, 0,
		func(t *testing.T, errs []error, p *slowPool) {
			if ok, busy := count(errs, nil), count(errs, counter.ErrBusy); ok != 2 || busy != 18 {
				t.Errorf("%d counted, %d refused; want 2 and 18", ok, busy)
			}
			if p.hits != 2 {
				t.Errorf("%d hits were sent: the refused ones too", p.hits)
			}
		})
	f("wait", Options{Settings: Settings{PoolSize: 2}, OnEmpty: Wait, OnEmptyWait: time.Millisecond},
		500*time.Millisecond,
		func(t *testing.T, errs []error, p *slowPool) {
			if n := count(errs, counter.ErrTimeout); n != 20 {
				t.Errorf("%d timed out, want 20: %v", n, errs)
			}
			if p.hits != 2 {
				t.Errorf("%d hits were sent, want those of 2: the others left before", p.hits)
			}
		})
}

// An overflow connection closes when it has rested for 30 s; those of the pool stay.
func TestPool_overflowCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newSlowStore(t, Options{Settings: Settings{PoolSize: 1}, OnEmptyWait: 10 * time.Millisecond, Stall: -1},
			100*time.Millisecond)
		defer s.Close()
		arrive(s, 5, 10*time.Millisecond, 0)
		if p.links != 2 {
			t.Fatalf("%d connections, want 2", p.links)
		}
		time.Sleep(overflowIdle + 2*time.Second)
		p.mu.Lock()
		closed := p.closed
		p.mu.Unlock()
		if closed != 1 {
			t.Errorf("%d connections closed, want the overflow one", closed)
		}
		if errs := arrive(s, 5, time.Millisecond, 0); count(errs, nil) != 5 {
			t.Errorf("afterwards: %v", errs)
		}
	})
}

func TestPipelineWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newSlowStore(t, Options{Settings: Settings{PipelineWindow: 5 * time.Millisecond}}, 100*time.Microsecond)
		defer s.Close()
		begun := time.Now()
		arrive(s, 10, time.Millisecond, 0)
		if p.sent != 2 {
			t.Errorf("%d batches for 10 hits a millisecond apart, want 2", p.sent)
		}
		if first := p.sentAt[0].Sub(begun); first != 5*time.Millisecond {
			t.Errorf("the first batch set out after %v, want 5ms", first)
		}
	})
}

// The breaker, and all callers that wait when it opens.
func TestKVStore_breaker(t *testing.T) {
	t.Run("stall", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, p := newSlowStore(t, Options{Settings: Settings{PoolSize: 2}}, time.Hour)
			defer s.Close()
			begun := time.Now()
			errs := arrive(s, 20, time.Millisecond, time.Minute)
			if n := count(errs, counter.ErrOpen); n != 20 {
				t.Errorf("%d answered by the breaker, want 20: %v", n, errs)
			}
			if took := time.Since(begun); took > 260*time.Millisecond {
				t.Errorf("they waited %v", took)
			}
			if !s.Open() {
				t.Fatal("not open")
			}
			p.mu.Lock()
			p.takes = 0
			p.mu.Unlock()
			time.Sleep(600 * time.Millisecond) // one probe
			if s.Open() {
				t.Error("still open after a probe was answered")
			}
			if errs := arrive(s, 5, 0, time.Second); count(errs, nil) != 5 {
				t.Errorf("afterwards: %v", errs)
			}
		})
	})
	t.Run("failures", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, p := newSlowStore(t, Options{}, 0)
			defer s.Close()
			p.mu.Lock()
			p.fail = errors.New("connection refused")
			p.mu.Unlock()
			errs := arrive(s, 8, time.Millisecond, time.Second)
			if count(errs[:5], counter.ErrUnavailable) != 5 || count(errs[5:], counter.ErrOpen) != 3 {
				t.Errorf("%v; want 5 times unavailable, then open", errs)
			}
			time.Sleep(2 * time.Second)
			if !s.Open() {
				t.Error("closed though the store is away")
			}
		})
	})
	t.Run("deadlines do not count", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, _ := newSlowStore(t, Options{}, 200*time.Millisecond)
			defer s.Close()
			errs := arrive(s, 100, 10*time.Millisecond, 50*time.Millisecond)
			if n := count(errs, counter.ErrTimeout); n != 100 || s.Open() {
				t.Errorf("%d timed out, open %v; want 100 and not", n, s.Open())
			}
		})
	})
}

// Callers leave in time, wherever their hits are.
func TestKVStore_callersLeave(t *testing.T) {
	f := func(deadline, least, most time.Duration) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			s, _ := newSlowStore(t, Options{Stall: -1, Settings: Settings{PoolSize: 1}, OnEmpty: Wait}, 10*time.Second)
			defer s.Close()
			for _, where := range []string{"in the store", "in the queue"} {
				ctx, cancel := context.WithTimeout(context.Background(), deadline)
				begun := time.Now()
				err := s.Add(ctx, &counter.Request{Hits: []counter.Hit{hit("key", 1, 10, noon+60)}, Now: noon})
				if took := time.Since(begun); err != counter.ErrTimeout || took < least || took > most {
					t.Errorf("%s, deadline %v: %v after %v; want a time-out after %v to %v", where, deadline, err, took,
						least, most)
				}
				cancel()
			}
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(30*time.Millisecond, cancel)
			begun := time.Now()
			err := s.Add(ctx, &counter.Request{Hits: []counter.Hit{hit("key", 1, 10, noon+60)}, Now: noon})
			if took := time.Since(begun); !errors.Is(err, counter.ErrTimeout) || took > 40*time.Millisecond {
				t.Errorf("canceled after 30 ms: %v after %v", err, took)
			}
		})
	}
	const ms = time.Millisecond
	f(time.Second, 996*ms, 998*ms)
	f(20*ms, 16*ms, 18*ms)
	f(9*ms, 7*ms, 7*ms)
	f(4*ms, 3*ms, 3*ms)
	f(100*time.Microsecond, 75*time.Microsecond, 75*time.Microsecond)
}

// A slow PING of an idle connection is no dead store: on a busy machine the daemon itself may be what
// was slow. Hits that wait behind it are.
func TestBreaker_slowPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newSlowStore(t, Options{Settings: Settings{PoolSize: 1}, Stall: 250 * time.Millisecond},
			time.Millisecond)
		defer s.Close()
		p.mu.Lock()
		p.pings = 400 * time.Millisecond
		p.mu.Unlock()
		for range 100 { // ten seconds, with a few PINGs
			time.Sleep(100 * time.Millisecond)
			if s.Open() {
				t.Fatal("a PING of 400 ms opened the breaker, and nobody was waiting")
			}
		}
		p.mu.Lock()
		p.pings = time.Hour
		p.mu.Unlock()
		time.Sleep(3 * time.Second) // one is under way by now
		begun := time.Now()
		errs := arrive(s, 1, 0, 5*time.Second)
		if took := time.Since(begun); !errors.Is(errs[0], counter.ErrOpen) ||
			took < 250*time.Millisecond || took > 300*time.Millisecond {
			t.Errorf("%v after %v, want ErrOpen after 250 ms", errs[0], took)
		}
	})
}

// A store that stands still, with no stall that opens the breaker: callers that have left are not kept in the queue.
func TestQueue_dropsLeftCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newSlowStore(t, Options{Settings: Settings{PoolSize: 1}, OnEmpty: Wait, Stall: -1}, time.Minute)
		defer s.Close()
		if errs := arrive(s, 1000, 0, 100*time.Millisecond); count(errs, counter.ErrTimeout) != 1000 {
			t.Fatalf("%d timed out", count(errs, counter.ErrTimeout))
		}
		time.Sleep(10 * time.Millisecond)
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.queue) != 0 {
			t.Errorf("%d calls wait in the queue though nobody waits for them", len(s.queue))
		}
	})
}

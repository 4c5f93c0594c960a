package h2grpc

import (
	"context"
	"sync"
)

// ask calls the store for the hits that begin has left, and waits for the answer.
func (s *Server) ask(x *Call) (ended *refusal) {
	defer s.recovered(x, &ended)
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

// answer finishes a call on a goroutine of its own.
func (s *Server) answer(x *Call) {
	c := x.conn
	asks, ended := true, (*refusal)(nil)
	if !x.begun {
		asks, ended = s.begin(x, s.o.Service.Now())
	}
	if asks {
		ended = s.ask(x)
	}
	b := bundles.Get().(*bundle)
	b.finish(x, ended)
	s.send(c, b)
	bundles.Put(b)
}

// askers are the goroutines that wait for a store. An idle one is kept for the next call, since a new goroutine has to
// grow its stack for every call.
type askers struct {
	do   func(*Call)
	most int

	mu      sync.Mutex
	idle    []chan *Call
	running int
	queue   []*Call // calls that wait for a goroutine while most are running
}

// start runs do(x) on a goroutine.
func (a *askers) start(x *Call) {
	a.mu.Lock()
	if n := len(a.idle); n > 0 {
		next := a.idle[n-1]
		a.idle = a.idle[:n-1]
		a.mu.Unlock()
		next <- x
		return
	}
	if a.running == a.most {
		a.queue = append(a.queue, x)
		a.mu.Unlock()
		return
	}
	a.running++
	a.mu.Unlock()
	go a.run(x)
}

func (a *askers) run(x *Call) {
	next := make(chan *Call, 1)
	for x != nil {
		a.do(x)
		a.mu.Lock()
		switch {
		case len(a.queue) > 0:
			x, a.queue[0] = a.queue[0], nil
			a.queue = a.queue[1:]
			a.mu.Unlock()
		case len(a.idle) < keptAskers:
			a.idle = append(a.idle, next)
			a.mu.Unlock()
			x = <-next
		default:
			a.running--
			a.mu.Unlock()
			return
		}
	}
}

const (
	keptAskers = 512
	mostAskers = 8192
)

// close ends the idle goroutines.
func (a *askers) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, next := range a.idle {
		next <- nil
	}
	a.idle = nil
}

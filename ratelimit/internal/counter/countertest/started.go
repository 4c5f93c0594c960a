package countertest

import (
	"context"
	"errors"
	"sync/atomic"

	"gatehouse/ratelimit/internal/counter"
)

// Async is a Store whose Add uses the store's counter.Async wherever it takes the request. With it, Run tests Async as
// well as Add.
type Async struct {
	counter.Store
	Started atomic.Int64 // how many requests a counter.Async has taken
}

// errTwice is the error of a request that was completed twice, which must not happen.
var errTwice = errors.New("countertest: the request was completed twice")

// waiter is the Owner of one request, for which Add waits.
type waiter struct {
	done  chan *counter.Pending
	count atomic.Int32
}

// Complete implements counter.Owner.
func (w *waiter) Complete(done []*counter.Pending) {
	for _, st := range done {
		if w.count.Add(1) > 1 {
			st.Err = errTwice
		}
		w.done <- st
	}
}

// Add implements counter.Store.
func (s *Async) Add(ctx context.Context, req *counter.Request) error {
	starter := s.Store.(counter.AsyncStore).Async(req)
	if starter == nil || len(req.Hits) == 0 {
		return s.Store.Add(ctx, req)
	}
	w := &waiter{done: make(chan *counter.Pending, 2)}
	st := &counter.Pending{Req: req, Owner: w}
	st.Deadline, _ = ctx.Deadline()
	if refused := starter.Start([]*counter.Pending{st}); len(refused) > 0 {
		if st.Err != nil {
			return st.Err
		}
		return s.Store.Add(ctx, req)
	}
	st = <-w.done
	s.Started.Add(1)
	return st.Err
}

package countertest

import (
	"context"
	"errors"
	"sync/atomic"

	"gatehouse/ratelimit/internal/counter"
)

// Starting is a store whose Add goes through the Starter wherever it takes the request, so that Run holds that way to
// what every Store must do.
type Starting struct {
	counter.Store
	Started atomic.Int64 // requests that a Starter has completed
}

// errTwice is the answer to a request that is completed a second time.
var errTwice = errors.New("countertest: the request was completed twice")

// waiter is the owner of one request.
type waiter struct {
	done  chan *counter.Started
	count atomic.Int32
}

// Complete implements counter.Owner.
func (w *waiter) Complete(done []*counter.Started) {
	for _, st := range done {
		if w.count.Add(1) > 1 {
			st.Err = errTwice
		}
		w.done <- st
	}
}

// Add implements counter.Store.
func (s *Starting) Add(ctx context.Context, req *counter.Request) error {
	starter := s.Store.(counter.Starting).Starter(req)
	if starter == nil || len(req.Hits) == 0 {
		return s.Store.Add(ctx, req)
	}
	w := &waiter{done: make(chan *counter.Started, 2)}
	st := &counter.Started{Req: req, Owner: w}
	st.Deadline, _ = ctx.Deadline()
	if refused := starter.Start([]*counter.Started{st}); len(refused) > 0 {
		if st.Err != nil {
			return st.Err
		}
		return s.Store.Add(ctx, req)
	}
	st = <-w.done
	s.Started.Add(1)
	return st.Err
}

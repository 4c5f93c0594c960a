package counter

import (
	"context"
	"sync"
)

// PerSecondRouter sends hits of rules per second to a store of their own and all other hits to the main store
// (KVSTORE_PERSECOND). A request with both is one batch to each store, at the same time.
//
// Under Request.Stop a request with both is read in both stores first and written when no hit is over; each write
// checks its own limit again, see AddAcrossNodes. Such a request fails as a whole when either store fails. Without
// Stop, a store that fails, or a node of a store, fails only its own hits: Add returns ErrPartial.
type PerSecondRouter struct {
	main, perSecond Store
	pairs           sync.Pool // *pair
}

// NewPerSecondRouter joins two stores.
func NewPerSecondRouter(main, perSecond Store) *PerSecondRouter {
	return &PerSecondRouter{main: main, perSecond: perSecond, pairs: sync.Pool{New: func() any {
		return &pair{done: make(chan struct{}, 1)}
	}}}
}

// pair is one request divided in two.
type pair struct {
	main, perSecond subrequest
	done            chan struct{} // signals that the per-second side has finished
}

// subrequest is the part of a request for one store.
type subrequest struct {
	req Request
	at  []int // the hits' indexes in the whole request
	err error
}

// Add implements Store.
func (t *PerSecondRouter) Add(ctx context.Context, req *Request) error {
	if only := t.only(req); only != nil {
		return only.Add(ctx, req)
	}
	if req.Stop == StopAll {
		return AddAcrossNodes(ctx, req, t.Add)
	}
	return t.carry(ctx, req)
}

// only returns the store that has all of the request's counters; nil: both have some.
func (t *PerSecondRouter) only(req *Request) Store {
	perSecond := 0
	for i := range req.Hits {
		if req.Hits[i].PerSecond {
			perSecond++
		}
	}
	switch perSecond {
	case 0:
		return t.main
	case len(req.Hits):
		return t.perSecond
	}
	return nil
}

// carry has both stores carry out their sides, and waits for both.
func (t *PerSecondRouter) carry(ctx context.Context, req *Request) error {
	p := t.pairs.Get().(*pair)
	sides := [...]*subrequest{&p.main, &p.perSecond}
	for _, s := range sides {
		s.req.Now, s.req.Stop = req.Now, req.Stop
	}
	for i := range req.Hits {
		s := &p.main
		if req.Hits[i].PerSecond {
			s = &p.perSecond
		}
		s.req.Hits, s.at = append(s.req.Hits, req.Hits[i]), append(s.at, i)
	}
	go p.runPerSecond(ctx, t.perSecond)
	p.main.err = t.main.Add(ctx, &p.main.req)
	<-p.done
	var out Outcome
	for _, s := range sides {
		for i, at := range s.at {
			h, done := &req.Hits[at], &s.req.Hits[i]
			h.TakeAnswer(done)
			h.Err = nil
			switch {
			case s.err == nil:
			case s.err != ErrPartial:
				out.Fail(h, s.err)
			case done.Err != nil:
				out.Fail(h, done.Err)
			}
		}
		clear(s.req.Hits) // drops references to keys
		s.req.Hits, s.at, s.err = s.req.Hits[:0], s.at[:0], nil
	}
	t.pairs.Put(p)
	return out.Of(req)
}

func (p *pair) runPerSecond(ctx context.Context, s Store) {
	p.perSecond.err = s.Add(ctx, &p.perSecond.req)
	p.done <- struct{}{}
}

// Peek implements Store.
func (t *PerSecondRouter) Peek(ctx context.Context, h *Hit) error { return t.of(h).Peek(ctx, h) }

// Reset implements Store.
func (t *PerSecondRouter) Reset(ctx context.Context, h *Hit) error { return t.of(h).Reset(ctx, h) }

// of returns the store that has the hit's counter.
func (t *PerSecondRouter) of(h *Hit) Store {
	if h.PerSecond {
		return t.perSecond
	}
	return t.main
}

// Close implements Store.
func (t *PerSecondRouter) Close() {
	t.perSecond.Close()
	t.main.Close()
}

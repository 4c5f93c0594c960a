package counter

import (
	"context"
	"sync"
)

// PerSecondRouter is a Store that divides the hits between two stores: hits of rules whose unit is a second go to a
// separate store, all other hits to the main store (KVSTORE_PERSECOND). If a request has both kinds, each store gets
// its part as one batch, at the same time.
//
// If such a request is under StopAll, AddAcrossNodes carries it out: it reads both stores first and counts only if no
// hit exceeds its limit. The request then fails as a whole if either store fails. Without Stop, a store that fails, or
// a node of a store, fails only its own hits: Add returns ErrPartial.
type PerSecondRouter struct {
	main, perSecond Store
	pairs           sync.Pool // holds *pair
}

// NewPerSecondRouter returns a Store that divides its hits between the main and the per-second store.
func NewPerSecondRouter(main, perSecond Store) *PerSecondRouter {
	return &PerSecondRouter{main: main, perSecond: perSecond, pairs: sync.Pool{New: func() any {
		return &pair{done: make(chan struct{}, 1)}
	}}}
}

// pair is one request divided between the two stores.
type pair struct {
	main, perSecond subrequest
	done            chan struct{} // signals that the per-second store has finished
}

// subrequest is the part of a request for one store.
type subrequest struct {
	req Request
	at  []int // the indexes of req.Hits in the whole request
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

// only returns the store that has all of the request's counters, or nil if the main and the per-second store both have
// some.
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

// carry calls both stores with their parts of the request, and waits for both.
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
		clear(s.req.Hits) // keeps no references to keys
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

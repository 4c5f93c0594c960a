package counter

import (
	"context"
	"sync"
)

// PerSecondRouter sends hits of rules per second to a store of their own and all others to the main one
// (KVSTORE_PERSECOND). A request with both is one batch to each, at the same time.
//
// Under Request.Stop a request with both is read in both stores first and written when no hit is over, each write
// checking its own limit again; see AddAcrossNodes. It fails as a whole when either store does. Without, a store that
// fails fails its own hits alone, and so does a node of it: Add returns ErrPartial.
type PerSecondRouter struct {
	main, perSecond Store
	pairs           sync.Pool // *pair
}

// NewPerSecondRouter joins two stores and owns them.
func NewPerSecondRouter(main, perSecond Store) *PerSecondRouter {
	return &PerSecondRouter{main: main, perSecond: perSecond, pairs: sync.Pool{New: func() any {
		return &pair{done: make(chan struct{}, 1)}
	}}}
}

// pair is one request in two parts.
type pair struct {
	main, perSecond subrequest
	done            chan struct{} // the per-second side is
}

// subrequest is what one store gets of a request.
type subrequest struct {
	req Request
	at  []int // the hits' places in the request
	err error
}

// Add implements Store.
func (t *PerSecondRouter) Add(ctx context.Context, req *Request) error {
	if only := t.only(req); only != nil {
		return only.Add(ctx, req)
	}
	if req.Stop != StopNone {
		return AddAcrossNodes(ctx, req, t.whole)
	}
	return t.carry(ctx, req)
}

// only is the store that has all of the request's counters; nil: both have some.
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

// whole carries out a request wherever its counters are, and fails as a whole.
func (t *PerSecondRouter) whole(ctx context.Context, req *Request) error {
	if only := t.only(req); only != nil {
		return Whole(req, only.Add(ctx, req))
	}
	return Whole(req, t.carry(ctx, req))
}

// carry has both stores carry out their sides and waits for both.
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
		clear(s.req.Hits) // keys of others
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

// of is the store that has the hit's counter.
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

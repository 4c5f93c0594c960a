package counter

import "context"

// split is the hits of one request, grouped by the node that has their keys. It is used again.
type split struct {
	now   int64
	stop  bool
	each  bool
	parts []part
}

// part is what one node gets of a request.
type part struct {
	node *clusterNode
	req  Request
	at   []int // the hits' places in the request
	call *call // under way
	err  error
}

// outcome is what became of the hits of one request.
type outcome struct {
	failed int
	err    error // of the first that failed
}

func (o *outcome) fail(h *Hit, err error) {
	if h.Err = err; o.err == nil {
		o.err = err
	}
	o.failed++
}

// of is what Add returns: hits that have failed leave the others theirs.
func (o *outcome) of(req *Request) error {
	switch o.failed {
	case 0:
		return nil
	case len(req.Hits):
		return o.err
	}
	return ErrPartial
}

// reset empties it for hits of req.
func (s *split) reset(req *Request) {
	s.now, s.stop, s.each = req.Now, req.Stop, req.each
	for i := range s.parts {
		p := &s.parts[i]
		clear(p.req.Hits) // keys of others
		p.node, p.call, p.err, p.req.Hits, p.at = nil, nil, nil, p.req.Hits[:0], p.at[:0]
	}
	s.parts = s.parts[:0]
}

// add puts a hit into the part of its node. Hits on one key keep their order.
func (s *split) add(n *clusterNode, h *Hit, at int) {
	i := 0
	for i < len(s.parts) && s.parts[i].node != n {
		i++
	}
	if i == len(s.parts) {
		if i < cap(s.parts) {
			s.parts = s.parts[:i+1] // with the memory of before
		} else {
			s.parts = append(s.parts, part{})
		}
		p := &s.parts[i]
		p.node, p.req.Now, p.req.Stop, p.req.each = n, s.now, s.stop, s.each
	}
	p := &s.parts[i]
	p.req.Hits, p.at = append(p.req.Hits, *h), append(p.at, at)
}

// addSpread carries out a request whose keys several nodes have. A node that fails fails its own.
func (c *Cluster) addSpread(ctx context.Context, req *Request) error {
	s := c.splits.Get().(*split)
	defer c.splits.Put(s)
	s.reset(req)
	var left leftover
	var out outcome
	for i := range req.Hits {
		h := &req.Hits[i]
		h.Err = nil
		if n := c.slots[slotOf(h.Key)].Load(); n != nil {
			s.add(n, h, i)
		} else {
			left.later(req, h, i)
		}
	}
	c.carry(ctx, s, req, &left, &out)
	if len(left.at) > 0 {
		c.addLater(ctx, req, &left, &out)
	}
	return out.of(req)
}

// carry has the nodes carry out their parts, c.width of them at a time, and puts what they cannot at
// present into left.
func (c *Cluster) carry(ctx context.Context, s *split, req *Request, left *leftover, out *outcome) {
	begun := 0
	for i := range s.parts {
		for ; begun < len(s.parts) && begun-i < c.width; begun++ {
			p := &s.parts[begun]
			p.call, p.err = p.node.begin(ctx, &p.req)
		}
		p := &s.parts[i]
		var undone *call
		if p.err == nil {
			undone, p.err = p.node.finish(ctx, p.call, &p.req)
		}
		switch {
		case p.err == errClosed: // the node has just been given up
			for j, at := range p.at {
				left.later(&p.req, &p.req.Hits[j], at)
			}
		case p.err != nil:
			for _, at := range p.at {
				out.fail(&req.Hits[at], p.err)
			}
		default:
			for j, at := range p.at {
				req.Hits[at].After, req.Hits[at].Spared = p.req.Hits[j].After, p.req.Hits[j].Spared
			}
			if undone != nil {
				left.take(undone, &p.req, p.at, p.node.addr)
				p.node.recycle(undone)
			}
		}
		p.call = nil
	}
}

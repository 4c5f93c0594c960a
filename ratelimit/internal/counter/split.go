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
}

// reset empties it for hits of req.
func (s *split) reset(req *Request) {
	s.now, s.stop, s.each = req.Now, req.Stop, req.each
	for i := range s.parts {
		p := &s.parts[i]
		clear(p.req.Hits) // keys of others
		p.node, p.call, p.req.Hits, p.at = nil, nil, p.req.Hits[:0], p.at[:0]
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

// addSpread carries out a request whose keys several nodes have.
func (c *Cluster) addSpread(ctx context.Context, req *Request) error {
	s := c.splits.Get().(*split)
	defer c.splits.Put(s)
	s.reset(req)
	var left leftover
	for i := range req.Hits {
		h := &req.Hits[i]
		if n := c.slots[slotOf(h.Key)].Load(); n != nil {
			s.add(n, h, i)
		} else {
			left.later(req, h, i)
		}
	}
	if err := c.carry(ctx, s, req, &left); err != nil || len(left.at) == 0 {
		return err
	}
	return c.addLater(ctx, req, &left)
}

// carry has the nodes carry out their parts, c.width of them at a time, and puts what they have not
// into left. After an error nothing more is sent.
func (c *Cluster) carry(ctx context.Context, s *split, req *Request, left *leftover) (err error) {
	begun := 0
	for i := range s.parts {
		for ; err == nil && begun < len(s.parts) && begun-i < c.width; begun++ {
			p := &s.parts[begun]
			if p.call, err = p.node.begin(ctx, &p.req); err == errClosed {
				err = nil // the node has just been given up; without a call the part is left over
			}
		}
		if i >= begun {
			break // it failed
		}
		p := &s.parts[i]
		if err != nil {
			p.node.abandon(p.call)
			continue
		}
		var undone *call
		if p.call != nil {
			undone, err = p.node.finish(ctx, p.call, &p.req)
		}
		switch {
		case p.call == nil || err == errClosed:
			err = nil
			for j := range p.req.Hits {
				left.later(&p.req, &p.req.Hits[j], p.at[j])
			}
		case err == nil:
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
	return err
}

// abandon leaves a call that nobody waits for any more.
func (s *KVStore) abandon(c *call) {
	if c == nil || c.claim(left) {
		return // it belongs to the batcher
	}
	<-c.ready
	if c.state.Load() == answered {
		s.recycle(c)
	}
}

package redis

import (
	"bytes"
	"context"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

// Async implements counter.AsyncStore. It returns the node that has all counters of the request, or nil if there is
// none.
func (c *Cluster) Async(req *counter.Request) counter.Async {
	if len(req.Hits) == 0 || req.Stop == counter.StopAll {
		return nil
	}
	if n := c.sole(req); n != nil {
		return n
	}
	return nil
}

// Start implements counter.Async.
func (n *clusterNode) Start(calls []*counter.Pending) []*counter.Pending {
	refused := n.server.start(calls, n)
	for _, st := range refused {
		if st.Err == link.ErrClosed { // the node was closed a moment ago; the caller's Add finds the present node
			st.Err = nil
		}
	}
	return refused
}

// resume implements resumer.
func (n *clusterNode) resume(ctx context.Context, req *counter.Request, undone *call) error {
	return n.cluster.addElsewhere(ctx, req, n, undone)
}

// split is one request, grouped by the nodes that have the keys of its hits. Its memory is reused.
type split struct {
	shards []shard
}

// shard is the part of a request that goes to one node.
type shard struct {
	node   *clusterNode
	req    counter.Request
	at     []int  // the index of each hit in the whole request
	asking []bool // for each hit, whether the slot of its key is moving to the node
	call   *call  // the call that was sent to the node and is not finished
	err    error
}

// reset empties s and keeps its memory.
func (s *split) reset() {
	for i := range s.shards {
		p := &s.shards[i]
		clear(p.req.Hits) // keeps no references to keys
		p.node, p.call, p.err, p.req.Hits, p.at, p.asking = nil, nil, nil, p.req.Hits[:0], p.at[:0], p.asking[:0]
	}
	s.shards = s.shards[:0]
}

// add adds a hit of req to the shard of node n. at is its index in the whole request. Hits on one key keep their order.
func (s *split) add(n *clusterNode, req *counter.Request, h *counter.Hit, at int, asking bool) {
	i := 0
	for i < len(s.shards) && s.shards[i].node != n {
		i++
	}
	if i == len(s.shards) {
		if i < cap(s.shards) {
			s.shards = s.shards[:i+1] // reuses the memory of the shard
		} else {
			s.shards = append(s.shards, shard{})
		}
		p := &s.shards[i]
		p.node, p.req.Now, p.req.Stop = n, req.Now, req.Stop
	}
	p := &s.shards[i]
	p.req.Hits, p.at, p.asking = append(p.req.Hits, *h), append(p.at, at), append(p.asking, asking)
}

// addSpread carries out a request whose keys are on several nodes. If a node fails, only its own hits fail.
func (c *Cluster) addSpread(ctx context.Context, req *counter.Request) error {
	s := c.splits.Get().(*split)
	defer c.splits.Put(s)
	s.reset()
	var left remainder
	var out counter.Outcome
	for i := range req.Hits {
		h := &req.Hits[i]
		h.Err = nil
		if n := c.slots[slotOf(h.Key)].Load(); n != nil {
			s.add(n, req, h, i, false)
		} else {
			left.add(req, h, i, retryLater)
		}
	}
	c.carry(ctx, s, req, &left, &out)
	if len(left.at) > 0 {
		c.addLater(ctx, req, &left, &out)
	}
	return out.Of(req)
}

// carry sends the shards to their nodes, at most c.width at the same time. Hits that a node has not executed are added
// to left; hits that have failed, to out.
func (c *Cluster) carry(ctx context.Context, s *split, req *counter.Request, left *remainder, out *counter.Outcome) {
	begun := 0
	for i := range s.shards {
		for ; begun < len(s.shards) && begun-i < c.width; begun++ {
			p := &s.shards[begun]
			p.call, p.err = p.node.server.begin(ctx, &p.req, p.asking)
		}
		p := &s.shards[i]
		var undone *call
		if p.err == nil {
			undone, p.err = p.node.server.finish(ctx, p.call, &p.req)
		}
		switch {
		case p.err == link.ErrClosed: // the node was closed a moment ago
			for j, at := range p.at {
				left.add(&p.req, &p.req.Hits[j], at, retryLater)
			}
		case p.err != nil:
			for _, at := range p.at {
				out.Fail(&req.Hits[at], p.err)
			}
		default:
			for j, at := range p.at {
				req.Hits[at].TakeAnswer(&p.req.Hits[j])
			}
			if undone != nil {
				left.take(undone, &p.req, p.at, p.node.addr)
				p.node.server.recycle(undone)
			}
		}
		p.call = nil
	}
}

// slots is the number of slots in a Redis Cluster.
const slots = 16384

// slotOf returns the slot of a key: the CRC-16/XMODEM of the text between the first { and the next } or, if there is no
// such text or it is empty, of the whole key (Redis Cluster Specification, "Hash tags").
func slotOf(key []byte) uint16 {
	if i := bytes.IndexByte(key, '{'); i >= 0 {
		if n := bytes.IndexByte(key[i+1:], '}'); n > 0 {
			key = key[i+1 : i+1+n]
		}
	}
	var crc uint16
	for _, b := range key {
		crc = crc<<8 ^ crc16[byte(crc>>8)^b]
	}
	return crc % slots
}

var crc16 = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()

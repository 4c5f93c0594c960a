package redis

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// view is what one node knows about the cluster: which master serves which slots.
type view struct {
	ranges []slotRange
	peers  []string // the addresses of all nodes, masters and replicas
}

// slotRange is a range of slots, from first to last inclusive, and the address of their master.
type slotRange struct {
	first, last int
	master      string
}

// askAtOnce is how many nodes refresh queries at the same time, so that a node that hangs does not delay it.
const askAtOnce = 3

// refresh queries nodes for the table of slots until one reports the cluster as healthy, and puts its table in force.
func (c *Cluster) refresh(ctx context.Context) error {
	c.mu.Lock()
	peers := make([]string, 0, len(c.peers))
	for i := range c.peers { // each refresh begins with another node
		peers = append(peers, c.peers[(c.turn+i)%len(c.peers)])
	}
	c.turn++
	c.mu.Unlock()
	failure := errNoNode
	defer func() {
		c.mu.Lock()
		c.down = failure != nil
		c.mu.Unlock()
	}()
	for len(peers) > 0 {
		n := min(askAtOnce, len(peers))
		if failure = c.refreshFrom(ctx, peers[:n]); failure == nil || ctx.Err() != nil {
			break
		}
		peers = peers[n:]
	}
	return failure
}

func (c *Cluster) refreshFrom(ctx context.Context, peers []string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := askEach(ctx, &c.wg, peers, "", c.ask)
	var failure error
	for range peers {
		a := <-answers
		if a.err == nil {
			c.apply(a.said)
			return nil
		}
		failure = a.err
	}
	return failure
}

// ask queries one node over a new connection.
func (c *Cluster) ask(ctx context.Context, addr string) (v view, err error) {
	timeout := min(c.o.Settings.Timeout, time.Second)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer recovered(&err)
	a := c.o.access(c.t, timeout, nil)
	replies, err := a.once(ctx, addr, func(b rueidis.Builder) []rueidis.Completed {
		return []rueidis.Completed{b.ClusterInfo().Build(), b.ClusterSlots().Build()}
	})
	if err != nil {
		return v, err
	}
	info, unknown := replies[0].ToString() // unknown is an error if the user lacks the right
	ranges, err := replies[1].ToArray()
	if err != nil {
		return v, err
	}
	if err := v.read(ranges, addr); err != nil {
		return v, err
	}
	if unknown == nil && !strings.Contains(info, "cluster_state:ok") {
		return v, errors.New("the node finds its cluster down")
	}
	return v, nil
}

// read reads the reply to CLUSTER SLOTS into v. The reply has, for each range of slots, the first and the last slot,
// the master and its replicas; each node is a list that begins with host and port. asked is the address of the node
// that replied, whose host is used for a node without a host.
func (v *view) read(ranges []rueidis.RedisMessage, asked string) error {
	for i := range ranges {
		fields, err := ranges[i].ToArray()
		if err != nil || len(fields) < 3 {
			return errors.New("an answer to CLUSTER SLOTS that makes no sense")
		}
		first, err1 := fields[0].AsInt64()
		last, err2 := fields[1].AsInt64()
		if err := errors.Join(err1, err2); err != nil || first < 0 || first > last || last >= slots {
			return errors.New("an answer to CLUSTER SLOTS with slots that there are not")
		}
		for j := range fields[2:] {
			node, err := fields[2+j].ToArray()
			if err != nil || len(node) < 2 {
				return errors.New("an answer to CLUSTER SLOTS with a node that makes no sense")
			}
			host, _ := node[0].ToString() // nil if the node does not know it
			port, err := node[1].AsInt64()
			if err != nil {
				return errors.New("an answer to CLUSTER SLOTS without a port")
			}
			addr, ok := absolute(host+":"+strconv.FormatInt(port, 10), asked)
			if !ok {
				return errors.New("an answer to CLUSTER SLOTS with a wrong port")
			}
			if v.peers = append(v.peers, addr); j == 0 {
				v.ranges = append(v.ranges, slotRange{int(first), int(last), addr})
			}
		}
	}
	return nil
}

// apply puts a view in force. A slot to which the view gives no master has no node until another view does.
func (c *Cluster) apply(v view) {
	table := make([]*clusterNode, slots)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return
	}
	for _, r := range v.ranges {
		n := c.node(r.master)
		for i := r.first; i <= r.last; i++ {
			table[i] = n
		}
	}
	if c.down { // the cluster has recovered, so probe at once the nodes whose breaker is open
		for _, n := range c.nodes {
			n.server.wakeProbe()
		}
	}
	for i := range table {
		if c.slots[i].Load() != table[i] {
			c.slots[i].Store(table[i])
		}
	}
	known := map[string]bool{}
	c.peers = c.peers[:0:0]
	for _, addr := range append(v.peers, c.t.addrs...) {
		if !known[addr] {
			known[addr] = true
			c.peers = append(c.peers, addr)
		}
	}
}

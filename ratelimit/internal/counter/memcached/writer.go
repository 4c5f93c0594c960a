package memcached

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"gatehouse/ratelimit/internal/counter"
)

const (
	// maxTold bounds what a node is told of in one write.
	maxTold = 256
	// tellerIdle is how long the teller's connection stays open when nothing is to be told.
	tellerIdle = 10 * time.Second
	// tellRounds is how often a counter may vanish between its increment and its making.
	tellRounds = 3
)

// queue puts a counter with something owed into the queue and sees to it that somebody tells.
func (n *node) queue(t *tally) {
	t.queued = true
	n.due = append(n.due, t)
	n.tellAll()
}

// tellAll starts the teller if it is of use and not under way.
func (n *node) tellAll() {
	if !n.telling && len(n.due) > 0 && !n.breaker.IsOpen() && n.store.ctx.Err() == nil {
		n.telling = true
		n.store.wg.Go(n.tell)
	}
}

// telling is what a node is told of one counter, and what became of that.
type telling struct {
	tally        *tally
	change, ends int64
	// add: the counter is to be made, with the change as its first value.
	add   bool
	done  bool
	total int64
	err   error
}

func (t *telling) finish(total int64, err error) { t.done, t.total, t.err = true, total, err }

// tell tells the node of what is owed until nothing is: all that waits in one write, while the next
// gathers. Only one teller is under way, so that each counter is told of one after the other.
func (n *node) tell() {
	s := n.store
	for {
		// Whoever is ready to run goes first, so that their hits come along; as pipeline.take.
		runtime.Gosched()
		runtime.Gosched()
		s.mu.Lock()
		n.batch = n.takeDue(n.batch[:0])
		batch := n.batch
		if len(batch) == 0 {
			n.telling = false
			n.quiet.Reset(tellerIdle)
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		n.count(batch)
		s.mu.Lock()
		for i := range batch {
			b := &batch[i]
			if b.err == nil {
				b.tally.arrived(b.total)
			} else {
				s.dropped += size(b.change)
				b.tally.sent = 0
			}
			n.drop(b.tally)
		}
		s.mu.Unlock()
		clear(batch)
	}
}

// takeDue moves counters from the queue into a batch, with what they are owed as sent; none: no use.
func (n *node) takeDue(batch []telling) []telling {
	if n.breaker.IsOpen() || n.store.ctx.Err() != nil {
		return batch
	}
	taken := 0
	for _, t := range n.due {
		if len(batch) == maxTold {
			break
		}
		taken++
		n.store.waiting--
		t.queued = false
		if t.sent, t.owed = t.owed, 0; t.sent == 0 {
			n.drop(t) // hits and refunds have cancelled out
			continue
		}
		batch = append(batch, telling{tally: t, change: t.sent, ends: t.ends})
	}
	rest := copy(n.due, n.due[taken:])
	clear(n.due[rest:])
	n.due = n.due[:rest]
	return batch
}

// count adds the changes to their counters: all that exist in one round trip, and those that do not in
// a second, which makes them.
func (n *node) count(batch []telling) {
	st := &n.store.stats
	for range tellRounds {
		n.exchange(batch, func(t *telling, r reply) {
			switch {
			case r.err != nil:
				st.Increment.Error.Add(1)
				t.finish(0, r.err)
			case r.missing:
				st.Increment.Miss.Add(1)
				if _, alive := memcacheExpiry(t.ends, time.Now().Unix()); t.change < 0 || !alive {
					t.finish(0, nil) // nothing to give back; or the window is over
					return
				}
				t.add = true
			default:
				st.Increment.Success.Add(1)
				t.finish(r.total, nil)
			}
		})
		n.exchange(batch, func(t *telling, r reply) {
			switch {
			case r.err != nil:
				st.Add.Error.Add(1)
				t.finish(0, r.err)
			case r.missing:
				st.Add.NotStored.Add(1) // another process was first
				t.add = false
			default:
				st.Add.Success.Add(1)
				t.finish(t.change, nil)
			}
		})
	}
	for i := range batch {
		if !batch[i].done {
			batch[i].finish(0, errors.New("a counter came and went"))
		}
	}
}

// exchange sends a command for each counter of the batch that is not done, and hands out the replies. It
// does nothing when there is none to send. A link that breaks is the reply to all that had none before.
func (n *node) exchange(batch []telling, got func(*telling, reply)) {
	open := n.open[:0]
	for i := range batch {
		if !batch[i].done {
			open = append(open, &batch[i])
		}
	}
	n.open = open
	if len(open) == 0 {
		return
	}
	answered := 0
	hand := func(r reply) {
		if r.fault {
			n.failed(r.err)
		}
		got(open[answered], r)
		answered++
	}
	rested := n.link != nil
	err := n.send(open, hand)
	if err != nil && rested && answered == 0 && closedByPeer(err) {
		err = n.send(open, hand) // it had been closed while it rested
	}
	if err == nil {
		return
	}
	n.failed(err)
	for answered < len(open) {
		hand(reply{err: fmt.Errorf("%w: %w", counter.ErrUnavailable, err)})
	}
}

// send does so over the teller's connection, which it opens if there is none, and closes on an error.
func (n *node) send(open []*telling, hand func(reply)) (err error) {
	if n.link == nil {
		conn, err := n.dial(n.store.ctx, n.addr.network, n.addr.text)
		if err != nil {
			return err
		}
		n.link = newMemcacheLink(conn)
	}
	defer func() {
		if err != nil {
			n.hangUp()
		}
	}()
	now := time.Now()
	n.link.begin(now.Add(n.store.o.Timeout))
	for _, t := range open {
		if t.add {
			expiry, _ := memcacheExpiry(max(t.ends, now.Unix()+1), now.Unix())
			n.link.add(t.tally.key, t.change, expiry)
		} else {
			n.link.shift(t.tally.key, t.change)
		}
	}
	if err := n.link.flush(); err != nil {
		return err
	}
	for range open {
		r, err := n.link.reply()
		if err != nil {
			return err
		}
		hand(r)
	}
	return nil
}

// hangUp closes the teller's connection. Only the teller calls it, or who knows that there is none.
func (n *node) hangUp() {
	if n.link != nil {
		n.link.conn.Close()
		n.link = nil
	}
}

// hangUpIdle closes it when nobody is telling.
func (n *node) hangUpIdle() {
	n.store.mu.Lock()
	var idle *memcacheLink
	if !n.telling {
		idle, n.link = n.link, nil
	}
	n.store.mu.Unlock()
	if idle != nil {
		idle.conn.Close() // may say goodbye first, which takes time under TLS
	}
}

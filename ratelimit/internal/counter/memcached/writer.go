package memcached

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"gatehouse/ratelimit/internal/counter"
)

const (
	// maxIncrs bounds how many changes are sent to a node in one write.
	maxIncrs = 256
	// writerIdle is how long the writer's connection stays open when there is nothing to write.
	writerIdle = 10 * time.Second
	// incrRounds is how often the writer tries to increment a counter or else to create it. Another process may delete
	// or create the counter between the two commands.
	incrRounds = 3
)

// queue puts a local count that has a pending change into the queue, and starts the writer if necessary.
func (n *node) queue(t *localCount) {
	t.queued = true
	n.due = append(n.due, t)
	n.startWriter()
}

// startWriter starts the writer, unless it is running, or the node is lost, or the store is closed.
func (n *node) startWriter() {
	if !n.writing && len(n.due) > 0 && !n.breaker.IsOpen() && n.store.ctx.Err() == nil {
		n.writing = true
		n.store.wg.Go(n.write)
	}
}

// pendingIncr is a change of one counter while it is sent to a node, and the outcome.
type pendingIncr struct {
	count        *localCount
	change, ends int64
	// add says that the counter does not exist; it is then created with the change as its value.
	add bool
	// resets has the calls of Reset that wait for the counter to be deleted, after the change was written.
	resets []chan<- error
	remove bool // the counter is to be deleted now
	done   bool
	total  int64
	err    error
}

func (t *pendingIncr) finish(total int64, err error) { t.done, t.total, t.err = true, total, err }

// write is the writer of a node: it sends the pending changes until there are none. All changes that wait are sent in
// one write. Changes that are added during a write are sent by the next. A node has only one writer at a time, so that
// the changes of a counter are carried out in order.
func (n *node) write() {
	s := n.store
	for {
		// Let goroutines that are ready to run queue their hits first, so that these join this batch. pipeline.take in
		// package redis does the same.
		runtime.Gosched()
		runtime.Gosched()
		s.mu.Lock()
		n.batch = n.takeDue(n.batch[:0])
		batch := n.batch
		if len(batch) == 0 {
			n.writing = false
			n.quiet.Reset(writerIdle)
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		n.increment(batch)
		n.delete(batch)
		s.mu.Lock()
		for i := range batch {
			b := &batch[i]
			switch {
			case b.err != nil:
				s.dropped += hitsOf(b.change)
				b.count.sent = 0
			case b.resets != nil:
				b.count.deleted()
			default:
				b.count.arrived(b.total)
			}
			for _, r := range b.resets {
				r <- b.err
			}
			n.drop(b.count)
		}
		s.mu.Unlock()
		clear(batch)
	}
}

// takeDue moves local counts from the queue into batch, and marks their pending changes as sent. It moves none if the
// node is lost or the store is closed.
func (n *node) takeDue(batch []pendingIncr) []pendingIncr {
	if n.breaker.IsOpen() || n.store.ctx.Err() != nil {
		return batch
	}
	taken := 0
	for _, t := range n.due {
		if len(batch) == maxIncrs {
			break
		}
		taken++
		n.store.waiting--
		t.queued = false
		if t.sent, t.pending = t.pending, 0; t.sent == 0 && t.resets == nil {
			n.drop(t) // hits and refunds have canceled each other out
			continue
		}
		batch = append(batch, pendingIncr{count: t, change: t.sent, ends: t.ends, resets: t.resets, done: t.sent == 0})
		t.resets = nil
	}
	rest := copy(n.due, n.due[taken:])
	clear(n.due[rest:])
	n.due = n.due[:rest]
	return batch
}

// increment carries out the changes of a batch. One round trip increments all counters that exist; a second one creates
// the others.
func (n *node) increment(batch []pendingIncr) {
	st := &n.store.stats
	for range incrRounds {
		n.exchange(batch, func(t *pendingIncr, r reply) {
			switch {
			case r.err != nil:
				st.Increment.Error.Add(1)
				t.finish(0, r.err)
			case r.missing:
				st.Increment.Miss.Add(1)
				if _, alive := expiryOf(t.ends, time.Now().Unix()); t.change < 0 || !alive {
					t.finish(0, nil) // there is nothing to give back, or the window has ended
					return
				}
				t.add = true
			default:
				st.Increment.Success.Add(1)
				t.finish(r.total, nil)
			}
		})
		n.exchange(batch, func(t *pendingIncr, r reply) {
			switch {
			case r.err != nil:
				st.Add.Error.Add(1)
				t.finish(0, r.err)
			case r.missing:
				st.Add.NotStored.Add(1) // another process has created the counter meanwhile
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

// delete deletes the counters for which Reset was called, if there are any, in one more round trip.
func (n *node) delete(batch []pendingIncr) {
	resets := false
	for i := range batch {
		b := &batch[i]
		if b.remove = b.resets != nil && b.err == nil; b.remove {
			b.change = 0 // the change is written, and does not count as dropped if deleting fails
		}
		b.done = !b.remove
		resets = resets || b.remove
	}
	if resets {
		n.exchange(batch, func(t *pendingIncr, r reply) { t.finish(0, r.err) })
	}
}

// exchange sends a command for each change of the batch that is not done, and calls the function got with each change
// and its reply. If all changes are done, it sends nothing. If the connection fails, the changes without a reply get
// the connection's error.
func (n *node) exchange(batch []pendingIncr, got func(*pendingIncr, reply)) {
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
		err = n.send(open, hand) // the node had closed the connection while it was idle
	}
	if err == nil {
		return
	}
	n.failed(err)
	for answered < len(open) {
		hand(reply{err: fmt.Errorf("%w: %w", counter.ErrUnavailable, err)})
	}
}

// send sends the commands of the changes in open over the writer's connection, and calls the function hand with each
// reply. It opens a connection if there is none, and closes it if an error occurs.
func (n *node) send(open []*pendingIncr, hand func(reply)) (err error) {
	if n.link != nil && !n.link.inStep() {
		n.hangUp()
	}
	if n.link == nil {
		if n.link, err = n.dial(); err != nil {
			return err
		}
	}
	defer func() {
		if err != nil {
			n.hangUp()
		}
	}()
	now := time.Now()
	n.link.begin(now.Add(n.store.o.Settings.Timeout))
	for _, t := range open {
		if t.remove {
			n.link.remove(t.count.key)
		} else if t.add {
			expiry, _ := expiryOf(max(t.ends, now.Unix()+1), now.Unix())
			n.link.add(t.count.key, t.change, expiry)
		} else {
			n.link.shift(t.count.key, t.change)
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

// hangUp closes the writer's connection. It is called by the writer, or by a goroutine that knows that no writer is
// running.
func (n *node) hangUp() {
	if n.link != nil {
		n.link.conn.Close()
		n.link = nil
	}
}

// hangUpIdle closes the writer's connection unless the writer is running.
func (n *node) hangUpIdle() {
	n.store.mu.Lock()
	var idle *connection
	if !n.writing {
		idle, n.link = n.link, nil
	}
	n.store.mu.Unlock()
	if idle != nil {
		idle.conn.Close() // not under the lock, since closing a TLS connection may send a message first
	}
}

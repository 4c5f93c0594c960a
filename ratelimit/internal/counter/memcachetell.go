package counter

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

// queue puts a counter with something owed into the queue and sees to it that somebody tells.
func (n *node) queue(t *tally) {
	t.queued = true
	n.due = append(n.due, t)
	n.tellAll()
}

// tellAll starts a teller if one more is of use.
func (n *node) tellAll() {
	if n.tellers < maxTellers && n.tellers < len(n.due) && !n.breaker.open.Load() && n.store.ctx.Err() == nil {
		n.tellers++
		n.store.wg.Go(n.tell)
	}
}

// tell tells the node of what is owed until nothing is.
func (n *node) tell() {
	s := n.store
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { n.tellers-- }()
	for {
		t := n.nextDue()
		if t == nil {
			n.quiet.Reset(tellerIdle)
			return
		}
		change, ends := t.sent, t.ends
		s.mu.Unlock()
		total, err := n.count(t.key, change, ends)
		if err != nil && nodeFault(err) {
			n.failed(err)
		}
		s.mu.Lock()
		if err == nil {
			t.arrived(total)
		} else {
			s.dropped += size(change)
			t.sent = 0
		}
		n.drop(t)
	}
}

// nextDue takes the next counter out of the queue, with what it is owed as sent; nil: none, or no use.
func (n *node) nextDue() *tally {
	if n.breaker.open.Load() || n.store.ctx.Err() != nil {
		return nil
	}
	for i, t := range n.due {
		if t.sent != 0 {
			continue // somebody is telling of it: one after the other, or an answer could not be understood
		}
		copy(n.due[1:i+1], n.due[:i])
		n.due[0], n.due = nil, n.due[1:]
		n.store.waiting--
		t.queued = false
		if t.sent, t.owed = t.owed, 0; t.sent == 0 {
			n.drop(t)
			return n.nextDue() // hits and refunds have cancelled out
		}
		return t
	}
	return nil
}

// count adds the change to a counter and returns its total.
func (n *node) count(key string, change, ends int64) (total int64, err error) {
	st := &n.store.stats
	for range 3 {
		var after uint64
		err = again(n.teller, func() error {
			if change < 0 {
				after, err = n.teller.Decrement(key, size(change))
			} else {
				after, err = n.teller.Increment(key, uint64(change))
			}
			return err
		})
		switch {
		case err == nil:
			st.Increment.Success.Add(1)
			return int64(min(after, math.MaxInt64)), nil
		case !errors.Is(err, memcache.ErrCacheMiss):
			st.Increment.Error.Add(1)
			return 0, err
		}
		st.Increment.Miss.Add(1)
		expiry, alive := memcacheExpiry(ends, time.Now().Unix())
		if change < 0 || !alive {
			return 0, nil // nothing to give back; or the window is over
		}
		item := &memcache.Item{Key: key, Value: strconv.AppendInt(nil, change, 10), Expiration: expiry}
		switch err = again(n.teller, func() error { return n.teller.Add(item) }); {
		case err == nil:
			st.Add.Success.Add(1)
			return change, nil
		case !errors.Is(err, memcache.ErrNotStored):
			st.Add.Error.Add(1)
			return 0, err
		}
		st.Add.NotStored.Add(1) // another process was first
	}
	return 0, fmt.Errorf("a counter came and went: %w", err)
}

// nodeFault says whether an error of an increment is the node's and not the counter's.
func nodeFault(err error) bool {
	return !errors.Is(err, memcache.ErrNotStored) && !strings.Contains(err.Error(), "client error")
}

package memcached

import (
	"runtime"
	"slices"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

// maxLookupKeys bounds how many keys one command looks up.
const maxLookupKeys = 256

// lookup is the part of a call that one node answers: the counters that the call reads from the node.
type lookup struct {
	call   *call
	node   *node
	counts []*localCount // the counters to read, each once
	shrunk []uint32      // the value of localCount.shrunk, for each of counts, when the lookup was sent
	seen   []int64       // the total of each of counts, or noNumber; empty until the node has answered
	done   bool
	err    error
}

// add adds a counter to the lookup and pins the counter, so that it stays in node.counts.
func (l *lookup) add(t *localCount) {
	if slices.Contains(l.counts, t) {
		return
	}
	t.pins++
	l.counts = append(l.counts, t)
}

// release unpins the counters.
func (l *lookup) release() {
	for _, t := range l.counts {
		t.pins--
		l.node.drop(t)
	}
}

// finish records the outcome. It wakes the caller if this was the last of the call's lookups to finish.
func (l *lookup) finish(err error) {
	if l.done {
		return
	}
	l.done, l.err = true, err
	delete(l.node.out, l)
	a := l.call
	if a.open--; a.left {
		l.release()
	} else if a.open == 0 {
		a.ready <- struct{}{}
	}
}

// enqueue puts a lookup into the node's queue, and starts a worker if fewer than MaxIdleConns are running.
func (n *node) enqueue(l *lookup) {
	n.lookups = append(n.lookups, l)
	if n.workers < n.store.o.Settings.MaxIdleConns {
		n.workers++
		n.store.wg.Go(n.work)
	}
}

// forget removes a lookup from the queue, since its caller has stopped waiting. A lookup that has been sent is left to
// the worker that waits for its answer.
func (n *node) forget(l *lookup) {
	if i := slices.Index(n.lookups, l); i >= 0 {
		n.lookups = slices.Delete(n.lookups, i, i+1)
		l.finish(counter.ErrTimeout)
	}
}

// work is a worker: it sends the queued lookups and reads the answers, until the queue is empty.
func (n *node) work() {
	s := n.store
	var batch getBatch
	watch := link.StallWatch{After: s.o.Stall, Stalled: n.stalled}
	for {
		// Let goroutines that are ready to run queue their lookups first, so that these join this batch. pipeline.take
		// in package redis does the same.
		runtime.Gosched()
		runtime.Gosched()
		s.mu.Lock()
		if n.takeLookups(&batch); len(batch.lookups) == 0 {
			n.workers--
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()

		if s.o.Stall > 0 {
			watch.Start()
		}
		err := n.get(&batch)
		if s.o.Stall > 0 {
			watch.Stop()
		}
		if err == nil {
			n.breaker.Answered()
		} else {
			n.failed(err)
			err = link.Failure(err)
		}
		s.mu.Lock()
		for _, l := range batch.lookups {
			if err == nil {
				l.read(&batch)
			}
			l.finish(err)
		}
		s.mu.Unlock()
		batch.reset()
	}
}

// getBatch is one command that looks up the keys of many calls' lookups.
type getBatch struct {
	lookups []*lookup
	keys    []string // each once, even if many calls read it
	totals  []int64  // of each of keys, as connection.get sets them
	index   map[string]int
}

func (b *getBatch) reset() {
	clear(b.lookups)
	clear(b.keys)
	clear(b.index)
	b.lookups, b.keys, b.totals = b.lookups[:0], b.keys[:0], b.totals[:0]
}

// add adds a key unless the batch has it. The index of the keys is made only with the second key, since most batches of
// a service with little load have one.
func (b *getBatch) add(key string) {
	if len(b.keys) > 0 {
		if b.index == nil {
			b.index = map[string]int{}
		}
		if len(b.index) == 0 {
			b.index[b.keys[0]] = 0
		}
		if _, twice := b.index[key]; twice {
			return
		}
		b.index[key] = len(b.keys)
	}
	b.keys = append(b.keys, key)
	b.totals = append(b.totals, unseen)
}

func (b *getBatch) total(key string) int64 {
	if len(b.keys) == 1 {
		return b.totals[0]
	}
	return b.totals[b.index[key]]
}

// takeLookups moves lookups from the queue into an empty batch: all of them, or as many as maxLookupKeys allows.
func (n *node) takeLookups(b *getBatch) {
	asked := 0 // counts a key once for each lookup that has it
	for _, l := range n.lookups {
		if len(b.lookups) > 0 && asked+len(l.counts) > maxLookupKeys {
			break
		}
		asked += len(l.counts)
		for _, t := range l.counts {
			l.shrunk = append(l.shrunk, t.shrunk)
			b.add(t.key)
		}
		n.out[l] = struct{}{}
		b.lookups = append(b.lookups, l)
	}
	rest := copy(n.lookups, n.lookups[len(b.lookups):])
	clear(n.lookups[rest:])
	n.lookups = n.lookups[:rest]
}

// read copies the totals of the lookup's counters from the batch.
func (l *lookup) read(b *getBatch) {
	if l.done {
		return
	}
	for _, t := range l.counts {
		l.seen = append(l.seen, b.total(t.key))
	}
}

func (n *node) get(b *getBatch) error {
	st := &n.store.stats
	st.KeysRequested.Add(uint64(len(b.keys)))
	found := 0
	err := n.withConn(func(c *connection) (err error) {
		found, err = c.get(b.keys, b.totals)
		return err
	})
	if err != nil {
		st.Multiget.Error.Add(1)
		return err
	}
	st.Multiget.Success.Add(1)
	st.KeysFound.Add(uint64(found))
	return nil
}

package memcached

import (
	"runtime"
	"slices"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

// maxLookupKeys bounds the keys of one lookup command.
const maxLookupKeys = 256

// lookup is the counters of one node that one call reads.
type lookup struct {
	call   *call
	node   *node
	counts []*localCount // all different
	shrunk []uint32      // shrunk of each local count when the lookup was sent
	seen   []int64       // the totals; -1: no number
	done   bool
	err    error
}

// add pins a counter that the call reads.
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

// finish notes the outcome, and wakes the caller after its last lookup.
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

// enqueue puts a lookup into the queue and ensures that a worker takes it.
func (n *node) enqueue(l *lookup) {
	n.lookups = append(n.lookups, l)
	if n.workers < n.store.o.Settings.MaxIdleConns {
		n.workers++
		n.store.wg.Go(n.work)
	}
}

// forget removes a lookup from the queue after its caller has left; a lookup that was sent ends by itself.
func (n *node) forget(l *lookup) {
	if i := slices.Index(n.lookups, l); i >= 0 {
		n.lookups = slices.Delete(n.lookups, i, i+1)
		l.finish(counter.ErrTimeout)
	}
}

// work sends the queued lookups until the queue is empty.
func (n *node) work() {
	s := n.store
	var batch getBatch
	watch := link.StallWatch{After: s.o.Stall, Stalled: n.stalled}
	for {
		// Let ready goroutines run first, so that their lookups join this batch, as pipeline.take in package redis
		// does.
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

// getBatch is one get command to a node, with the keys of many calls' lookups and their totals.
type getBatch struct {
	lookups []*lookup
	keys    []string // each once, since many calls read a hot key
	totals  []int64  // of the keys; see connection.get
	index   map[string]int
}

func (b *getBatch) reset() {
	clear(b.lookups)
	clear(b.keys)
	clear(b.index)
	b.lookups, b.keys, b.totals = b.lookups[:0], b.keys[:0], b.totals[:0]
}

// add adds a key. The index is made with the second key: most batches of a quiet service have one.
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

// takeLookups moves lookups from the queue into an empty batch, with the keys to read.
func (n *node) takeLookups(b *getBatch) {
	asked := 0 // counts a key once for each call that reads it
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

// read copies the lookup's totals from the batch.
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

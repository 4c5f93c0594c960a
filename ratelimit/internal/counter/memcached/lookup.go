package memcached

import (
	"runtime"

	"github.com/bradfitz/gomemcache/memcache"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

// maxLookupKeys bounds one lookup.
const maxLookupKeys = 256

// lookup is what one call wants to know of one node.
type lookup struct {
	call   *call
	node   *node
	counts []*localCount // each once
	shrunk []uint32      // theirs when the lookup was sent
	seen   []int64       // the answers; -1: no number
	done   bool
	err    error
}

// add pins a counter that the call asks for.
func (l *lookup) add(t *localCount) {
	for _, have := range l.counts {
		if have == t {
			return
		}
	}
	t.pins++
	l.counts = append(l.counts, t)
}

// release lets go of the counters.
func (l *lookup) release() {
	for _, t := range l.counts {
		t.pins--
		l.node.drop(t)
	}
}

// finish notes the outcome and wakes the caller when it was the last.
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

// enqueue puts a lookup into the queue and sees to it that a worker takes it.
func (n *node) enqueue(l *lookup) {
	n.lookups = append(n.lookups, l)
	if n.workers < n.store.o.MaxIdleConns {
		n.workers++
		n.store.wg.Go(n.work)
	}
}

// forget takes a lookup whose caller has gone out of the queue; one that is under way ends by itself.
func (n *node) forget(l *lookup) {
	for i, have := range n.lookups {
		if have == l {
			n.lookups = append(n.lookups[:i], n.lookups[i+1:]...)
			l.finish(counter.ErrTimeout)
			return
		}
	}
}

// work asks for what waits until nothing does.
func (n *node) work() {
	s := n.store
	var batch []*lookup
	var keys []string
	watch := link.StallWatch{After: s.o.Stall, Stalled: n.stalled}
	for {
		// Whoever is ready to run goes first, so that their lookups come along; as pipeline.take.
		runtime.Gosched()
		runtime.Gosched()
		s.mu.Lock()
		if batch, keys = n.takeLookups(batch[:0], keys[:0]); len(batch) == 0 {
			n.workers--
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()

		if s.o.Stall > 0 {
			watch.Start()
		}
		items, err := n.get(keys)
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
		for _, l := range batch {
			if err == nil {
				l.read(items)
			}
			l.finish(err)
		}
		s.mu.Unlock()
		clear(batch)
	}
}

// takeLookups moves lookups from the queue into a batch, with the keys to ask for.
func (n *node) takeLookups(batch []*lookup, keys []string) ([]*lookup, []string) {
	taken := 0
	for _, l := range n.lookups {
		if taken > 0 && len(keys)+len(l.counts) > maxLookupKeys {
			break
		}
		taken++
		for _, t := range l.counts {
			l.shrunk = append(l.shrunk, t.shrunk)
			keys = append(keys, t.key)
		}
		n.out[l] = struct{}{}
		batch = append(batch, l)
	}
	rest := copy(n.lookups, n.lookups[taken:])
	clear(n.lookups[rest:])
	n.lookups = n.lookups[:rest]
	return batch, unique(keys)
}

// unique drops keys that stand there twice: many calls ask for a hot one.
func unique(keys []string) []string {
	if len(keys) < 2 {
		return keys
	}
	seen := make(map[string]struct{}, len(keys))
	kept := keys[:0]
	for _, k := range keys {
		if _, twice := seen[k]; !twice {
			seen[k] = struct{}{}
			kept = append(kept, k)
		}
	}
	return kept
}

// read takes the answers out of a lookup.
func (l *lookup) read(items map[string]*memcache.Item) {
	if l.done {
		return
	}
	for _, t := range l.counts {
		seen := int64(0)
		if item := items[t.key]; item != nil {
			var err error
			if seen, err = parseTotal(item.Value); err != nil {
				seen = -1
			}
		}
		l.seen = append(l.seen, seen)
	}
}

func (n *node) get(keys []string) (items map[string]*memcache.Item, err error) {
	st := &n.store.stats
	st.KeysRequested.Add(uint64(len(keys)))
	err = again(n.client, func() error {
		items, err = n.client.GetMulti(keys)
		return err
	})
	if err != nil {
		st.Multiget.Error.Add(1)
		return nil, err
	}
	st.Multiget.Success.Add(1)
	st.KeysFound.Add(uint64(len(items)))
	return items, nil
}

package memcached

import (
	"runtime"

	"github.com/bradfitz/gomemcache/memcache"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

// maxLookKeys bounds one look-up.
const maxLookKeys = 256

// look is what one call wants to know of one node.
type look struct {
	asking  *asking
	node    *node
	tallies []*tally // each once
	shrunk  []uint32 // theirs when the look was sent
	seen    []int64  // the answers; -1: no number
	done    bool
	err     error
}

// add pins a counter that the call asks for.
func (l *look) add(t *tally) {
	for _, have := range l.tallies {
		if have == t {
			return
		}
	}
	t.pins++
	l.tallies = append(l.tallies, t)
}

// release lets go of the counters.
func (l *look) release() {
	for _, t := range l.tallies {
		t.pins--
		l.node.drop(t)
	}
}

// finish notes the outcome and wakes the caller when it was the last.
func (l *look) finish(err error) {
	if l.done {
		return
	}
	l.done, l.err = true, err
	delete(l.node.out, l)
	a := l.asking
	if a.open--; a.left {
		l.release()
	} else if a.open == 0 {
		a.ready <- struct{}{}
	}
}

// enqueue puts a look into the queue and sees to it that somebody takes it.
func (n *node) enqueue(l *look) {
	n.looks = append(n.looks, l)
	if n.lookers < n.store.o.MaxIdleConns {
		n.lookers++
		n.store.wg.Go(n.lookOut)
	}
}

// forget takes a look whose caller has gone out of the queue; one that is under way ends by itself.
func (n *node) forget(l *look) {
	for i, have := range n.looks {
		if have == l {
			n.looks = append(n.looks[:i], n.looks[i+1:]...)
			l.finish(counter.ErrTimeout)
			return
		}
	}
}

// lookOut asks for what waits until nothing does.
func (n *node) lookOut() {
	s := n.store
	var batch []*look
	var keys []string
	watch := link.StallWatch{After: s.o.Stall, Stalled: n.stalled}
	for {
		// Whoever is ready to run goes first, so that their looks come along; as pipeline.take.
		runtime.Gosched()
		runtime.Gosched()
		s.mu.Lock()
		if batch, keys = n.takeLooks(batch[:0], keys[:0]); len(batch) == 0 {
			n.lookers--
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

// takeLooks moves looks from the queue into a batch, with the keys to ask for.
func (n *node) takeLooks(batch []*look, keys []string) ([]*look, []string) {
	taken := 0
	for _, l := range n.looks {
		if taken > 0 && len(keys)+len(l.tallies) > maxLookKeys {
			break
		}
		taken++
		for _, t := range l.tallies {
			l.shrunk = append(l.shrunk, t.shrunk)
			keys = append(keys, t.key)
		}
		n.out[l] = struct{}{}
		batch = append(batch, l)
	}
	rest := copy(n.looks, n.looks[taken:])
	clear(n.looks[rest:])
	n.looks = n.looks[:rest]
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

// read takes the answers out of a look-up.
func (l *look) read(items map[string]*memcache.Item) {
	if l.done {
		return
	}
	for _, t := range l.tallies {
		seen := int64(0)
		if item := items[t.key]; item != nil {
			var err error
			if seen, err = memcacheTotal(item.Value); err != nil {
				seen = -1
			}
		}
		l.seen = append(l.seen, seen)
	}
}

func (n *node) get(keys []string) (items map[string]*memcache.Item, err error) {
	st := &n.store.stats
	st.KeysRequested.Add(uint64(len(keys)))
	err = again(n.looker, func() error {
		items, err = n.looker.GetMulti(keys)
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

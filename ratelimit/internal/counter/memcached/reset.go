package memcached

import (
	"cmp"
	"context"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

// Reset implements Store. The counter is deleted after its pending change is written, so that no earlier hit makes it
// again. Other processes may write their pending changes afterwards.
func (s *Store) Reset(ctx context.Context, h *counter.Hit) error {
	key, err := storedKey(h.Key, s.o.HashKeys)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	if err := s.queueReset(key, done); err != nil {
		return err
	}
	outcome, err := link.Await(ctx, done, s.o.Settings.Timeout)
	return cmp.Or(err, outcome)
}

func (s *Store) queueReset(key string, done chan<- error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return link.ErrClosed
	}
	n := s.ring.Load().pick(key)
	if n.breaker.IsOpen() {
		return counter.ErrOpen
	}
	t := n.count(key)
	t.resets = append(t.resets, done)
	if !t.queued {
		s.waiting++
		n.queue(t)
	}
	return nil
}

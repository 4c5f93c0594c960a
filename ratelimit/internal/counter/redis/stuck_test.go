package redis

import (
	"errors"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/shared/await"
)

// stuckLink never comes back from a batch until it is released, whatever is dropped.
type stuckLink struct {
	stubLink
	release chan struct{}
}

func (l *stuckLink) send(*batch) error {
	<-l.release
	return errors.New("released")
}

// A batch that hangs for ever in the client library costs its own hits only: another connection takes over, and the
// store closes all the same.
func TestStuckPipeline(t *testing.T) {
	release := make(chan struct{})
	s := newServer(Options{Settings: Settings{PoolSize: 1, Timeout: 50 * time.Millisecond}, Stall: -1, OnEmpty: Wait})
	s.newLink = func(time.Duration) connection { return new(stubLink) }
	s.run(&stuckLink{release: release})
	err := s.Add(t.Context(), &counter.Request{Hits: []counter.Hit{h("key", 1)}, Now: now()})
	if !errors.Is(err, counter.ErrTimeout) {
		t.Errorf("a hit that hangs: %v, want %v", err, counter.ErrTimeout)
	}
	await.True(t, "another connection counts", func() bool {
		return s.Add(t.Context(), &counter.Request{Hits: []counter.Hit{h("key", 1)}, Now: now()}) == nil
	})
	begun := time.Now()
	s.Close()
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("Close took %v", took)
	}
	close(release) // the one that was replaced ends
	s.wg.Wait()
}

package redis

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

// connecting is a store that is connected in the background. Until it has answered, hits are refused as
// those behind an open breaker are: at once, and nothing is sent.
type connecting struct {
	kv   atomic.Pointer[Store] // nil until the store has answered
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// Connect returns a store that need not be there yet. It tries to reach it in the background for as
// long as it is not closed, with the pauses that Open makes. The error is one of the options alone.
func Connect(o Options) (Store, error) {
	if err := o.Settings.Check(); err != nil {
		return nil, err
	}
	if WantsTLS(o.Settings.URL) && o.TLS == nil {
		return nil, errNeedsTLS
	}
	o = o.withDefaults()
	o.Start.MaxElapsed = 0
	ctx, stop := context.WithCancel(context.Background())
	c := &connecting{stop: stop}
	c.wg.Go(func() { c.connect(ctx, o) })
	return c, nil
}

func (c *connecting) connect(ctx context.Context, o Options) {
	begun := time.Now()
	kv, err := Open(ctx, o)
	switch {
	case errors.Is(err, context.Canceled):
		return
	case err != nil: // the options were checked, and the tries have no end
		o.Log.Error("the key-value store is given up; the failure mode answers", "error", err)
		return
	}
	level := slog.LevelInfo
	if time.Since(begun) >= o.Start.Initial { // a try has failed, and a warning said so
		level = slog.LevelWarn
	}
	o.Log.Log(ctx, level, "the key-value store answers", "after", time.Since(begun).Round(time.Millisecond))
	c.kv.Store(&kv)
}

// Add implements Store.
func (c *connecting) Add(ctx context.Context, req *counter.Request) error {
	kv := c.kv.Load()
	switch {
	case kv != nil:
		return (*kv).Add(ctx, req)
	case len(req.Hits) == 0:
		return nil
	}
	return counter.ErrOpen
}

// Peek implements Store.
func (c *connecting) Peek(ctx context.Context, h *counter.Hit) error {
	if kv := c.kv.Load(); kv != nil {
		return (*kv).Peek(ctx, h)
	}
	return counter.ErrOpen
}

// Reset implements Store.
func (c *connecting) Reset(ctx context.Context, h *counter.Hit) error {
	if kv := c.kv.Load(); kv != nil {
		return (*kv).Reset(ctx, h)
	}
	return counter.ErrOpen
}

// Close implements Store.
func (c *connecting) Close() {
	c.stop()
	link.Wait(&c.wg)
	if kv := c.kv.Load(); kv != nil {
		(*kv).Close()
	}
}

// ActiveConns is 0 until the store has answered, as are the other metrics.
func (c *connecting) ActiveConns() int64 { return c.figure(Store.ActiveConns) }

// TotalConns implements Store.
func (c *connecting) TotalConns() int64 { return c.figure(Store.TotalConns) }

// LocalCloses implements Store.
func (c *connecting) LocalCloses() int64 { return c.figure(Store.LocalCloses) }

func (c *connecting) figure(of func(Store) int64) int64 {
	if kv := c.kv.Load(); kv != nil {
		return of(*kv)
	}
	return 0
}

// Open reports true until the store has answered.
func (c *connecting) Open() bool {
	kv := c.kv.Load()
	return kv == nil || (*kv).Open()
}

// Flapping implements Store.
func (c *connecting) Flapping() bool {
	kv := c.kv.Load()
	return kv != nil && (*kv).Flapping()
}

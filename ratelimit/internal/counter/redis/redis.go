// Package redis is a counter.Store that counts hits in Redis or a compatible server. It supports a single server, the
// master that sentinels name, and a cluster.
package redis

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

// Store is the store that Open returns, of any type.
type Store interface {
	counter.Store
	// ActiveConns returns the number of connections that are open now (cx_active), TotalConns the number of connections
	// that were ever opened (cx_total), and LocalCloses the number that this process has closed (cx_local_close).
	ActiveConns() int64
	TotalConns() int64
	LocalCloses() int64
	// Open reports whether a breaker is open, so that hits are refused without a call to the server.
	Open() bool
	// Flapping reports whether a breaker has opened more than link.Flaps times within a minute.
	Flapping() bool
}

// Open connects to a store of the type in the settings. It tries again, with exponential backoff, until the store
// answers, ctx ends, or Start.MaxElapsed is over.
func Open(ctx context.Context, o Options) (kv Store, err error) {
	switch strings.ToLower(o.Settings.Type) {
	case Sentinel:
		kv, err = newSentinel(ctx, o)
	case InCluster:
		kv, err = NewCluster(ctx, o)
	default:
		kv, err = NewServer(ctx, o)
	}
	if err != nil {
		return nil, err
	}
	return kv, nil
}

// connecting is a store to which a goroutine connects in the background.
type connecting struct {
	kv   atomic.Pointer[Store] // an unreached until the store has answered
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// unreached stands for a store that has not been reached yet. It refuses hits as an open breaker does: at once, without
// sending anything. It reports no connections, since connections over which the store has not answered do not count.
type unreached struct{ link.PoolStats }

// Add implements Store.
func (*unreached) Add(_ context.Context, req *counter.Request) error {
	if len(req.Hits) == 0 {
		return nil
	}
	return counter.ErrOpen
}

// Peek implements Store.
func (*unreached) Peek(context.Context, *counter.Hit) error { return counter.ErrOpen }

// Reset implements Store.
func (*unreached) Reset(context.Context, *counter.Hit) error { return counter.ErrOpen }

// Close implements Store.
func (*unreached) Close() {}

// Open implements Store.
func (*unreached) Open() bool { return true }

// Flapping implements Store.
func (*unreached) Flapping() bool { return false }

// Connect returns a store that need not be running yet. It connects in the background, and tries again, with the pauses
// of Open, until it succeeds or the store is closed. An error concerns only the options.
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
	c.kv.Store(new(Store(&unreached{})))
	c.wg.Go(func() { c.connect(ctx, o) })
	return c, nil
}

func (c *connecting) connect(ctx context.Context, o Options) {
	begun := time.Now()
	kv, err := Open(ctx, o)
	if err != nil {
		if ctx.Err() == nil { // otherwise the store was closed
			o.Log.Error("the key-value store will not be connected", "error", err)
		}
		return
	}
	level := slog.LevelInfo
	if time.Since(begun) >= o.Start.Initial { // at least one try has failed, and was logged as a warning
		level = slog.LevelWarn
	}
	o.Log.Log(ctx, level, "the key-value store answers", "after", time.Since(begun).Round(time.Millisecond))
	c.kv.Store(&kv)
}

// present returns the store, or an unreached if the store has not answered yet.
func (c *connecting) present() Store { return *c.kv.Load() }

// Add implements Store.
func (c *connecting) Add(ctx context.Context, req *counter.Request) error {
	return c.present().Add(ctx, req)
}

// Peek implements Store.
func (c *connecting) Peek(ctx context.Context, h *counter.Hit) error { return c.present().Peek(ctx, h) }

// Reset implements Store.
func (c *connecting) Reset(ctx context.Context, h *counter.Hit) error {
	return c.present().Reset(ctx, h)
}

// Close implements Store.
func (c *connecting) Close() {
	c.stop()
	link.Wait(&c.wg)
	c.present().Close()
}

// ActiveConns implements Store.
func (c *connecting) ActiveConns() int64 { return c.present().ActiveConns() }

// TotalConns implements Store.
func (c *connecting) TotalConns() int64 { return c.present().TotalConns() }

// LocalCloses implements Store.
func (c *connecting) LocalCloses() int64 { return c.present().LocalCloses() }

// Open implements Store.
func (c *connecting) Open() bool { return c.present().Open() }

// Flapping implements Store.
func (c *connecting) Flapping() bool { return c.present().Flapping() }

// Async implements counter.AsyncStore.
func (c *connecting) Async(req *counter.Request) counter.Async {
	if s, ok := c.present().(counter.AsyncStore); ok {
		return s.Async(req)
	}
	return nil
}

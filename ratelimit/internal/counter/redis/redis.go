// Package redis counts hits in Redis and compatible servers: in one server, in the master that sentinels name, or in a
// cluster.
package redis

import (
	"context"
	"strings"

	"gatehouse/ratelimit/internal/counter"
)

// Store is a store in other processes, of any type.
type Store interface {
	counter.Store
	// ActiveConns is the number of connections open now (cx_active), TotalConns the number ever opened (cx_total),
	// LocalCloses the number closed by this process (cx_local_close).
	ActiveConns() int64
	TotalConns() int64
	LocalCloses() int64
	// Open reports whether a breaker is open: hits are refused without a call to the server.
	Open() bool
	// Flapping reports whether a breaker has opened more than link.Flaps times within a minute.
	Flapping() bool
}

// Open connects to a store of the type in the options. It tries again with exponential backoff until the store answers,
// ctx ends or StartMaxElapsed is over.
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

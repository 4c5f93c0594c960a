// Package redis counts hits in Redis and what speaks like it: in one server, in the master that sentinels name, or in a
// cluster.
package redis

import (
	"context"
	"strings"

	"gatehouse/ratelimit/internal/counter"
)

// KV is a store in other processes, of whatever type.
type KV interface {
	counter.Store
	// ActiveConns is the number of connections open now (cx_active), TotalConns how many were ever
	// opened (cx_total), LocalCloses how many of them were closed from our side (cx_local_close).
	ActiveConns() int64
	TotalConns() int64
	LocalCloses() int64
	// Open reports whether a breaker is open: hits are refused without asking the server.
	Open() bool
}

// OpenKV connects to a store of the type that the options name. It tries again with exponential backoff
// until the store answers, ctx ends or StartMaxElapsed is over.
func OpenKV(ctx context.Context, o KVStoreOptions) (kv KV, err error) {
	switch strings.ToLower(o.Type) {
	case Sentinel:
		kv, err = newSentinel(ctx, o)
	case InCluster:
		kv, err = NewCluster(ctx, o)
	default:
		kv, err = NewKVStore(ctx, o)
	}
	if err != nil {
		return nil, err
	}
	return kv, nil
}

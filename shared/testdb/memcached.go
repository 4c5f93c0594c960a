package testdb

import (
	"context"
	"testing"

	"gatehouse/shared/localserver"
)

// Memcached starts a memcached for t alone, which is closed when t ends. It is not shared between tests, because
// memcached has no separate databases and starts in a few milliseconds.
func Memcached(t testing.TB, o localserver.MemcachedOptions) *localserver.Server {
	t.Helper()
	skipShort(t)
	s, err := localserver.Memcached(context.Background(), o)
	Started(t, err)
	t.Cleanup(s.Close)
	return s
}

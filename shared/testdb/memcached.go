package testdb

import (
	"context"
	"testing"

	"gatehouse/shared/localserver"
)

// Memcached starts a memcached only for t, closed when t ends. memcached has no databases to share, and starts in a few
// milliseconds.
func Memcached(t testing.TB, o localserver.MemcachedOptions) *localserver.Server {
	t.Helper()
	skipShort(t)
	s, err := localserver.Memcached(context.Background(), o)
	Started(t, err)
	t.Cleanup(s.Close)
	return s
}

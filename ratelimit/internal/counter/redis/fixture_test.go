package redis

import (
	"testing"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/countertest"
	"gatehouse/shared/testdb"
)

// What the tests of all stores share, by the names of this package's tests.
var (
	now, h, limit, refund = countertest.Now, countertest.Hit, countertest.Limit, countertest.Refund
	add                   = countertest.Add
	redisClient           = countertest.RedisClient
)

const (
	noon     = countertest.Noon
	patience = countertest.Patience
)

func hit(key string, n, limit uint64, end int64) counter.Hit {
	return counter.Hit{Key: []byte(key), N: n, Meter: counter.Meter{Limit: limit, Window: 60}, End: end}
}

func newTestStore(t testing.TB, o Options) *Server {
	t.Helper()
	return countertest.Opened(t, func() (*Server, error) { return NewServer(t.Context(), o) })
}

func TestKVStore(t *testing.T) {
	countertest.Run(t, func(t *testing.T) counter.Store {
		return newTestStore(t, Options{Settings: Settings{URL: testdb.Redis(t).URL()}, Stall: -1})
	})
}

package countertest

import (
	"context"
	"testing"

	"github.com/redis/rueidis"
)

// RedisClient is another client of the server, for reading and writing counters without the store's knowledge.
func RedisClient(t testing.TB, addr string, db int) rueidis.Client {
	t.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, SelectDB: db, DisableCache: true,
		ForceSingleClient: true, PipelineMultiplex: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	// With a context that can end, rueidis starts its goroutines: now, so that no test takes them for a leak.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := c.Do(ctx, c.B().Ping().Build()).Error(); err != nil {
		t.Fatal(err)
	}
	return c
}

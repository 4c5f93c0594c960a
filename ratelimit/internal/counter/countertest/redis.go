package countertest

import (
	"context"
	"testing"

	"github.com/redis/rueidis"
)

// RedisClient returns another client of the server, with which a test reads and writes counters without the store's
// knowledge.
func RedisClient(t testing.TB, addr string, db int) rueidis.Client {
	t.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, SelectDB: db, DisableCache: true,
		ForceSingleClient: true, PipelineMultiplex: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	// rueidis starts its goroutines at the first command with a context that can end. Send one now, so that no test
	// takes the goroutines for a leak of its own.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := c.Do(ctx, c.B().Ping().Build()).Error(); err != nil {
		t.Fatal(err)
	}
	return c
}

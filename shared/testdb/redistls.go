package testdb

import (
	"context"
	"testing"

	"gatehouse/shared/localserver"
)

// PrivateSentinels starts sentinels, and the servers they watch, for t alone. They are closed when t ends.
func PrivateSentinels(t testing.TB, o localserver.SentinelOptions) *localserver.SentinelSet {
	t.Helper()
	skipShort(t)
	s, err := localserver.RedisSentinels(context.Background(), o)
	Started(t, err)
	t.Cleanup(s.Close)
	return s
}

// PrivateCluster starts a Redis Cluster for t alone, which is closed when t ends.
func PrivateCluster(t testing.TB, o localserver.ClusterOptions) *localserver.Cluster {
	t.Helper()
	skipShort(t)
	c, err := localserver.RedisCluster(context.Background(), o)
	Started(t, err)
	t.Cleanup(c.Close)
	return c
}

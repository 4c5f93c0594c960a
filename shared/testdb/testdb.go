// Package testdb gives a test its own key space on a real server: one server for each test binary, one database of it
// for each test.
//
// Where the server's program is missing the test is skipped, or fails with REQUIRE_SERVERS=1. Tests that count a
// server's commands, or stop or kill it, start one of their own with Private.
package testdb

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
)

// KV is one test's database on the Redis that this test binary shares.
type KV struct {
	// Addr is host:port.
	Addr string
	// DB is the database's number; no other test has it.
	DB int
}

// URL returns KVSTORE_URL for the database.
func (kv KV) URL() string { return "redis://" + kv.Addr + "/" + strconv.Itoa(kv.DB) }

// shared is started by the first test that needs it and ends with the test binary, even after a panic.
var shared = sync.OnceValues(func() (*localserver.Server, error) {
	s, err := localserver.Redis(context.Background(), localserver.RedisOptions{})
	if err != nil {
		return nil, err
	}
	return s, s.Forget() // no caller closes it
})

var databases atomic.Int64

// Redis returns an empty database for t.
func Redis(t testing.TB) KV {
	t.Helper()
	skipShort(t)
	s, err := shared()
	Started(t, err)
	return KV{Addr: s.Addr(), DB: int(databases.Add(1))}
}

// Private starts a Redis only for t, closed when t ends.
func Private(t testing.TB, o localserver.RedisOptions) *localserver.Server {
	t.Helper()
	skipShort(t)
	s, err := localserver.Redis(context.Background(), o)
	Started(t, err)
	t.Cleanup(s.Close)
	return s
}

// Cluster returns a Redis Cluster with 3 masters and 3 replicas, started by the first test that needs it and emptied
// for each test. A test that uses it has it alone until the test ends.
func Cluster(t testing.TB) *localserver.Cluster {
	t.Helper()
	skipShort(t)
	c, err := sharedCluster()
	Started(t, err)
	clusterTaken.Lock()
	t.Cleanup(clusterTaken.Unlock)
	Started(t, c.Flush(t.Context()))
	return c
}

// Sentinels is Cluster for three sentinels with a master and two replicas.
func Sentinels(t testing.TB) *localserver.SentinelSet {
	t.Helper()
	skipShort(t)
	s, err := sharedSentinels()
	Started(t, err)
	sentinelsTaken.Lock()
	t.Cleanup(sentinelsTaken.Unlock)
	Started(t, s.Await(t.Context())) // the test before may have killed a master
	Started(t, s.Flush(t.Context()))
	return s
}

var clusterTaken, sentinelsTaken sync.Mutex

var sharedCluster = sync.OnceValues(func() (*localserver.Cluster, error) {
	c, err := localserver.RedisCluster(context.Background(), localserver.ClusterOptions{})
	if err != nil {
		return nil, err
	}
	return c, c.Forget()
})

var sharedSentinels = sync.OnceValues(func() (*localserver.SentinelSet, error) {
	s, err := localserver.RedisSentinels(context.Background(), localserver.SentinelOptions{})
	if err != nil {
		return nil, err
	}
	return s, s.Forget()
})

// skipShort skips a test that needs a server under -short (make test-short).
func skipShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a server")
	}
}

// Program returns the path of a program that t runs.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := localserver.Find(name)
	Started(t, err)
	return path
}

// Started ends t with the error of a server's start. Where its program is missing t is skipped, unless it is required.
func Started(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, localserver.ErrMissing) {
		must.Have(t, err)
	}
	must.Succeed(t, err)
}

// IgnoreServers is for goleak: the goroutines that wait for servers' ends are no leak.
func IgnoreServers() goleak.Option {
	return goleak.IgnoreAnyFunction("gatehouse/shared/subprocess.(*Process).watch")
}

// Package testdb gives each test a database of its own on a real server: the tests of one test binary share a server,
// on which each has its own database.
//
// If the server's program is missing, the test is skipped; with REQUIRE_SERVERS=1 it fails. Tests that count a server's
// commands, or stop or kill it, start a server of their own with Private.
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

// KV is the database of one test on the Redis that the tests of this test binary share.
type KV struct {
	// Addr is the address of the server, host:port.
	Addr string
	// DB is the number of the database. No other test uses it.
	DB int
}

// URL returns the KVSTORE_URL for the database.
func (kv KV) URL() string { return "redis://" + kv.Addr + "/" + strconv.Itoa(kv.DB) }

// shared starts a Redis when the first test needs it. The server ends with the test binary, even after a panic.
var shared = sync.OnceValues(func() (*localserver.Server, error) {
	s, err := localserver.Redis(context.Background(), localserver.RedisOptions{})
	if err != nil {
		return nil, err
	}
	return s, s.Forget() // it ends with this process, since no caller closes it
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

// Private starts a Redis for t alone, which is closed when t ends.
func Private(t testing.TB, o localserver.RedisOptions) *localserver.Server {
	t.Helper()
	skipShort(t)
	s, err := localserver.Redis(context.Background(), o)
	Started(t, err)
	t.Cleanup(s.Close)
	return s
}

// Cluster returns a Redis Cluster with 3 masters and 3 replicas. All tests share it: it is started when the first test
// needs it, and emptied for each test. Only one test at a time has it, until the test ends.
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

// Sentinels returns three sentinels with a master and two replicas. Tests share them as they share a Cluster.
func Sentinels(t testing.TB) *localserver.SentinelSet {
	t.Helper()
	skipShort(t)
	s, err := sharedSentinels()
	Started(t, err)
	sentinelsTaken.Lock()
	t.Cleanup(sentinelsTaken.Unlock)
	Started(t, s.Await(t.Context())) // the test before may have killed the master
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

// skipShort skips a test that needs a server if the tests run with -short (make test-short).
func skipShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a server")
	}
}

// Program returns the path of a server's program that t runs itself. If it is missing, t is skipped or fails.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := localserver.Find(name)
	Started(t, err)
	return path
}

// Started ends t if err, the error of a server's start, is not nil. If the server's program is missing, t is skipped,
// unless REQUIRE_SERVERS is 1.
func Started(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, localserver.ErrMissing) {
		must.Have(t, err)
	}
	must.Succeed(t, err)
}

// IgnoreServers is an option for goleak: the goroutines that wait for the ends of servers are not leaks.
func IgnoreServers() goleak.Option {
	return goleak.IgnoreAnyFunction("gatehouse/shared/subprocess.(*Process).watch")
}

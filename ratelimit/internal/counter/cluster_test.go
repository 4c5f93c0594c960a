package counter

import (
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"gatehouse/shared/testdb"
)

// newTestCluster is closed when t ends, and must leave no goroutine behind.
func newTestCluster(t testing.TB, o KVStoreOptions) *Cluster {
	t.Helper()
	before := goleak.IgnoreCurrent()
	o.Type = InCluster
	c, err := NewCluster(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		goleak.VerifyNone(t, before, testdb.IgnoreServers())
		if n := c.ActiveConns(); n != 0 {
			t.Errorf("%d connections are open after Close", n)
		}
	})
	return c
}

func TestCluster(t *testing.T) {
	cluster := testdb.Cluster(t)
	for _, parallelism := range []int{1, 0} {
		t.Run(fmt.Sprint("parallelism=", parallelism), func(t *testing.T) {
			if err := cluster.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			testStore(t, newTestCluster(t, KVStoreOptions{URL: cluster.Nodes[0].Addr(), Parallelism: parallelism}))
		})
	}
}

package counter

import (
	"fmt"
	"testing"

	"gatehouse/shared/testdb"
)

func TestCluster(t *testing.T) {
	cluster := testdb.Cluster(t)
	for _, parallelism := range []int{1, 0} {
		t.Run(fmt.Sprint("parallelism=", parallelism), func(t *testing.T) {
			if err := cluster.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			testStore(t, openTest(t, KVStoreOptions{Type: InCluster, URL: cluster.Nodes[0].Addr(), Parallelism: parallelism}))
		})
	}
}

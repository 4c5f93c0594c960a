package store_test

import (
	"runtime"
	"testing"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
)

// How many connections may rest goes by the processors, not by GOMAXPROCS, which the daemon doubles for
// the hashing threads' sake: 4 for each core.
func TestPool_maxIdle(t *testing.T) {
	old := runtime.GOMAXPROCS(2 * runtime.NumCPU())
	defer runtime.GOMAXPROCS(old)
	db, err := store.Open(t.Context(), store.Options{URL: storetest.URL(t), Settings: store.Settings{MaxConns: 1000}})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if got, want := int(db.Pool().Config().MinConns), 4*runtime.NumCPU(); got != want {
		t.Errorf("%d connections may rest, want %d", got, want)
	}
}

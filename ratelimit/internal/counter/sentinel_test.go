package counter

import (
	"testing"

	"go.uber.org/goleak"

	"gatehouse/shared/testdb"
)

// openTest is closed when t ends, and must leave no goroutine behind.
func openTest(t testing.TB, o KVStoreOptions) KV {
	t.Helper()
	before := goleak.IgnoreCurrent()
	s, err := OpenKV(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		goleak.VerifyNone(t, before, testdb.IgnoreServers())
		if n := s.ActiveConns(); n != 0 {
			t.Errorf("%d connections are open after Close", n)
		}
	})
	return s
}

func TestSentinel(t *testing.T) {
	set := testdb.Sentinels(t)
	testStore(t, openTest(t, KVStoreOptions{Type: Sentinel, URL: set.URL()}))
}

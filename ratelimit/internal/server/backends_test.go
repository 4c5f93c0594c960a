package server

import (
	"testing"

	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"gatehouse/ratelimit/internal/counter"
)

// backend is one kind of store that every example runs on.
type backend struct {
	name string
	// open makes an empty store, and what reads every counter in it afterwards. Stores that cannot
	// list their keys look the wanted ones up and check that there are no others.
	open func(t testing.TB) (counter.Store, func(t testing.TB, wanted []string) map[string]int64)
}

var backends = []backend{{"memory", openMemory}}

func openMemory(testing.TB) (counter.Store, func(testing.TB, []string) map[string]int64) {
	m := counter.NewMemory(counter.MemoryOptions{})
	return m, func(t testing.TB, wanted []string) map[string]int64 {
		t.Helper()
		got := map[string]int64{}
		for _, key := range wanted {
			n, err := m.Peek(t.Context(), []byte(key), 0)
			if err != nil {
				t.Fatal(err)
			}
			if n != 0 {
				got[key] = n
			}
		}
		if m.Len() != len(got) {
			t.Errorf("the store holds %d counters, %d of them expected", m.Len(), len(got))
		}
		return got
	}
}

func ratelimitTypeUnit(n int32) typepb.RateLimitUnit { return typepb.RateLimitUnit(n) }

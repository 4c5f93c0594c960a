package memcached

import (
	"fmt"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/countertest"
	"gatehouse/shared/localserver"
	"gatehouse/shared/testdb"
)

// Broken replies neither crash nor hang the store, nor let more pass a limit than hits were lost with them, and the
// store answers soon after the last of them.
func TestMemcache_nonsense(t *testing.T) {
	for _, g := range countertest.MemcachedGarbles {
		t.Run(g.Name, func(t *testing.T) {
			t.Parallel()
			proxy := countertest.NewGarbler(t, testdb.Memcached(t, localserver.MemcachedOptions{}).Addr())
			s, err := New(t.Context(), Options{Settings: Settings{Nodes: []string{proxy.Addr().String()},
				Timeout: time.Second}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			countertest.Nonsense{Store: s, Proxy: proxy, Garble: g, Lost: s.Dropped, Hits: func(i int) []counter.Hit {
				return []counter.Hit{limit(500, h(fmt.Sprint("fixed", i%5), 1))}
			}}.Run(t)
		})
	}
}

// A reply that comes late and unasked is not taken for the next one.
func TestMemcache_lateReply(t *testing.T) {
	proxy := countertest.NewGarbler(t, testdb.Memcached(t, localserver.MemcachedOptions{}).Addr())
	s := newTestMemcache(t, patient3([]string{proxy.Addr().String()}))
	for i := range 20 {
		proxy.Once(countertest.Extra("END\r\n"))
		if got := add(t, s, now(), h("key", 1)); got != int64(i+1) {
			t.Fatalf("total %d, want %d", got, i+1)
		}
		settled(t, s)
	}
}

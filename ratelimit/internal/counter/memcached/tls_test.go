package memcached

import (
	"crypto/tls"
	"errors"
	"fmt"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/countertest"
	"gatehouse/shared/certs"
	"gatehouse/shared/certs/certtest"
	"gatehouse/shared/localserver"
	"gatehouse/shared/testdb"
)

func TestMemcache_TLS(t *testing.T) {
	countertest.RunTLS(t, func(f countertest.TLSFiles, clientCA string) string {
		return testdb.Memcached(t, localserver.MemcachedOptions{Cert: f.Cert, Key: f.Key, ClientCA: clientCA}).Addr()
	}, func(addr string, config func(string) *tls.Config) error {
		s, err := New(t.Context(), Options{Settings: Settings{Nodes: []string{addr}, Timeout: patience}, TLS: config,
			Stall: -1})
		if err != nil {
			return err
		}
		defer s.Close()
		if err := s.Add(t.Context(), &counter.Request{Hits: []counter.Hit{h("a", 1)}, Now: now()}); err != nil {
			return err
		}
		settled(t, s)
		if n := s.Dropped(); n != 0 {
			return fmt.Errorf("%d hits dropped", n)
		}
		return nil
	})
}

// Three nodes over TLS, of which one wants TLS in vain: it alone fails.
func TestMemcache_TLSnodes(t *testing.T) {
	ca := certtest.NewCA(t, "ca", time.Hour)
	f := countertest.NewTLSFiles(t, ca, ca.Issue("localhost"))
	var addrs []string
	for range 2 {
		addrs = append(addrs, countertest.Localhost(testdb.Memcached(t,
			localserver.MemcachedOptions{Cert: f.Cert, Key: f.Key}).Addr()))
	}
	addrs = append(addrs, countertest.Localhost(testdb.Memcached(t, localserver.MemcachedOptions{}).Addr())) // in clear
	o := Options{Settings: Settings{Nodes: addrs, Timeout: time.Second},
		TLS: countertest.Trusting(t, certs.Files{CA: f.CA}, false), Stall: -1}
	s := newTestMemcache(t, o)
	for i := range 30 {
		key := fmt.Sprint("k", i)
		err := s.Add(t.Context(), &counter.Request{Hits: []counter.Hit{h(key, 1)}, Now: now()})
		if dead := s.ring.Load().pick(key).addr.Addr == addrs[2]; dead != (err != nil) &&
			!errors.Is(err, counter.ErrTimeout) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

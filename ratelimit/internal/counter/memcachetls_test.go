package counter

import (
	"crypto/tls"
	"errors"
	"fmt"
	"testing"
	"time"

	"gatehouse/shared/certs"
	"gatehouse/shared/certs/certtest"
	"gatehouse/shared/localserver"
	"gatehouse/shared/testdb"
)

func TestMemcache_TLS(t *testing.T) {
	RunTLS(t, func(f TLSFiles, clientCA string) string {
		return testdb.Memcached(t, localserver.MemcachedOptions{Cert: f.Cert, Key: f.Key, ClientCA: clientCA}).Addr()
	}, func(addr string, config func(string) *tls.Config) error {
		s, err := NewMemcache(t.Context(), MemcacheOptions{Nodes: []string{addr}, TLS: config, Timeout: patience, Stall: -1})
		if err != nil {
			return err
		}
		defer s.Close()
		if err := s.Add(t.Context(), &Request{Hits: []Hit{h("a", 1)}, Now: now()}); err != nil {
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
	f := NewTLSFiles(t, ca, ca.Issue("localhost"))
	var addrs []string
	for range 2 {
		addrs = append(addrs, Localhost(testdb.Memcached(t, localserver.MemcachedOptions{Cert: f.Cert, Key: f.Key}).Addr()))
	}
	addrs = append(addrs, Localhost(testdb.Memcached(t, localserver.MemcachedOptions{}).Addr())) // in clear
	o := MemcacheOptions{Nodes: addrs, Timeout: time.Second, TLS: Trusting(t, certs.Files{CA: f.CA}, false), Stall: -1}
	s := newTestMemcache(t, o)
	for i := range 30 {
		key := fmt.Sprint("k", i)
		err := s.Add(t.Context(), &Request{Hits: []Hit{h(key, 1)}, Now: now()})
		if dead := s.ring.Load().pick(key).addr.text == addrs[2]; dead != (err != nil) && !errors.Is(err, ErrTimeout) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

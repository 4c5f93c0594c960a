package redis

import (
	"crypto/tls"
	"fmt"
	"strings"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/countertest"
	"gatehouse/shared/await"
	"gatehouse/shared/certs"
	"gatehouse/shared/certs/certtest"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

func TestKVStore_TLS(t *testing.T) {
	countertest.RunTLS(t, func(f countertest.TLSFiles, clientCA string) string {
		return testdb.Private(t, localserver.RedisOptions{Cert: f.Cert, Key: f.Key, ClientCA: clientCA,
			Password: "secret"}).Addr()
	}, func(addr string, config func(string) *tls.Config) error {
		s, err := NewServer(t.Context(), Options{
			Settings: Settings{URL: "rediss://:secret@" + addr, Timeout: patience}, TLS: config,
			Start: StartSettings{Initial: time.Nanosecond, MaxElapsed: time.Nanosecond}, Stall: -1,
		})
		if err != nil {
			return err
		}
		defer s.Close()
		return s.Add(t.Context(), &counter.Request{Hits: []counter.Hit{h("a", 1)}, Now: now()})
	})
	if _, err := NewServer(t.Context(), Options{Settings: Settings{URL: "rediss://localhost:1"}}); err == nil ||
		!strings.Contains(err.Error(), "needs TLS") {
		t.Errorf("rediss:// without TLS: %v", err)
	}
}

// The whole contract over TLS, with a user's name.
func TestKVStore_TLSconformance(t *testing.T) {
	ca := certtest.NewCA(t, "ca", time.Hour)
	f := countertest.NewTLSFiles(t, ca, ca.Issue("localhost"))
	server := testdb.Private(t,
		localserver.RedisOptions{Cert: f.Cert, Key: f.Key, Users: map[string]string{"ann": "a:b"}})
	countertest.Run(t, func(t *testing.T) counter.Store {
		return newTestStore(t, Options{
			Settings: Settings{URL: countertest.Localhost(server.Addr()), Auth: "ann:a:b", Timeout: patience},
			TLS:      countertest.Trusting(t, certs.Files{CA: f.CA}, false), Stall: -1,
		})
	})
}

// Certificates that change are used by the next connection, at both ends.
func TestKVStore_TLSrotates(t *testing.T) {
	ca, next := certtest.NewCA(t, "ca", time.Hour), certtest.NewCA(t, "next", time.Hour)
	here := countertest.NewTLSFiles(t, ca, ca.Issue("localhost"))
	server := testdb.Private(t, localserver.RedisOptions{Cert: here.Cert, Key: here.Key, ClientCA: here.CA})
	dir := t.TempDir()
	cert, key := ca.Issue("one").Write(t, dir)
	root := ca.Write(t, dir)
	s := newTestStore(t, Options{
		Settings: Settings{URL: countertest.Localhost(server.Addr()), Timeout: patience}, Stall: -1,
		TLS: countertest.Trusting(t, certs.Files{CA: root, Cert: cert, Key: key}, false),
	})
	add(t, s, now(), h("a", 1))

	// The server comes back with another authority's certificate, and wants one of that from us.
	next.Issue("localhost").Write(t, strings.TrimSuffix(here.Cert, "/tls.crt"))
	next.Write(t, strings.TrimSuffix(here.CA, "/ca.crt"))
	must.Succeed(t, server.Restart(t.Context()))
	if err := s.Add(t.Context(), &counter.Request{Hits: []counter.Hit{h("a", 1)}, Now: now()}); err == nil {
		t.Error("it believes an authority that it does not know")
	}
	next.Issue("two").Write(t, dir)
	next.Write(t, dir)
	await.True(t, "the new files to be used", func() bool {
		return s.Add(t.Context(), &counter.Request{Hits: []counter.Hit{h("b", 1)}, Now: now()}) == nil
	})
}

// Sentinels, and the master that they name, are both spoken to over TLS, each with its own password.
func TestSentinel_TLS(t *testing.T) {
	ca := certtest.NewCA(t, "ca", time.Hour)
	f := countertest.NewTLSFiles(t, ca, ca.Issue("127.0.0.1"))
	set := testdb.PrivateSentinels(t, localserver.SentinelOptions{
		Password: "servers", SentinelPassword: "watchers",
		TLS: localserver.TLSFiles{Cert: f.Cert, Key: f.Key, CA: f.CA},
	})
	url, err := set.TLSURL()
	must.Succeed(t, err)
	testTopologyTLS(t, Options{Settings: Settings{Type: Sentinel, URL: url, Auth: "servers", SentinelAuth: "watchers"}},
		f)
}

func TestCluster_TLS(t *testing.T) {
	ca := certtest.NewCA(t, "ca", time.Hour)
	f := countertest.NewTLSFiles(t, ca, ca.Issue("127.0.0.1"))
	cluster := testdb.PrivateCluster(t, localserver.ClusterOptions{
		Password: "nodes", Masters: 3, Replicas: 0, TLS: localserver.TLSFiles{Cert: f.Cert, Key: f.Key, CA: f.CA},
	})
	url, err := cluster.TLSURL()
	must.Succeed(t, err)
	testTopologyTLS(t, Options{Settings: Settings{Type: InCluster, URL: url, Auth: "nodes"}}, f)
}

// testTopologyTLS counts over TLS, and holds that nothing does without it or with another authority.
func testTopologyTLS(t *testing.T, o Options, f countertest.TLSFiles) {
	o.Settings.Timeout, o.Stall = patience, -1
	o.TLS = countertest.Trusting(t, certs.Files{CA: f.CA}, false)
	s, err := Open(t.Context(), o)
	must.Succeed(t, err)
	defer s.Close()
	for i := range 50 {
		key := fmt.Sprint("k", i)
		req := counter.Request{Hits: []counter.Hit{h(key, 1), h(key, 2), h("all", 1)}, Now: now()}
		if err := s.Add(t.Context(), &req); err != nil || req.Hits[1].After != 3 || req.Hits[2].After != int64(i+1) {
			t.Fatalf("%s: %v %+v", key, err, req.Hits)
		}
	}
	o.Start.Initial, o.Start.MaxElapsed, o.Settings.Timeout = time.Nanosecond, time.Nanosecond, 5*time.Second
	o.TLS = countertest.Trusting(t, certs.Files{CA: certtest.NewCA(t, "other", time.Hour).Write(t, t.TempDir())}, false)
	if s, err := Open(t.Context(), o); err == nil {
		s.Close()
		t.Error("it believes another authority")
	}
	o.TLS = nil
	if s, err := Open(t.Context(), o); err == nil {
		s.Close()
		t.Error("it gets by in clear")
	}
}

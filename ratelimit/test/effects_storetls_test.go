package test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gatehouse/shared/await"
	"gatehouse/shared/certs/certtest"
	"gatehouse/shared/localserver"
	"gatehouse/shared/testdb"
)

// storeTLS shows what the variables of a store's TLS make possible.
type storeTLS struct {
	prefix string                                  // of the variables
	plain  func(addr string) map[string]string     // the environment without TLS
	server func(cert, key, clientCA string) string // starts a server that speaks TLS; its address
	// waits: the daemon pings the store before it serves.
	waits bool
}

// try starts a daemon with more variables, by their ends, and says whether it counts in the store.
func (s storeTLS) try(t *testing.T, what, addr string, welcome bool, more ...string) {
	t.Helper()
	p := launch(t, `[{key: k, @99/y}]`, with(s.plain(addr), s.prefix, more...))
	if !welcome && s.waits {
		p.log.await(t, "does not answer yet", nil)
		return
	}
	var ready struct {
		HTTP string `json:"http"`
	}
	p.log.await(t, `"ready"`, &ready)
	p.http = ready.HTTP
	if code, answer := post(t, p, "k=v"); (code == 200) != welcome {
		t.Errorf("%s: %d %s", what, code, answer)
	}
}

// byName is a server's address as its certificate has it.
func byName(addr string) string { return strings.Replace(addr, "127.0.0.1", "localhost", 1) }

// issued returns files of an authority: itself, and a certificate for localhost with its key.
func issued(t *testing.T) (ca *certtest.CA, root, cert, key string) {
	t.Helper()
	ca, dir := certtest.NewCA(t, "ca", time.Hour), t.TempDir()
	cert, key = ca.Issue("localhost").Write(t, dir)
	return ca, ca.Write(t, dir), cert, key
}

func (s storeTLS) check(t *testing.T) {
	ca, root, cert, key := issued(t)
	byIP := s.server(cert, key, "") // which the certificate is not for
	addr := byName(byIP)
	s.try(t, "in clear", addr, false)
	s.try(t, "the system's authorities", addr, false, "TLS", "true")
	s.try(t, "another authority", addr, false, "TLS", "true", "TLS_CACERT",
		certtest.NewCA(t, "other", time.Hour).Write(t, t.TempDir()))
	s.try(t, "this authority", addr, true, "TLS", "true", "TLS_CACERT", root)

	s.try(t, "its name", byIP, false, "TLS", "true", "TLS_CACERT", root)
	s.try(t, "any name", byIP, true, "TLS", "true", "TLS_CACERT", root, "TLS_SKIP_HOSTNAME_VERIFICATION", "true")
	s.try(t, "any name, but another authority", byIP, false, "TLS", "true", "TLS_SKIP_HOSTNAME_VERIFICATION", "true")

	own, ownKey := ca.Issue("ratelimit").Write(t, t.TempDir())
	addr = byName(s.server(cert, key, root))
	s.try(t, "without a certificate", addr, false, "TLS", "true", "TLS_CACERT", root)
	s.try(t, "with one", addr, true, "TLS", "true", "TLS_CACERT", root, "TLS_CLIENT_CERT", own, "TLS_CLIENT_KEY", ownKey)

	_, other := ca.Issue("ratelimit").Write(t, t.TempDir())
	for wrong, want := range map[string]string{other: "not the key of " + own, "": s.prefix + "TLS_CLIENT_CERT"} {
		env := s.plain("localhost:1")
		env[s.prefix+"TLS"], env[s.prefix+"TLS_CLIENT_CERT"], env[s.prefix+"TLS_CLIENT_KEY"] = "true", own, wrong
		p := launch(t, `[{key: k, @99/y}]`, env)
		select {
		case <-p.Ended():
		case <-time.After(30 * time.Second):
			t.Fatal("it goes on with a certificate and not its key")
		}
		if text := p.log.text(); !strings.Contains(text, want) {
			t.Errorf("its last words, without %q:\n%s", want, text)
		}
	}
}

func redisWithTLS(t *testing.T, cert, key, clientCA string) string {
	return testdb.Private(t, localserver.RedisOptions{Cert: cert, Key: key, ClientCA: clientCA}).Addr()
}

var _ = effect("KVSTORE_TLS KVSTORE_TLS_CACERT KVSTORE_TLS_SKIP_HOSTNAME_VERIFICATION KVSTORE_TLS_CLIENT_CERT "+
	"KVSTORE_TLS_CLIENT_KEY", func(t *testing.T) {
	storeTLS{
		prefix: "KVSTORE_", waits: true,
		plain:  func(addr string) map[string]string { return on("single", addr) },
		server: func(cert, key, clientCA string) string { return redisWithTLS(t, cert, key, clientCA) },
	}.check(t)
})

var _ = effect("MCACHE_TLS MCACHE_TLS_CACERT MCACHE_TLS_SKIP_HOSTNAME_VERIFICATION MCACHE_TLS_CLIENT_CERT "+
	"MCACHE_TLS_CLIENT_KEY", func(t *testing.T) {
	storeTLS{
		prefix: "MCACHE_",
		plain: func(addr string) map[string]string {
			return onMemcache("MCACHE_HOST_PORT", addr, "MCACHE_TIMEOUT", "5s")
		},
		server: func(cert, key, clientCA string) string {
			return testdb.Memcached(t, localserver.MemcachedOptions{Cert: cert, Key: key, ClientCA: clientCA}).Addr()
		},
	}.check(t)
})

// TestCertificates_stats: the statistics say when what the store and the control plane are shown ends, and
// that newer files are no good. Neither needs to be there for that.
func TestCertificates_stats(t *testing.T) {
	t.Parallel()
	for prefix, env := range map[string]map[string]string{
		"ratelimit.store.tls": onMemcache("MCACHE_HOST_PORT", "127.0.0.1:1", "MCACHE_TLS", "true",
			"MCACHE_TLS_CLIENT_CERT", "CERT", "MCACHE_TLS_CLIENT_KEY", "KEY"),
		"ratelimit.xds.tls": follow("127.0.0.1:1", "FORCE_START_WITHOUT_INITIAL_CONFIG", "true",
			"CONFIG_GRPC_XDS_SERVER_USE_TLS", "true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CERT",
			"CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "KEY"),
	} {
		l := newLock(t)
		for name, value := range env {
			switch value {
			case "CERT":
				env[name] = l.path("tls.crt")
			case "KEY":
				env[name] = l.path("tls.key")
			}
		}
		p := start(t, "", env)
		ends := fmt.Sprintf("%s.certificate_ends_at: %d\n", prefix, l.last.TLS(t).Leaf.NotAfter.Unix())
		if _, body := get(t, p.debug+"/stats"); !strings.Contains(body, ends+prefix+".files_rejected: 0\n") {
			t.Errorf("no %q in\n%s", ends, body)
		}
		certtest.WriteFile(t, l.path("tls.key"), l.ca.Issue("other").Key)
		await.True(t, prefix+": the wrong key shows", func() bool {
			_, body := get(t, p.debug+"/stats")
			return strings.Contains(body, ends+prefix+".files_rejected: 1\n")
		})
	}
}

// The store for limits per second may speak TLS alone; both have one set of files.
var _ = effect("KVSTORE_PERSECOND_TLS", func(t *testing.T) {
	_, root, cert, key := issued(t)
	addr := byName(redisWithTLS(t, cert, key, ""))
	env := on("single", testdb.Redis(t).URL(), "KVSTORE_PERSECOND", "true", "KVSTORE_PERSECOND_URL", addr,
		"KVSTORE_TLS_CACERT", root)
	launch(t, perSecondRules, env).log.await(t, "does not answer yet", nil)
	env["KVSTORE_PERSECOND_TLS"] = "true"
	p := start(t, perSecondRules, env)
	if code, answer := post(t, p, "s=v", "m=v"); code != 200 {
		t.Errorf("%d %s", code, answer)
	}
	// rediss:// does the same.
	env["KVSTORE_PERSECOND_TLS"], env["KVSTORE_PERSECOND_URL"] = "false", "rediss://"+addr
	p = start(t, perSecondRules, env)
	if code, answer := post(t, p, "s=v", "m=v"); code != 200 {
		t.Errorf("rediss://: %d %s", code, answer)
	}
})

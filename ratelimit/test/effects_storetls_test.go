package test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"gatehouse/shared/await"
	"gatehouse/shared/certs/certtest"
	"gatehouse/shared/localserver"
	"gatehouse/shared/testdb"
)

// storeTLS shows what the variables of a store's TLS make possible. Each of its methods is one variable's.
type storeTLS struct {
	prefix string                                  // of the variables
	plain  func(addr string) map[string]string     // the environment without TLS
	server func(cert, key, clientCA string) string // starts a server that speaks TLS; its address
	// waits: the daemon pings the store before it serves.
	waits bool

	*testing.T
	ca              *certtest.CA
	cert, key, root string // the server's
}

// on gives the store a server's certificate for localhost.
func (s storeTLS) on(t *testing.T) *storeTLS {
	s.T, s.ca = t, certtest.NewCA(t, "ca", time.Hour)
	dir := t.TempDir()
	s.cert, s.key = s.ca.Issue("localhost").Write(t, dir)
	s.root = s.ca.Write(t, dir)
	return &s
}

// try starts a daemon with more variables, by their ends, and says whether it counts in the store.
func (s *storeTLS) try(what, addr string, welcome bool, more ...string) {
	s.Helper()
	env := maps.Clone(s.plain(addr))
	for i := 0; i < len(more); i += 2 {
		env[s.prefix+more[i]] = more[i+1]
	}
	p := launch(s, `[{key: k, @99/y}]`, env)
	if !welcome && s.waits {
		p.log.await(s, "does not answer yet", nil)
		return
	}
	var ready struct {
		HTTP string `json:"http"`
	}
	p.log.await(s, `"ready"`, &ready)
	p.http = ready.HTTP
	if code, answer := post(s, p, "k=v"); (code == 200) != welcome {
		s.Errorf("%s: %d %s", what, code, answer)
	}
}

// byName is a server's address as its certificate has it.
func byName(addr string) string { return strings.Replace(addr, "127.0.0.1", "localhost", 1) }

func (s storeTLS) tls(t *testing.T) {
	x := s.on(t)
	addr := byName(s.server(x.cert, x.key, ""))
	x.try("in clear", addr, false)
	x.try("TLS", addr, true, "TLS", "true", "TLS_CACERT", x.root)
}

func (s storeTLS) caCert(t *testing.T) {
	x := s.on(t)
	addr := byName(s.server(x.cert, x.key, ""))
	x.try("the system's authorities", addr, false, "TLS", "true")
	x.try("another authority", addr, false, "TLS", "true", "TLS_CACERT",
		certtest.NewCA(t, "other", time.Hour).Write(t, t.TempDir()))
	x.try("this one", addr, true, "TLS", "true", "TLS_CACERT", x.root)
}

func (s storeTLS) skipName(t *testing.T) {
	x := s.on(t)
	addr := s.server(x.cert, x.key, "") // the certificate is not for 127.0.0.1
	x.try("its name", addr, false, "TLS", "true", "TLS_CACERT", x.root)
	x.try("any name", addr, true, "TLS", "true", "TLS_CACERT", x.root, "TLS_SKIP_HOSTNAME_VERIFICATION", "true")
	x.try("any name, but another authority", addr, false, "TLS", "true", "TLS_SKIP_HOSTNAME_VERIFICATION", "true")
}

func (s storeTLS) clientCert(t *testing.T) {
	x := s.on(t)
	cert, key := x.ca.Issue("ratelimit").Write(t, t.TempDir())
	addr := byName(s.server(x.cert, x.key, x.root))
	x.try("without a certificate", addr, false, "TLS", "true", "TLS_CACERT", x.root)
	x.try("with one", addr, true, "TLS", "true", "TLS_CACERT", x.root, "TLS_CLIENT_CERT", cert, "TLS_CLIENT_KEY", key)
}

func (s storeTLS) clientKey(t *testing.T) {
	x := s.on(t)
	cert, key := x.ca.Issue("ratelimit").Write(t, t.TempDir())
	_, other := x.ca.Issue("ratelimit").Write(t, t.TempDir())
	for wrong, want := range map[string]string{other: "not the key of " + cert, "": s.prefix + "TLS_CLIENT_CERT"} {
		env := s.plain("localhost:1")
		env[s.prefix+"TLS"], env[s.prefix+"TLS_CLIENT_CERT"], env[s.prefix+"TLS_CLIENT_KEY"] = "true", cert, wrong
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
	addr := byName(s.server(x.cert, x.key, x.root))
	x.try("the right key", addr, true, "TLS", "true", "TLS_CACERT", x.root, "TLS_CLIENT_CERT", cert,
		"TLS_CLIENT_KEY", key)
}

func redisTLS(t *testing.T) storeTLS {
	return storeTLS{
		prefix: "KVSTORE_", waits: true,
		plain: func(addr string) map[string]string { return on("single", addr) },
		server: func(cert, key, clientCA string) string {
			return testdb.Private(t, localserver.RedisOptions{Cert: cert, Key: key, ClientCA: clientCA}).Addr()
		},
	}
}

var (
	_ = effect("KVSTORE_TLS", func(t *testing.T) { redisTLS(t).tls(t) })
	_ = effect("KVSTORE_TLS_CACERT", func(t *testing.T) { redisTLS(t).caCert(t) })
	_ = effect("KVSTORE_TLS_SKIP_HOSTNAME_VERIFICATION", func(t *testing.T) { redisTLS(t).skipName(t) })
	_ = effect("KVSTORE_TLS_CLIENT_CERT", func(t *testing.T) { redisTLS(t).clientCert(t) })
	_ = effect("KVSTORE_TLS_CLIENT_KEY", func(t *testing.T) { redisTLS(t).clientKey(t) })
)

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
	x := redisTLS(t).on(t)
	main := testdb.Private(t, localserver.RedisOptions{})
	addr := byName(x.server(x.cert, x.key, ""))
	env := on("single", main.Addr(), "KVSTORE_PERSECOND", "true", "KVSTORE_PERSECOND_URL", addr, "KVSTORE_TLS_CACERT",
		x.root)
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

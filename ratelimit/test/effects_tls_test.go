package test

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"gatehouse/shared/await"
	"gatehouse/shared/certs/certtest"
	"gatehouse/shared/must"
)

// lock is a directory with a server's certificate, as a Kubernetes secret is mounted: tls.crt and
// tls.key lead through ..data to a version of them, with ca.crt next to them.
type lock struct {
	t    testing.TB
	dir  string
	ca   *certtest.CA
	last certtest.Pair
	n    int
}

func newLock(t testing.TB) *lock {
	t.Helper()
	l := &lock{t: t, dir: t.TempDir(), ca: certtest.NewCA(t, "ca", time.Hour)}
	l.swap()
	for _, name := range []string{"tls.crt", "tls.key"} {
		l.link("..data/"+name, name)
	}
	l.ca.Write(t, l.dir)
	return l
}

func (l *lock) link(to, name string) {
	l.t.Helper()
	next := filepath.Join(l.dir, "..next")
	must.Succeed(l.t, os.Symlink(to, next))
	must.Succeed(l.t, os.Rename(next, filepath.Join(l.dir, name)))
}

// swap puts a new certificate in place, with one rename.
func (l *lock) swap() {
	l.t.Helper()
	l.n++
	version := fmt.Sprint("..", l.n)
	must.Succeed(l.t, os.Mkdir(filepath.Join(l.dir, version), 0o755))
	l.last = l.ca.Issue("localhost", "127.0.0.1")
	l.last.Write(l.t, filepath.Join(l.dir, version))
	l.link(version, "..data")
}

// env are the settings that use the lock, with more after them.
func (l *lock) env(more ...string) map[string]string {
	return with(map[string]string{
		"GRPC_SERVER_USE_TLS": "true", "GRPC_SERVER_TLS_CERT": l.path("tls.crt"),
		"GRPC_SERVER_TLS_KEY": l.path("tls.key"),
	}, "", more...)
}

func (l *lock) path(name string) string { return filepath.Join(l.dir, name) }

// client is a TLS config that believes the lock and shows pair, if there is one.
func (l *lock) client(pair *certtest.Pair) *tls.Config {
	c := &tls.Config{RootCAs: l.ca.Pool()}
	if pair != nil {
		own := pair.TLS(l.t)
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own, nil }
	}
	return c
}

// ask requests one decision over a connection of its own.
func ask(address string, config *tls.Config) (*pb.RateLimitResponse, error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request("k", "v"))
}

var _ = effect("GRPC_SERVER_USE_TLS", func(t *testing.T) {
	l := newLock(t)
	p := start(t, `[{key: k, @9/y}]`, l.env())
	if _, err := ask(p.grpc, l.client(nil)); err != nil {
		t.Errorf("TLS: %v", err)
	}
	if _, err := ask(p.grpc, &tls.Config{RootCAs: l.ca.Pool(), MaxVersion: tls.VersionTLS12}); err != nil {
		t.Errorf("TLS 1.2: %v", err)
	}
	if _, err := ask(p.grpc, &tls.Config{RootCAs: l.ca.Pool(), MinVersion: tls.VersionTLS11,
		MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 was answered")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := p.dial(t).ShouldRateLimit(ctx, request("k", "v")); err == nil {
		t.Error("a plain connection was answered")
	}

	// The client sub-command speaks it too.
	args := []string{"client", "-dial_string", p.grpc, "-domain", "d", "-descriptors", "k=v", "-grpc-use-tls"}
	f := func(exit int, part string, more ...string) {
		t.Helper()
		out, err := command(nil, append(args, more...)...).CombinedOutput()
		code := 0
		if e, ok := err.(*exec.ExitError); ok {
			code = e.ExitCode()
		}
		if code != exit || !strings.Contains(string(out), part) {
			t.Errorf("%q: exit status %d, want %d with %q in:\n%s", more, code, exit, part, out)
		}
	}
	f(0, "response: ", "-grpc-server-ca-file", l.path("ca.crt"))
	f(1, "unknown authority")
	f(2, "none: no such file", "-grpc-server-ca-file", l.path("none"))
	f(2, "without its key", "-grpc-cert-file", l.path("tls.crt"))
	await.True(t, "refused handshakes are counted", func() bool {
		_, body := get(t, p.debug+"/stats?format=json")
		return strings.Contains(body, `"ratelimit_server.tls.handshake_error"`) &&
			!strings.Contains(body, `"ratelimit_server.tls.handshake_error": 0`)
	})
})

// A swapped certificate is used under load: clients that connect meanwhile get the old one or the new one.
var _ = effect("GRPC_SERVER_TLS_CERT", func(t *testing.T) {
	l := newLock(t)
	p := start(t, `[{key: k, @9/y}]`, l.env())
	stop, calls := make(chan struct{}), atomic.Int64{}
	var wg sync.WaitGroup
	load := func(call func() error) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := call(); err != nil {
					t.Errorf("under load: %v", err)
					return
				}
				calls.Add(1)
			}
		})
	}
	var mu sync.Mutex
	shown := "" // serial number seen last
	for range 2 {
		config := l.client(nil)
		config.VerifyConnection = func(cs tls.ConnectionState) error {
			mu.Lock()
			defer mu.Unlock()
			shown = cs.PeerCertificates[0].SerialNumber.String()
			return nil
		}
		load(func() error { _, err := ask(p.grpc, config); return err })
	}
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(credentials.NewTLS(l.client(nil))))
	must.Succeed(t, err)
	defer conn.Close()
	c := pb.NewRateLimitServiceClient(conn)
	load(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_, err := c.ShouldRateLimit(ctx, request("k", "v"))
		return err
	})
	for range 3 {
		l.swap()
		want, began := l.last.TLS(t).Leaf.SerialNumber.String(), time.Now()
		await.True(t, "the new certificate is shown", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return shown == want
		})
		t.Logf("used %v after the swap, %d calls so far", time.Since(began), calls.Load())
	}
	close(stop)
	wg.Wait()
})

var _ = effect("GRPC_SERVER_TLS_KEY", func(t *testing.T) {
	l := newLock(t)
	_, other := l.ca.Issue("localhost").Write(t, t.TempDir())
	for key, want := range map[string]string{other: "not the key of " + l.path("tls.crt"),
		l.path("none"): "no such file"} {
		env := l.env("GRPC_SERVER_TLS_KEY", key)
		env["BACKEND_TYPE"] = "memory"
		out, err := command(env).CombinedOutput()
		if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 1 {
			t.Errorf("with %s: %v, want exit status 1", key, err)
		}
		if !strings.Contains(string(out), `GRPC_SERVER_TLS_KEY="`+key+`": `) || !strings.Contains(string(out), want) {
			t.Errorf("with %s:\n%s", key, out)
		}
	}
	// A wrong key in a running daemon changes nothing but what is reported.
	p := start(t, `[{key: k, @9/y}]`, l.env())
	if _, body := get(t, p.debug+"/stats"); !strings.Contains(body,
		"certs.load_attempts: 1\ncerts.load_failures: 0\ncerts.num_values: 2\n") {
		t.Errorf("the first reading is not counted:\n%s", body)
	}
	wrong := l.ca.Issue("localhost")
	certtest.WriteFile(t, l.path("tls.key"), wrong.Key)
	await.True(t, "the wrong key shows in the statistics", func() bool {
		_, body := get(t, p.debug+"/stats?format=json")
		return strings.Contains(body, `"ratelimit_server.tls.files_rejected": 1`)
	})
	p.log.await(t, "not the key of", nil)
	if _, body := get(t, p.debug+"/stats"); strings.Contains(body, "certs.load_failures: 0\n") {
		t.Errorf("a reading that failed is not counted:\n%s", body)
	}
	if _, err := ask(p.grpc, l.client(nil)); err != nil {
		t.Errorf("with a wrong key there: %v", err)
	}
	certtest.WriteFile(t, l.path("tls.key"), l.last.Key)
	await.True(t, "the right key ends that", func() bool {
		_, body := get(t, p.debug+"/stats?format=json")
		return strings.Contains(body, `"ratelimit_server.tls.files_rejected": 0`)
	})
})

var _ = effect("GRPC_CLIENT_TLS_CACERT", func(t *testing.T) {
	l := newLock(t)
	next, expired := certtest.NewCA(t, "next", time.Hour), certtest.NewCA(t, "expired", -time.Minute)
	bundle := certtest.WriteFile(t, l.path("clients.crt"), append(append([]byte{}, l.ca.PEM...), expired.PEM...))
	p := start(t, `[{key: k, @9/y}]`, l.env("GRPC_CLIENT_TLS_CACERT", bundle))
	ours, late, theirs := l.ca.Issue("envoy.test"), expired.Issue("envoy.test"), next.Issue("envoy.test")
	f := func(pair *certtest.Pair, welcome bool, what string) {
		t.Helper()
		if _, err := ask(p.grpc, l.client(pair)); (err == nil) != welcome {
			t.Errorf("%s: %v", what, err)
		}
	}
	f(&ours, true, "a client of ours")
	f(nil, false, "a client without certificate")
	f(&late, false, "a client of an authority that has expired")
	f(&theirs, false, "a client of another authority")
	if out, err := command(nil, "client", "-dial_string", p.grpc, "-domain", "d", "-descriptors", "k=v",
		"-grpc-use-tls",
		"-grpc-server-ca-file", l.path("ca.crt"), "-grpc-cert-file", l.path("tls.crt"), "-grpc-key-file",
		l.path("tls.key")).CombinedOutput(); err != nil {
		t.Errorf("the client sub-command: %v\n%s", err, out)
	}
	// The roots are followed: the other authority is let in, ours is not any more.
	certtest.WriteFile(t, bundle, next.PEM)
	await.True(t, "the new authority's client is let in",
		func() bool { _, err := ask(p.grpc, l.client(&theirs)); return err == nil })
	f(&ours, false, "a client of the authority that was replaced")
})

var _ = effect("GRPC_CLIENT_TLS_SAN", func(t *testing.T) {
	l := newLock(t)
	p := start(t, `[{key: k, @9/y}]`,
		l.env("GRPC_CLIENT_TLS_CACERT", l.path("ca.crt"), "GRPC_CLIENT_TLS_SAN", "envoy.mesh.test"))
	for name, welcome := range map[string]bool{"envoy.mesh.test": true, "*.mesh.test": true, "mesh.test": false,
		"other.test": false} {
		pair := l.ca.Issue(name)
		if _, err := ask(p.grpc, l.client(&pair)); (err == nil) != welcome {
			t.Errorf("a client called %s: %v", name, err)
		}
	}
})

var _ = effect("GRPC_UDS GRPC_UDS_MODE", func(t *testing.T) {
	for octal, want := range map[string]os.FileMode{"0600": 0o600, "777": 0o777} {
		path := filepath.Join(t.TempDir(), "gate.sock")
		p := start(t, `[{key: k, @9/y}]`, map[string]string{"GRPC_UDS": path, "GRPC_UDS_MODE": octal})
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("mode %v, %v, want %v", info.Mode(), err, want)
		}
		p.grpc = "unix:" + path
		decide1(t, p.dial(t), "k", "v")
	}
})

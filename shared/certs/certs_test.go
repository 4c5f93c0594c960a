package certs

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gatehouse/shared/await"
	"gatehouse/shared/certs/certtest"
	"gatehouse/shared/logtest"
	"gatehouse/shared/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, f Files, log io.Writer) *Store {
	t.Helper()
	s, err := Open(f, slog.New(slog.NewTextHandler(log, nil)))
	must.Succeed(t, err)
	t.Cleanup(s.Close)
	return s
}

// shake runs a handshake over loopback and one byte each way, and returns what either end saw.
func shake(t *testing.T, server, client *tls.Config) (seen tls.ConnectionState, serverErr, clientErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		raw, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer raw.Close()
		raw.SetDeadline(time.Now().Add(20 * time.Second))
		c := tls.Server(raw, server)
		defer c.Close()
		b := make([]byte, 1)
		if _, err = io.ReadFull(c, b); err == nil {
			_, err = c.Write(b)
		}
		done <- err
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	must.Succeed(t, err)
	defer raw.Close()
	raw.SetDeadline(time.Now().Add(20 * time.Second))
	c := tls.Client(raw, client)
	defer c.Close()
	if _, clientErr = c.Write([]byte{1}); clientErr == nil {
		_, clientErr = io.ReadFull(c, make([]byte, 1))
	}
	seen = c.ConnectionState()
	raw.Close()
	return seen, <-done, clientErr
}

func serial(t *testing.T, cs tls.ConnectionState) string {
	t.Helper()
	if len(cs.PeerCertificates) == 0 {
		t.Fatal("no certificate was shown")
	}
	return cs.PeerCertificates[0].SerialNumber.String()
}

func serialOf(t *testing.T, p certtest.Pair) string { return p.TLS(t).Leaf.SerialNumber.String() }

// TestServer_clients tries which clients are let in.
func TestServer_clients(t *testing.T) {
	t.Parallel()
	ours, other, expired := certtest.NewCA(t, "ours", time.Hour), certtest.NewCA(t, "other", time.Hour),
		certtest.NewCA(t, "expired", -time.Minute)
	dir := t.TempDir()
	cert, key := ours.Issue("server.test").Write(t, dir)
	roots := certtest.WriteFile(t, filepath.Join(dir, "ca.crt"), append(append([]byte{}, ours.PEM...), expired.PEM...))
	f := func(ca, name string, with *certtest.Pair, refusal string) {
		t.Helper()
		s := open(t, Files{Cert: cert, Key: key, CA: ca}, io.Discard)
		client := &tls.Config{RootCAs: ours.Pool(), ServerName: "server.test"}
		if with != nil {
			pair := with.TLS(t)
			client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return &pair, nil
			}
		}
		_, serverErr, clientErr := shake(t, s.Server(name, "h2"), client)
		if refusal == "" && (serverErr != nil || clientErr != nil) {
			t.Errorf("server: %v, client: %v", serverErr, clientErr)
		}
		if refusal != "" && (serverErr == nil || clientErr == nil || !strings.Contains(serverErr.Error(), refusal)) {
			t.Errorf("server: %v, client: %v; want the server to say %q", serverErr, clientErr, refusal)
		}
	}
	envoy, wild, stranger, late := ours.Issue("envoy.test"), ours.Issue("*.mesh.test"), other.Issue("envoy.test"),
		expired.Issue("envoy.test")
	serverOnly, past := ours.IssueServer("envoy.test"), ours.IssueUntil(time.Now().Add(-time.Minute), "envoy.test")
	f("", "", nil, "")
	f("", "", &stranger, "")
	f(roots, "", &envoy, "")
	f(roots, "", nil, "didn't provide a certificate")
	f(roots, "", &stranger, "unknown authority")
	f(roots, "", &late, "expired")
	f(roots, "", &past, "expired")
	f(roots, "", &serverOnly, "incompatible key usage")
	f(roots, "envoy.test", &envoy, "")
	f(roots, "ENVOY.test", &envoy, "")
	f(roots, "other.test", &envoy, "certificate is valid for envoy.test, not other.test")
	f(roots, "a.mesh.test", &wild, "")
	f(roots, "a.b.mesh.test", &wild, "not a.b.mesh.test")
}

// TestServer_resumed: a session that was good once is not good for ever.
func TestServer_resumed(t *testing.T) {
	t.Parallel()
	ca, next := certtest.NewCA(t, "ca", time.Hour), certtest.NewCA(t, "next", time.Hour)
	dir := t.TempDir()
	cert, key := ca.Issue("server.test").Write(t, dir)
	s := open(t, Files{Cert: cert, Key: key, CA: ca.Write(t, dir)}, io.Discard)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		name := "envoy.test"
		server := s.Server(name)
		client := &tls.Config{
			RootCAs: ca.Pool(), ServerName: "server.test", MaxVersion: version,
			Certificates: []tls.Certificate{ca.Issue(name).TLS(t)}, ClientSessionCache: tls.NewLRUClientSessionCache(1),
		}
		for i := range 2 {
			cs, serverErr, clientErr := shake(t, server, client)
			if serverErr != nil || clientErr != nil || cs.DidResume != (i == 1) {
				t.Fatalf("handshake %d: resumed %v, %v, %v", i, cs.DidResume, serverErr, clientErr)
			}
		}
		strict := s.Server("other.test")
		strict.SetSessionTicketKeys([][32]byte{{1}})
		server.SetSessionTicketKeys([][32]byte{{1}})
		client.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		if _, _, err := shake(t, server, client); err != nil {
			t.Fatal(err)
		}
		if _, err, _ := shake(t, strict, client); err == nil || !strings.Contains(err.Error(), "not other.test") {
			t.Errorf("TLS %x: a session resumed under another name: %v", version, err)
		}
	}
	// And without its root no session is resumed.
	server := s.Server("")
	client := &tls.Config{
		RootCAs: ca.Pool(), ServerName: "server.test",
		Certificates:       []tls.Certificate{ca.Issue("envoy.test").TLS(t)},
		ClientSessionCache: tls.NewLRUClientSessionCache(1),
	}
	if _, _, err := shake(t, server, client); err != nil {
		t.Fatal(err)
	}
	next.Write(t, dir)
	await.True(t, "a client of the old authority is refused", func() bool {
		_, err, _ := shake(t, server, client)
		return err != nil
	})
}

func TestServer_versions(t *testing.T) {
	t.Parallel()
	ca := certtest.NewCA(t, "ca", time.Hour)
	cert, key := ca.Issue("server.test").Write(t, t.TempDir())
	s := open(t, Files{Cert: cert, Key: key}, io.Discard)
	for version, want := range map[uint16]bool{tls.VersionTLS11: false, tls.VersionTLS12: true,
		tls.VersionTLS13: true} {
		cs, _, err := shake(t, s.Server("", "h2"), &tls.Config{
			RootCAs: ca.Pool(), ServerName: "server.test", MinVersion: version, MaxVersion: version,
			NextProtos: []string{"h2"},
		})
		if (err == nil) != want || want && cs.NegotiatedProtocol != "h2" {
			t.Errorf("TLS %x: %v, protocol %q", version, err, cs.NegotiatedProtocol)
		}
	}
}

// TestClient tries which servers are believed.
func TestClient(t *testing.T) {
	t.Parallel()
	ours, other, expired := certtest.NewCA(t, "ours", time.Hour), certtest.NewCA(t, "other", time.Hour),
		certtest.NewCA(t, "expired", -time.Minute)
	dir := t.TempDir()
	roots := certtest.WriteFile(t, filepath.Join(dir, "ca.crt"), append(append([]byte{}, ours.PEM...), expired.PEM...))
	f := func(of *certtest.CA, name string, skip bool, refusal string) {
		t.Helper()
		s := open(t, Files{CA: roots, SystemRoots: true}, io.Discard)
		server := &tls.Config{Certificates: []tls.Certificate{of.Issue("server.test", "127.0.0.1").TLS(t)}}
		_, _, err := shake(t, server, s.Client(name, skip))
		if refusal == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), refusal) {
			t.Errorf("%s, skip %v: %v, want %q", name, skip, err, refusal)
		}
	}
	f(ours, "server.test", false, "")
	f(ours, "127.0.0.1", false, "")
	f(ours, "127.0.0.2", false, "not 127.0.0.2")
	f(ours, "other.test", false, "certificate is valid for server.test, not other.test")
	f(ours, "", false, "no server name")
	f(ours, "other.test", true, "")
	f(ours, "", true, "")
	f(other, "server.test", false, "unknown authority")
	f(other, "server.test", true, "unknown authority")
	f(expired, "server.test", true, "expired")
}

// TestClient_certificateIsCurrent: the certificate shown is the one that the files hold now.
func TestClient_certificateIsCurrent(t *testing.T) {
	t.Parallel()
	ca := certtest.NewCA(t, "ca", time.Hour)
	dir := t.TempDir()
	first, second := ca.Issue("a.test"), ca.Issue("b.test")
	cert, key := first.Write(t, dir)
	s := open(t, Files{Cert: cert, Key: key, CA: ca.Write(t, dir)}, io.Discard)
	client := s.Client("server.test", false)
	shown := func() string {
		var got string
		_, _, err := shake(t, &tls.Config{
			Certificates: []tls.Certificate{ca.Issue("server.test").TLS(t)}, ClientAuth: tls.RequireAndVerifyClientCert,
			ClientCAs: ca.Pool(), VerifyConnection: func(cs tls.ConnectionState) error {
				got = serial(t, cs)
				return nil
			},
		}, client)
		must.Succeed(t, err)
		return got
	}
	if got := shown(); got != serialOf(t, first) {
		t.Errorf("shown %s", got)
	}
	second.Write(t, dir)
	await.True(t, "the new certificate is shown", func() bool { return shown() == serialOf(t, second) })
}

// TestReload goes through the ways in which files change. Handshakes go on all the while, and none fails.
func TestReload(t *testing.T) {
	t.Parallel()
	ca := certtest.NewCA(t, "ca", time.Hour)
	dir := t.TempDir()
	data := func(version string, p certtest.Pair) {
		must.Succeed(t, os.Mkdir(filepath.Join(dir, version), 0o755))
		p.Write(t, filepath.Join(dir, version))
	}
	link := func(to, name string) {
		must.Succeed(t, os.Symlink(to, filepath.Join(dir, "next")))
		must.Succeed(t, os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, name)))
	}
	first := ca.Issue("server.test")
	data("..1", first)
	link("..1", "..data")
	link("..data/tls.crt", "tls.crt")
	link("..data/tls.key", "tls.key")
	link(dir, "outer") // a symlink on the way, which no directory's notifications report
	cert, key := filepath.Join(dir, "outer", "tls.crt"), filepath.Join(dir, "outer", "tls.key")
	var log logtest.Buffer
	s := open(t, Files{Cert: cert, Key: key}, &log)
	server := s.Server("", "h2")
	shown := func() string {
		cs, serverErr, clientErr := shake(t, server, &tls.Config{RootCAs: ca.Pool(), ServerName: "server.test"})
		if serverErr != nil || clientErr != nil {
			t.Fatalf("a handshake failed: %v, %v", serverErr, clientErr)
		}
		return serial(t, cs)
	}
	until := func(what string, p certtest.Pair) {
		t.Helper()
		start := time.Now()
		await.True(t, what, func() bool { return shown() == serialOf(t, p) })
		t.Logf("%s: %v", what, time.Since(start))
	}
	until("at first", first)

	next := ca.Issue("server.test")
	data("..2", next)
	link("..2", "..data")
	until("a Kubernetes swap", next)

	next = ca.Issue("server.test")
	must.Succeed(t, os.WriteFile(cert, next.Cert, 0o600))
	shown() // with the old pair: the key is still to come
	must.Succeed(t, os.WriteFile(key, next.Key, 0o600))
	until("written in place, one after the other", next)

	next = ca.Issue("server.test")
	must.Succeed(t, os.Remove(filepath.Join(dir, "tls.crt")))
	must.Succeed(t, os.Remove(filepath.Join(dir, "tls.key")))
	shown()
	next.Write(t, dir)
	until("removed and made anew", next)

	next = ca.Issue("server.test")
	elsewhere := t.TempDir()
	next.Write(t, elsewhere)
	link(elsewhere, "outer")
	until("a symlink higher up", next)

	before := strings.Count(log.String(), "not the key of") // a slow machine may have met one in between
	wrong := ca.Issue("server.test")
	certtest.WriteFile(t, filepath.Join(elsewhere, "tls.key"), wrong.Key)
	await.True(t, "the mismatch is told", func() bool { return strings.Contains(s.State().Error, "not the key of") })
	if got := shown(); got != serialOf(t, next) {
		t.Errorf("with a wrong key there, %s is shown", got)
	}
	certtest.WriteFile(t, filepath.Join(elsewhere, "tls.crt"), []byte("junk"))
	await.True(t, "the junk is told", func() bool {
		return strings.Contains(s.State().Error, "no PEM certificate in it")
	})
	if n := strings.Count(log.String(), "not the key of") - before; n != 1 {
		t.Errorf("the mismatch was logged %d times", n)
	}
	next.Write(t, elsewhere)
	await.True(t, "what was good is back", func() bool { return s.State().Error == "" })
	if end := s.State().NotAfter; end.Before(time.Now()) {
		t.Errorf("ends %v", end)
	}
}

func TestFiles_Check(t *testing.T) {
	t.Parallel()
	ca := certtest.NewCA(t, "ca", time.Hour)
	dir := t.TempDir()
	cert, key := ca.Issue("a.test").Write(t, dir)
	_, other := ca.Issue("a.test").Write(t, t.TempDir())
	junk := certtest.WriteFile(t, filepath.Join(dir, "junk"), []byte("junk\n"))
	half := certtest.WriteFile(t, filepath.Join(dir, "half"),
		append(append([]byte{}, ca.PEM...), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"...))
	none := filepath.Join(dir, "none")
	f := func(files Files, want ...string) {
		t.Helper()
		errs := files.Check()
		if len(errs) != len(want) {
			t.Errorf("%v, want %q", errs, want)
			return
		}
		for i, e := range errs {
			if !strings.Contains(e.Error(), want[i]) || !strings.Contains(e.Error(), e.Path) {
				t.Errorf("%v, want %q", e, want[i])
			}
		}
		s, err := Open(files, nil)
		if (err == nil) != (len(want) == 0) {
			t.Errorf("Open: %v", err)
		}
		if err == nil {
			s.Close()
		} else if _, ok := errors.AsType[*Error](err); !ok {
			t.Errorf("Open: %T", err)
		}
	}
	f(Files{})
	f(Files{Cert: cert, Key: key})
	f(Files{Cert: cert, Key: key, CA: cert})
	f(Files{Cert: cert}, "without its key")
	f(Files{Key: key}, "without its certificate")
	f(Files{Cert: cert, Key: other}, "not the key of "+cert)
	f(Files{Cert: cert, Key: cert}, "not the key of "+cert)
	f(Files{Cert: key, Key: key}, "no PEM certificate")
	f(Files{Cert: none, Key: none}, "no such file", "no such file")
	f(Files{Cert: cert, Key: key, CA: junk}, "no PEM certificate")
	f(Files{CA: half}, "certificate 2: x509")
	f(Files{CA: "/dev/zero"}, "not a regular file")
	f(Files{CA: dir}, "not a regular file")
}

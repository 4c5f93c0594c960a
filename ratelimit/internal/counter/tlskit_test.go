package counter

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"gatehouse/shared/certs"
	"gatehouse/shared/certs/certtest"
)

// tlsFiles is a store's end in dir, and an authority that the client is to believe.
type tlsFiles struct{ cert, key, ca string }

func newTLSFiles(t testing.TB, ca *certtest.CA, pair certtest.Pair) tlsFiles {
	t.Helper()
	dir := t.TempDir()
	cert, key := pair.Write(t, dir)
	return tlsFiles{cert, key, ca.Write(t, dir)}
}

// trusting is a client that believes the authority, follows the files, and shows a pair if it has one.
func trusting(t testing.TB, f certs.Files, skipName bool) func(host string) *tls.Config {
	t.Helper()
	f.SystemRoots = true
	store, err := certs.Open(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return func(host string) *tls.Config { return store.Client(host, skipName) }
}

// localhost is a server's address by name: what a certificate is for.
func localhost(addr string) string { return strings.Replace(addr, "127.0.0.1", "localhost", 1) }

// testTLS tries which servers a kind of store believes, and what it shows them. open connects to addr and counts once.
func testTLS(t *testing.T, server func(f tlsFiles, clientCA string) string, open func(addr string, config func(string) *tls.Config) error) {
	ca, other := certtest.NewCA(t, "ca", time.Hour), certtest.NewCA(t, "other", time.Hour)
	f := func(what, addr string, config func(string) *tls.Config, want string) {
		t.Helper()
		err := open(addr, config)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	here := newTLSFiles(t, ca, ca.Issue("localhost"))
	believes := certs.Files{CA: here.ca}
	addr := server(here, "")
	f("by its name", localhost(addr), trusting(t, believes, false), "")
	f("by an address that it has no certificate for", addr, trusting(t, believes, false), "127.0.0.1")
	f("the same, any name", addr, trusting(t, believes, true), "")
	f("another authority", localhost(addr), trusting(t, certs.Files{CA: other.Write(t, t.TempDir())}, false), "unknown authority")
	f("another authority, any name", localhost(addr), trusting(t, certs.Files{CA: other.Write(t, t.TempDir())}, true), "unknown authority")

	late := newTLSFiles(t, ca, ca.IssueUntil(time.Now().Add(-time.Minute), "localhost"))
	addr = server(late, "")
	f("expired", localhost(addr), trusting(t, believes, false), "expired")
	f("expired, any name", localhost(addr), trusting(t, believes, true), "expired")

	// A server that refuses our certificate says so after the handshake, or just hangs up.
	const refused = "store unavailable"
	ours := newTLSFiles(t, ca, ca.Issue("ratelimit"))
	addr = server(here, here.ca)
	f("without the certificate that is asked for", localhost(addr), trusting(t, believes, false), refused)
	f("with it", localhost(addr), trusting(t, certs.Files{CA: here.ca, Cert: ours.cert, Key: ours.key}, false), "")
	theirs := newTLSFiles(t, other, other.Issue("ratelimit"))
	f("with one of another authority", localhost(addr), trusting(t, certs.Files{CA: here.ca, Cert: theirs.cert, Key: theirs.key}, false), refused)
}

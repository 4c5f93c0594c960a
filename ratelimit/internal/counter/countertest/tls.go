package countertest

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"gatehouse/shared/certs"
	"gatehouse/shared/certs/certtest"
)

// TLSFiles are the names of the files with a store's certificate and key, and with the certificate authority that the
// client trusts.
type TLSFiles struct{ Cert, Key, CA string }

// NewTLSFiles writes a certificate with its key, and the certificate of the authority, to files that are removed when t
// ends.
func NewTLSFiles(t testing.TB, ca *certtest.CA, pair certtest.Pair) TLSFiles {
	t.Helper()
	dir := t.TempDir()
	cert, key := pair.Write(t, dir)
	return TLSFiles{cert, key, ca.Write(t, dir)}
}

// Trusting returns a function that makes a client's TLS config for a host. The client trusts the authority in f,
// follows changes of the files, and presents the certificate in f if there is one. skipName accepts certificates for
// any name.
func Trusting(t testing.TB, f certs.Files, skipName bool) func(host string) *tls.Config {
	t.Helper()
	f.SystemRoots = true
	store, err := certs.Open(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return func(host string) *tls.Config { return store.Client(host, skipName) }
}

// Localhost returns the address of a local server with the name localhost, which is the name in the tests'
// certificates.
func Localhost(addr string) string { return strings.Replace(addr, "127.0.0.1", "localhost", 1) }

// RunTLS tests which servers a store trusts, and which certificate it presents. server starts a server that requires a
// client certificate of the authority clientCA, if that is not empty, and returns the server's address. open connects a
// store to addr and counts one hit.
func RunTLS(t *testing.T, server func(f TLSFiles, clientCA string) string, open func(addr string,
	config func(string) *tls.Config) error) {
	ca, other := certtest.NewCA(t, "ca", time.Hour), certtest.NewCA(t, "other", time.Hour)
	f := func(what, addr string, config func(string) *tls.Config, want string) {
		t.Helper()
		err := open(addr, config)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	here := NewTLSFiles(t, ca, ca.Issue("localhost"))
	believes := certs.Files{CA: here.CA}
	addr := server(here, "")
	f("by its name", Localhost(addr), Trusting(t, believes, false), "")
	f("by an address that it has no certificate for", addr, Trusting(t, believes, false), "127.0.0.1")
	f("the same, any name", addr, Trusting(t, believes, true), "")
	f("another authority", Localhost(addr), Trusting(t, certs.Files{CA: other.Write(t, t.TempDir())}, false),
		"unknown authority")
	f("another authority, any name", Localhost(addr), Trusting(t, certs.Files{CA: other.Write(t, t.TempDir())}, true),
		"unknown authority")

	late := NewTLSFiles(t, ca, ca.IssueUntil(time.Now().Add(-time.Minute), "localhost"))
	addr = server(late, "")
	f("expired", Localhost(addr), Trusting(t, believes, false), "expired")
	f("expired, any name", Localhost(addr), Trusting(t, believes, true), "expired")

	// A server that refuses the client's certificate reports that after the handshake, or only closes the connection.
	const refused = "store unavailable"
	ours := NewTLSFiles(t, ca, ca.Issue("ratelimit"))
	addr = server(here, here.CA)
	f("without the certificate that is asked for", Localhost(addr), Trusting(t, believes, false), refused)
	f("with it", Localhost(addr), Trusting(t, certs.Files{CA: here.CA, Cert: ours.Cert, Key: ours.Key}, false), "")
	theirs := NewTLSFiles(t, other, other.Issue("ratelimit"))
	f("with one of another authority", Localhost(addr),
		Trusting(t, certs.Files{CA: here.CA, Cert: theirs.Cert, Key: theirs.Key}, false), refused)
}

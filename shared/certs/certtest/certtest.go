// Package certtest makes certificate authorities and certificates for tests.
package certtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA is a certificate authority for one test.
type CA struct {
	t    testing.TB
	cert *x509.Certificate
	key  crypto.Signer
	// PEM is the authority's root certificate.
	PEM []byte
}

// NewCA makes an authority whose root is valid from an hour ago until validFor from now. validFor may be negative, for
// a root that has expired.
func NewCA(t testing.TB, name string, validFor time.Duration) *CA {
	t.Helper()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(min(validFor, 0) - time.Hour),
		NotAfter: time.Now().Add(validFor), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	ca := &CA{t: t, key: newKey(t)}
	der := sign(t, template, template, ca.key.Public(), ca.key)
	var err error
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	ca.PEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return ca
}

// Pair is a certificate and its private key, in PEM.
type Pair struct{ Cert, Key []byte }

// Issue makes a certificate that is valid for an hour, for the given DNS names and IP addresses, for both clients and
// servers. The first name is also its common name.
func (ca *CA) Issue(names ...string) Pair {
	ca.t.Helper()
	return ca.issue(names, time.Now().Add(time.Hour), x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
}

// IssueUntil does what Issue does, for a certificate that expires at the time end.
func (ca *CA) IssueUntil(end time.Time, names ...string) Pair {
	ca.t.Helper()
	return ca.issue(names, end, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
}

// IssueServer does what Issue does, for a certificate that is valid for servers only.
func (ca *CA) IssueServer(names ...string) Pair {
	ca.t.Helper()
	return ca.issue(names, time.Now().Add(time.Hour), x509.ExtKeyUsageServerAuth)
}

func (ca *CA) issue(names []string, end time.Time, usage ...x509.ExtKeyUsage) Pair {
	ca.t.Helper()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: names[0]}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: usage,
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	key := newKey(ca.t)
	der := sign(ca.t, template, ca.cert, key.Public(), ca.key)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		ca.t.Fatal(err)
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}
}

func newKey(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) []byte {
	t.Helper()
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// Pool returns a pool that has only the authority's root.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// TLS returns the pair as a tls.Certificate.
func (p Pair) TLS(t testing.TB) tls.Certificate {
	t.Helper()
	c, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Write writes the pair into dir as tls.crt and tls.key, replacing each file by a rename, and returns their paths.
func (p Pair) Write(t testing.TB, dir string) (cert, key string) {
	t.Helper()
	return WriteFile(t, filepath.Join(dir, "tls.crt"), p.Cert), WriteFile(t, filepath.Join(dir, "tls.key"), p.Key)
}

// Write writes the root into dir as ca.crt, replacing the file by a rename, and returns its path.
func (ca *CA) Write(t testing.TB, dir string) string {
	t.Helper()
	return WriteFile(t, filepath.Join(dir, "ca.crt"), ca.PEM)
}

// WriteFile writes text to a file, replacing it by a rename, and returns its path.
func WriteFile(t testing.TB, path string, text []byte) string {
	t.Helper()
	if err := os.WriteFile(path+".next", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".next", path); err != nil {
		t.Fatal(err)
	}
	return path
}

package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"
)

// minVersion is the oldest version of TLS that clients and servers accept.
const minVersion = tls.VersionTLS12

// Server returns the tls.Config for a listener. Each handshake uses the present contents of the files; open connections
// are not affected by changes. If Files has a CA, each client must present a certificate for clients that leads to one
// of its roots and, unless clientName is empty, is valid for that DNS name (wildcards in the certificate count). The
// same is required of resumed sessions. protocols are those for ALPN, best first.
func (s *Store) Server(clientName string, protocols ...string) *tls.Config {
	type built struct {
		from   *material
		config *tls.Config
	}
	var last atomic.Pointer[built]
	current := func() *tls.Config {
		m := s.now.Load()
		if b := last.Load(); b != nil && b.from == m {
			return b.config
		}
		c := &tls.Config{MinVersion: minVersion, NextProtos: protocols, Certificates: []tls.Certificate{*m.pair}}
		if m.roots != nil {
			c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, m.roots
			c.VerifyConnection = func(cs tls.ConnectionState) error { return verifyClient(cs, m.roots, clientName) }
		}
		last.Store(&built{m, c})
		return c
	}
	return &tls.Config{
		MinVersion:         minVersion,
		NextProtos:         protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return current(), nil },
		// GetCertificate is set only for callers that check whether a Config has a certificate. Handshakes use the
		// certificate of the Config that GetConfigForClient returns.
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.now.Load().pair, nil },
	}
}

// verifyClient checks that a client's certificate is valid for name, unless name is empty. In a resumed session it also
// verifies the chain of the certificate, since crypto/tls does so only in a new session.
func verifyClient(cs tls.ConnectionState, roots *x509.CertPool, name string) error {
	if len(cs.PeerCertificates) == 0 {
		return errors.New("certs: the client showed no certificate")
	}
	if cs.DidResume {
		if err := verify(cs, roots, x509.ExtKeyUsageClientAuth); err != nil {
			return err
		}
	}
	if name == "" {
		return nil
	}
	if err := cs.PeerCertificates[0].VerifyHostname(name); err != nil {
		return fmt.Errorf("certs: the client's certificate: %w", err)
	}
	return nil
}

func verify(cs tls.ConnectionState, roots *x509.CertPool, usage x509.ExtKeyUsage) error {
	between := x509.NewCertPool()
	for _, c := range cs.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{usage},
	})
	if err != nil {
		return fmt.Errorf("certs: %w",
			&tls.CertificateVerificationError{UnverifiedCertificates: cs.PeerCertificates, Err: err})
	}
	return nil
}

// Client returns the tls.Config for connections to one server. Each handshake uses the present contents of the files:
// it presents the program's own certificate, if there is one and the server requests it, and verifies the server's
// certificate with the roots. serverName is the name or IP address for which the server's certificate must be valid; it
// is also sent to the server (SNI). With skipName any name is accepted, and only the chain is verified.
func (s *Store) Client(serverName string, skipName bool) *tls.Config {
	return &tls.Config{
		MinVersion: minVersion,
		ServerName: serverName,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if pair := s.now.Load().pair; pair != nil {
				return pair, nil
			}
			return &tls.Certificate{}, nil // no certificate; the server decides whether that is accepted
		},
		// Verify in VerifyConnection instead: RootCAs would keep the present roots for all future connections.
		InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) == 0 {
				return errors.New("certs: the server showed no certificate")
			}
			if err := verify(cs, s.now.Load().roots, x509.ExtKeyUsageServerAuth); err != nil || skipName {
				return err
			}
			if serverName == "" {
				return errors.New("certs: there is no server name to verify")
			}
			if err := cs.PeerCertificates[0].VerifyHostname(serverName); err != nil {
				return fmt.Errorf("certs: the server's certificate: %w", err)
			}
			return nil
		},
	}
}

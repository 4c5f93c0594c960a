// Package grpctls uses the certificates of package certs for gRPC connections, as client and as server.
package grpctls

import (
	"context"
	"crypto/tls"
	"net"

	"google.golang.org/grpc/credentials"

	"gatehouse/shared/certs"
)

// Protocol is the protocol that ALPN negotiates: gRPC is HTTP/2.
const Protocol = "h2"

// Server returns credentials for a config of certs.Store.Server. failed is called for each failed handshake, which
// grpc-go itself does not report.
func Server(c *tls.Config, failed func(peer net.Addr, err error)) credentials.TransportCredentials {
	return &server{credentials.NewTLS(c), failed}
}

type server struct {
	credentials.TransportCredentials
	failed func(net.Addr, error)
}

// ServerHandshake implements credentials.TransportCredentials.
func (s *server) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := s.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		s.failed(raw.RemoteAddr(), err)
	}
	return conn, info, err
}

// Clone implements credentials.TransportCredentials.
func (s *server) Clone() credentials.TransportCredentials {
	return &server{s.TransportCredentials.Clone(), s.failed}
}

// Client returns credentials with the certificate and roots that store has at each handshake. The server must prove the
// host part of the connection's authority: of the dialled address, or of grpc.WithAuthority.
func Client(store *certs.Store) credentials.TransportCredentials {
	return client{credentials.NewTLS(nil), store}
}

// client is the credentials of grpc-go's package credentials, with a client handshake of its own.
type client struct {
	credentials.TransportCredentials
	store *certs.Store
}

// ClientHandshake implements credentials.TransportCredentials.
func (c client) ClientHandshake(ctx context.Context, authority string,
	raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	name, _, err := net.SplitHostPort(authority)
	if err != nil {
		name = authority // an authority without a port
	}
	return credentials.NewTLS(c.store.Client(name, false)).ClientHandshake(ctx, authority, raw)
}

// Clone implements credentials.TransportCredentials.
func (c client) Clone() credentials.TransportCredentials { return c }

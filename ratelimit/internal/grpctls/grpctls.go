// Package grpctls uses the certificates of package certs for gRPC connections, as client and as server.
package grpctls

import (
	"context"
	"crypto/tls"
	"errors"
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
func Client(store *certs.Store) credentials.TransportCredentials { return client{store} }

type client struct{ store *certs.Store }

// ClientHandshake implements credentials.TransportCredentials.
func (c client) ClientHandshake(ctx context.Context, authority string,
	raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	name, _, err := net.SplitHostPort(authority)
	if err != nil {
		name = authority // an authority without a port
	}
	return credentials.NewTLS(c.store.Client(name, false)).ClientHandshake(ctx, authority, raw)
}

// ServerHandshake implements credentials.TransportCredentials; a client has no server side.
func (c client) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("grpctls: the credentials of a client can't serve")
}

// Info implements credentials.TransportCredentials.
func (c client) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (c client) Clone() credentials.TransportCredentials { return c }

// OverrideServerName implements credentials.TransportCredentials.
func (c client) OverrideServerName(string) error {
	return errors.New("grpctls: use grpc.WithAuthority")
}

package localserver

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// TLSFiles are PEM files with which the servers of a cluster, or behind sentinels, use TLS: between each other, and on
// a second port for clients. Their first port remains without TLS, for the commands of this package.
type TLSFiles struct {
	// Cert and Key are used by each server, and CA is the authority that each trusts.
	Cert, Key, CA string
}

// used reports whether there are any files.
func (f TLSFiles) used() bool { return f.Cert != "" }

// lines returns the lines that turn on TLS in a server's configuration. It chooses the server's TLS port once, because
// other servers remember the port when this one is restarted.
func (f TLSFiles) lines(dir string) ([]string, error) {
	if !f.used() {
		return nil, nil
	}
	file := filepath.Join(dir, "tlsport")
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		text = []byte(strconv.Itoa(port))
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	return []string{
		"tls-port " + string(text), "tls-cert-file " + f.Cert, "tls-key-file " + f.Key, "tls-ca-cert-file " + f.CA,
		"tls-replication yes", "tls-auth-clients no",
	}, nil
}

// TLSAddr returns the address at which a server with TLSFiles accepts TLS.
func (s *Server) TLSAddr() (string, error) {
	port, err := os.ReadFile(filepath.Join(s.dir, "tlsport"))
	if err != nil {
		return "", fmt.Errorf("localserver: %w", err)
	}
	return net.JoinHostPort("127.0.0.1", string(port)), nil
}

// TLSURL returns what URL returns, but with the ports that accept TLS.
func (s *SentinelSet) TLSURL() (string, error) {
	list, err := tlsAddresses(s.Sentinels)
	return MasterName + "," + list, err
}

// TLSURL returns what URL returns, but with the ports that accept TLS.
func (c *Cluster) TLSURL() (string, error) { return tlsAddresses(c.Nodes) }

func tlsAddresses(servers []*Server) (string, error) {
	var all []string
	for _, s := range servers {
		addr, err := s.TLSAddr()
		if err != nil {
			return "", err
		}
		all = append(all, addr)
	}
	return strings.Join(all, ","), nil
}

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

// TLSFiles are the PEM files with which servers of a topology speak TLS, to one another and on a second
// port to clients. The first port stays in clear, for our own commands.
type TLSFiles struct {
	// Cert and Key are those of each server, CA what each believes.
	Cert, Key, CA string
}

// used says whether there is any.
func (f TLSFiles) used() bool { return f.Cert != "" }

// lines are a server's lines of configuration. The port is chosen once: others know it by that.
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

// TLSAddr is the address at which a server with TLSFiles speaks TLS.
func (s *Server) TLSAddr() (string, error) {
	port, err := os.ReadFile(filepath.Join(s.dir, "tlsport"))
	if err != nil {
		return "", fmt.Errorf("localserver: %w", err)
	}
	return net.JoinHostPort("127.0.0.1", string(port)), nil
}

// TLSURL is URL with the ports that speak TLS.
func (s *SentinelSet) TLSURL() (string, error) {
	list, err := tlsAddresses(s.Sentinels)
	return MasterName + "," + list, err
}

// TLSURL is URL with the ports that speak TLS.
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

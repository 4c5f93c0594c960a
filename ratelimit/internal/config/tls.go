package config

import (
	"path/filepath"
	"strings"

	"gatehouse/shared/certs"
	"gatehouse/shared/settings"
)

// TLS has the settings that protect the gRPC listener by TLS.
type TLS struct {
	// true: the gRPC listener speaks TLS (1.2 or later) only.
	On bool `env:"GRPC_SERVER_USE_TLS" envDefault:"false"`
	// PEM file with the server's certificate and the chain to its root; read again when it changes.
	Cert string `env:"GRPC_SERVER_TLS_CERT"`
	// PEM file with the private key of GRPC_SERVER_TLS_CERT; read again when it changes.
	Key string `env:"GRPC_SERVER_TLS_KEY"`
	// PEM file with the roots that client certificates must lead to, read again when it changes. If set, clients
	// without such a certificate are rejected.
	ClientCA string `env:"GRPC_CLIENT_TLS_CACERT"`
	// DNS name that the client's certificate must be valid for; needs GRPC_CLIENT_TLS_CACERT.
	ClientSAN string `env:"GRPC_CLIENT_TLS_SAN"`
}

func (c TLS) Files() certs.Files { return certs.Files{Cert: c.Cert, Key: c.Key, CA: c.ClientCA} }

// noServerCA is a variable that manifests for envoyproxy/ratelimit set, although envoyproxy/ratelimit does not read it
// either.
const noServerCA = "GRPC_SERVER_TLS_CA_CERT"

// checkTLS checks the files of a gRPC listener with TLS. Files that are set for a listener without TLS are allowed:
// manifests mount them before they turn TLS on.
func (c *Config) checkTLS(r *settings.Report) {
	t := c.TLS
	if r.IsSet(noServerCA) {
		r.Warn("%s has no effect, as it has none in envoyproxy/ratelimit; GRPC_CLIENT_TLS_CACERT is the file of "+
			"roots that clients' certificates must lead to", noServerCA)
	}
	if t.ClientSAN != "" {
		if t.ClientCA == "" && t.On {
			r.Wrong("GRPC_CLIENT_TLS_SAN",
				"needs GRPC_CLIENT_TLS_CACERT: without roots no client certificate is asked for")
		}
		if !isDNSName(t.ClientSAN) {
			r.Wrong("GRPC_CLIENT_TLS_SAN",
				"not a DNS name, such as envoy.example.com; wildcards belong into the certificate")
		}
	}
	if !t.On {
		noEffect(r, []string{"GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY"}, "without GRPC_SERVER_USE_TLS=true")
		noEffect(r, []string{"GRPC_CLIENT_TLS_CACERT", "GRPC_CLIENT_TLS_SAN"},
			"without GRPC_SERVER_USE_TLS=true: without TLS no client needs a certificate")
		return
	}
	whole := true
	for _, name := range []string{"GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY"} {
		if !r.IsSet(name) {
			r.Wrong("GRPC_SERVER_USE_TLS", "needs %s, which is not set", name)
			whole = false
		}
	}
	if whole {
		checkFiles(r, t.Files(), "GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "GRPC_CLIENT_TLS_CACERT")
		if filepath.Dir(t.Cert) != filepath.Dir(t.Key) {
			r.Warn(
				"GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY lie in different directories: no single swap renews both")
		}
	}
}

// checkFiles reads certificate files and reports each invalid file under the name of its setting: cert, key or ca.
func checkFiles(r *settings.Report, f certs.Files, cert, key, ca string) {
	names := map[certs.Role]string{certs.Cert: cert, certs.Key: key, certs.CA: ca}
	for _, e := range f.Check() {
		r.Wrong(names[e.Role], "%s", strings.TrimPrefix(e.Error(), e.Path+": "))
	}
}

// isDNSName reports whether s could be a DNS name in a certificate.
func isDNSName(s string) bool {
	for label := range strings.SplitSeq(strings.TrimSuffix(s, "."), ".") {
		if label == "" || strings.ContainsFunc(label, func(c rune) bool {
			return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_')
		}) {
			return false
		}
	}
	return true
}

package config

import (
	"slices"
	"strings"
	"time"

	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/source/xds"
	"gatehouse/shared/certs"
	"gatehouse/shared/settings"
)

// XDS has the settings of the control plane that sends the rules if CONFIG_TYPE is GRPC_XDS_SOTW.
type XDS struct {
	Client xds.Settings
	// key=value,key=value sent to the control plane with CONFIG_GRPC_XDS_NODE_ID, as texts.
	NodeMetadata string `env:"CONFIG_GRPC_XDS_NODE_METADATA"`
	// name:value,name:value sent as headers of each stream. A secret, never shown;
	// CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS_FILE reads it from a file.
	Headers map[string]string `env:"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS" secret:"true"`
	// true: TLS to the control plane.
	TLS bool `env:"CONFIG_GRPC_XDS_SERVER_USE_TLS" envDefault:"false"`
	// PEM file with a client certificate for the control plane; read again when it changes.
	Cert string `env:"CONFIG_GRPC_XDS_CLIENT_TLS_CERT"`
	// PEM file with the private key of CONFIG_GRPC_XDS_CLIENT_TLS_CERT; read again when it changes.
	Key string `env:"CONFIG_GRPC_XDS_CLIENT_TLS_KEY"`
	// PEM file with roots for the control plane's certificate, in addition to the system's; read again when it changes.
	CA string `env:"CONFIG_GRPC_XDS_SERVER_TLS_CACERT"`
	// Largest share of a pause that jitter adds or subtracts: with 0.5, a pause of 10s becomes 5s to 15s.
	RandomFactor float64 `env:"XDS_CLIENT_BACKOFF_RANDOM_FACTOR" envDefault:"0.5" min:"0"`
	// true: pauses before new connections are jittered, so that replicas do not reconnect all at once.
	Jitter bool `env:"XDS_CLIENT_BACKOFF_JITTER" envDefault:"true"`
}

// TypeXDS is the value of CONFIG_TYPE for rules from a control plane instead of files.
const TypeXDS = "GRPC_XDS_SOTW"

// Files returns the certificate files for the connection to the control plane.
func (c XDS) Files() certs.Files {
	return certs.Files{Cert: c.Cert, Key: c.Key, CA: c.CA, SystemRoots: true}
}

// Options returns the settings as package xds takes them.
func (c XDS) Options() xds.Options {
	metadata, _ := pairs(c.NodeMetadata)
	o := xds.Options{Settings: c.Client, Type: rulefile.ResourceType, NodeMetadata: metadata,
		Headers: map[string]string{}}
	for name, value := range c.Headers {
		o.Headers[strings.ToLower(name)] = value
	}
	if c.Jitter {
		o.Jitter = min(c.RandomFactor, 1)
	}
	return o
}

// pairs parses a text such as k=v,k2=v2; each pair is split at its first =. Items without = are not in the map: dropped
// has them.
func pairs(text string) (m map[string]string, dropped []string) {
	m = map[string]string{}
	for _, item := range settings.List(text) {
		if key, value, ok := strings.Cut(item, "="); ok {
			m[key] = value
		} else {
			dropped = append(dropped, item)
		}
	}
	return m, dropped
}

// checkSource checks the settings of the source of rules, and warns about settings that belong to another CONFIG_TYPE.
func (c *Config) checkSource(r *settings.Report) {
	isXDS := c.Rules.Type == TypeXDS
	idle := slices.DeleteFunc(r.Names(), func(name string) bool {
		if isXDS {
			return !strings.HasPrefix(name, "RUNTIME_")
		}
		return !strings.HasPrefix(name, "CONFIG_GRPC_XDS_") && !strings.HasPrefix(name, "XDS_CLIENT_")
	})
	noEffect(r, idle, "with CONFIG_TYPE="+c.Rules.Type)
	if isXDS && c.Rules.ForceStart && !c.Process.HealthyWithConfig {
		r.Warn("FORCE_START_WITHOUT_INITIAL_CONFIG=true without HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true: until " +
			"the first rules the daemon is healthy and every decision is UNAVAILABLE")
	}
	if isXDS {
		c.checkXDS(r)
	}
}

func (c *Config) checkXDS(r *settings.Report) {
	x := c.XDS
	if strings.HasPrefix(x.Client.Target, "http://") || strings.HasPrefix(x.Client.Target, "https://") {
		r.Wrong("CONFIG_GRPC_XDS_SERVER_URL",
			"a gRPC target is host:port without http; CONFIG_GRPC_XDS_SERVER_USE_TLS=true turns TLS on")
	}
	if _, dropped := pairs(x.NodeMetadata); len(dropped) > 0 {
		r.Warn("CONFIG_GRPC_XDS_NODE_METADATA: %q is no key=value and is left out", dropped)
	}
	const headers = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS" // a secret: errors show neither names nor values
	seen := map[string]bool{}
	for i, item := range settings.List(r.Text(headers)) {
		name, value, _ := strings.Cut(item, ":")
		switch name = strings.ToLower(strings.TrimSpace(name)); {
		case x.Headers == nil: // not a list of name:value, which is reported already
		case seen[name]:
			r.Wrong(headers, "item %d: its name is given twice", i+1)
		case !isMetadataName(name):
			r.Wrong(headers, "item %d: its name is no name for a header of gRPC: letters, digits, -, _ and . are, "+
				"unless they begin with grpc-", i+1)
		case !strings.HasSuffix(name, "-bin") &&
			strings.ContainsFunc(strings.TrimSpace(value), func(c rune) bool { return c < ' ' || c > '~' }):
			r.Wrong(headers, "item %d: its value holds what no header may: anything but printable ASCII", i+1)
		}
		seen[name] = true
	}
	if x.RandomFactor > 1 {
		r.Warn("XDS_CLIENT_BACKOFF_RANDOM_FACTOR=%v counts as 1: it is the share of a pause that jitter adds or takes",
			x.RandomFactor)
	}
	for _, pause := range []struct {
		name string
		d    time.Duration
	}{{"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", x.Client.DialRetry},
		{"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", x.Client.StreamRetry}} {
		if pause.d > x.Client.MaxRetry {
			r.Warn("%s=%s is longer than XDS_CLIENT_BACKOFF_MAX_INTERVAL=%s, which counts instead",
				pause.name, pause.d, x.Client.MaxRetry)
		}
	}
	if x.TLS {
		checkFiles(r, x.Files(), "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
			"CONFIG_GRPC_XDS_SERVER_TLS_CACERT")
		return
	}
	noEffect(r, []string{"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "CONFIG_GRPC_XDS_SERVER_TLS_SAN"},
		"without CONFIG_GRPC_XDS_SERVER_USE_TLS=true")
}

// isMetadataName reports whether gRPC allows a program to send a header with this name.
func isMetadataName(s string) bool {
	return s != "" && !strings.HasPrefix(s, "grpc-") && !strings.ContainsFunc(s, func(c rune) bool {
		return !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.')
	})
}

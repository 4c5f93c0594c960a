package main

import (
	"strings"

	"gatehouse/shared/settings"
)

// laterConfig switches on what this version does not have. Each is refused when true, so that
// nobody runs without a protection that the environment asks for.
type laterConfig struct {
	// Refused when true: TLS to the store is not in this version.
	KVStoreTLS bool `env:"KVSTORE_TLS" envDefault:"false"`
	// Refused when true, like KVSTORE_TLS.
	PerSecondTLS bool `env:"KVSTORE_PERSECOND_TLS" envDefault:"false"`
	// Refused when true: a second store for limits per second is not in this version.
	PerSecond bool `env:"KVSTORE_PERSECOND" envDefault:"false"`
}

// refuse says which settings ask for what is not there.
func (c *config) refuse(r *settings.Report) {
	f := func(name string, on bool, what string) {
		if on {
			r.Wrong(name, "%s not in this version", what)
		}
	}
	f("KVSTORE_TLS", c.Later.KVStoreTLS, "TLS to the store is")
	f("KVSTORE_PERSECOND_TLS", c.Later.PerSecondTLS, "TLS to the store is")
	f("KVSTORE_PERSECOND", c.Later.PerSecond, "a second store for limits per second is")

	for _, name := range r.Names() {
		if isLater(name) {
			r.Warn("%s has no effect: what it configures is not in this version", name)
		}
	}
}

// laterNames are variables of the features above; they are ours, and have no effect alone.
var laterNames = []string{
	"KVSTORE_TLS_CLIENT_CERT", "KVSTORE_TLS_CLIENT_KEY", "KVSTORE_TLS_CACERT", "KVSTORE_TLS_SKIP_HOSTNAME_VERIFICATION",
}

func isLater(name string) bool {
	for _, n := range laterNames {
		if prefix, open := strings.CutSuffix(n, "*"); n == name || open && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

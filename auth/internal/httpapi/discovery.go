package httpapi

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"gatehouse/auth/internal/jsontext"
	"gatehouse/auth/internal/token"
)

// discovery is the answer to GET /.well-known/openid-configuration. It is made once for each set of keys.
type discovery struct {
	keys *token.Set
	body []byte
	etag string
}

// discoveryOf makes the document, which is for services that verify tokens. It lists no OAuth endpoints, since there
// are none. While a shared secret signs, it does not list the algorithms of keys that signed before.
func discoveryOf(keys *token.Set, externalURL string) *discovery {
	b := jsontext.AppendString([]byte(`{"issuer":`), keys.Issuer())
	b = jsontext.AppendString(append(b, `,"jwks_uri":`...), externalURL+"/.well-known/jwks.json")
	signer := keys.Signer()
	algorithms := []string{signer.Algorithm().String()}
	for _, e := range keys.Entries() {
		name := e.Key.Algorithm().String()
		if e.State != token.Revoked && !signer.Symmetric() && !e.Key.Symmetric() && !slices.Contains(algorithms, name) {
			algorithms = append(algorithms, name)
		}
	}
	b = append(b, `,"id_token_signing_alg_values_supported":`...)
	b = append(jsontext.AppendStrings(b, algorithms), `,"subject_types_supported":["public"]}`...)
	sum := sha256.Sum256(b)
	return &discovery{keys: keys, body: b, etag: fmt.Sprintf(`"%x"`, sum[:8])}
}

// getDiscovery answers with the discovery document, by which libraries that know only an issuer find its keys. The
// answer may be cached for as long as the keys.
func (s *Server) getDiscovery(c *call) error {
	keys := s.core.Keys.Load()
	d := c.live.discovery.Load()
	if d == nil || d.keys != keys {
		d = discoveryOf(keys, c.live.flows.BaseURL)
		c.live.discovery.Store(d)
	}
	return c.cached(d.etag, d.body)
}

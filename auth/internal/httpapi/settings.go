package httpapi

import (
	"net/http"
	"slices"
	"strconv"

	"gatehouse/auth/internal/jsontext"
	"gatehouse/auth/internal/provider"
)

// settingsBody returns the answer of GET /settings. It is made once for each version of the settings.
func (l *liveSettings) settingsBody() []byte {
	s := l.flows
	b := []byte(`{"external":{`)
	flag := func(key string, v bool) {
		b = append(strconv.AppendBool(append(jsontext.AppendString(b, key), ':'), v), ',')
	}
	providers := provider.Names() // built-in providers are listed as false while they are off
	for _, p := range providers {
		flag(p, slices.Contains(l.External, p))
	}
	for _, p := range l.External { // custom providers of the operator are listed while they are on
		if !slices.Contains(providers, p) {
			flag(p, true)
		}
	}
	flag("email", s.Email.Enabled)
	flag("phone", s.Phone.Enabled)
	flag("anonymous_users", s.Anonymous)
	b = append(b[:len(b)-1], "},"...)
	flag("disable_signup", s.DisableSignup)
	flag("autoconfirm", s.Email.Autoconfirm)
	flag("mailer_autoconfirm", s.Email.Autoconfirm)
	flag("phone_autoconfirm", s.Phone.Autoconfirm)
	b = append(jsontext.AppendString(append(b, `"sms_provider":`...), l.SMSProvider), ',')
	flag("saml_enabled", false)
	flag("saml_private_key_next_configured", false)
	flag("passkeys_enabled", s.Passkeys.Enabled)
	b[len(b)-1] = '}'
	return b
}

// getSettings answers with the public part of the settings.
func (s *Server) getSettings(c *call) error { return c.json(200, c.live.settings) }

var jwksCache = []string{"public, max-age=600"}

// getJWKS publishes the keys. The schedule of key rotation relies on the ten minutes for which the answer may be cached
// (token.PublishAhead).
func (s *Server) getJWKS(c *call) error {
	set := s.core.Keys.Load()
	return c.cached(set.ETag(), set.JWKS())
}

// cached answers with a document about the keys, which clients may cache.
func (c *call) cached(etag string, body []byte) error {
	h := c.Header()
	h["Cache-Control"] = jwksCache
	h["Etag"] = []string{etag}
	if c.r.Header.Get("If-None-Match") == etag {
		c.WriteHeader(http.StatusNotModified)
		return nil
	}
	return c.json(200, body)
}

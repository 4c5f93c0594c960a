package daemon

import (
	"io"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/config"
	"gatehouse/auth/internal/httpapi"
	"gatehouse/auth/internal/keys"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/redirect"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/must"
)

// A set of providers that is refused leaves the keys as they were, and keys that cannot be had leave the providers.
func TestApply_allOrNothing(t *testing.T) {
	given := func() keys.Settings {
		key, err := token.Generate(token.EdDSA)
		must.Succeed(t, err)
		return keys.Settings{Given: []token.Entry{{Key: key, State: token.Current}}, AccessLife: time.Hour}
	}
	redirects, err := redirect.New("http://localhost:3000", nil, false)
	must.Succeed(t, err)
	api := httpapi.Settings{Redirects: redirects}
	accounts := flow.Settings{SiteURL: "http://localhost:3000", BaseURL: "http://localhost:8081"}
	d := &daemon{log: NewLogger(io.Discard, config.Log{Level: "info", Format: "json"}),
		keeper: keys.New(keys.Options{}, given())}
	must.Succeed(t, d.keeper.Start(t.Context()))
	before := d.keeper.Live().Load()
	unsound := provider.Settings{OIDC: map[string]provider.Client{"corp": {Enabled: true}}} // no issuer
	l := config.Live{Keys: given(), API: api, Accounts: accounts, External: unsound}
	if err := d.apply(t.Context(), &config.Config{}, l); err == nil {
		t.Error("a provider without issuer was taken")
	}
	if d.keeper.Live().Load() != before {
		t.Error("the keys changed though the providers were refused")
	}
	none := keys.Settings{Given: []token.Entry{{Key: token.RevokedKey("x"), State: token.Revoked}}} // nothing signs
	if err := d.apply(t.Context(), &config.Config{}, config.Live{Keys: none, API: api, Accounts: accounts}); err == nil {
		t.Error("keys of which none signs were taken")
	}
	if d.keeper.Live().Load() != before || d.providers.Load() != nil {
		t.Error("something changed though the keys were refused")
	}
}

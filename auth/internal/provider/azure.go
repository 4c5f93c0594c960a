package provider

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"

	"gatehouse/auth/internal/token"
)

// Azure's base URL decides whose accounts may sign in. It is common, organizations, consumers or one tenant below
// login.microsoftonline.com, a tenant of a customer-identity host, or any other URL of the operator.
const (
	azureHost      = "https://login.microsoftonline.com/"
	azureOldHost   = "https://sts.windows.net/" // of tokens in version 1.0
	azureConsumers = "9188040d-6c67-4c5b-b112-36a304b66dad"
)

const tenantID = `[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`

var (
	azureTenant   = lazily(`^` + tenantID + `$`)
	azureIssuer   = lazily(`^https://login\.microsoftonline\.com/` + tenantID + `/v2\.0/?$`)
	azureOld      = lazily(`^https://sts\.windows\.net/` + tenantID + `/$`)
	azureCIAMBase = lazily(`^https://[a-z0-9-]+\.ciamlogin\.com/[^/]+$`)
	azureCIAM     = lazily(`^https://[a-z0-9-]+\.ciamlogin\.com/[^/]+/v2\.0/?$`)
)

// lazily compiles an expression when it is first needed: most starts need none, and counted repetitions ({8}) compile
// to large programs.
func lazily(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// azureTrust is the one issuer of a base that names one; no issuer at all where every tenant is welcome.
func azureTrust(p *Provider) trust {
	tenant, microsoft := strings.CutPrefix(p.base, azureHost)
	switch {
	case microsoft && tenant == "consumers":
		return trust{issuer: azureHost + azureConsumers + "/v2.0"}
	case microsoft && (tenant == "common" || tenant == "organizations"):
		return trust{}
	case microsoft && !azureTenant().MatchString(tenant):
		return trust{issuer: p.base + "/v2.0", learn: azureIssuer}
	case azureCIAMBase().MatchString(p.base):
		return trust{issuer: p.base + "/v2.0", learn: azureCIAM}
	}
	return trust{issuer: p.base + "/v2.0"}
}

// azureTrusts is the trust in the issuer that a token names, if it may be named at all. Native tokens may
// also be of version 1.0, where the tenant is known by its id.
func azureTrusts(p *Provider, iss string, native bool) (trust, error) {
	one := p.trust()
	switch {
	case iss == "":
	case one.issuer == "" && (azureIssuer().MatchString(iss) || native && azureOld().MatchString(iss)):
		return trust{issuer: iss}, nil
	case one.issuer == "":
	case one.accepts(iss) || one.learn != nil && one.learn().MatchString(iss):
		return one, nil // verified decides whether it is what the document says
	case native && strings.HasPrefix(one.issuer, azureHost) && azureOld().MatchString(iss) &&
		strings.TrimPrefix(one.issuer, azureHost) == strings.TrimPrefix(iss, azureOldHost)+"v2.0":
		return trust{issuer: iss}, nil
	}
	return trust{}, errIssuerNotAllowed
}

var errIssuerNotAllowed = errors.New("the ID token is of an issuer that is not configured")

func azureProfile(ctx context.Context, s *signIn) (Profile, error) {
	text := s.idToken()
	if text == "" {
		return s.idProfile(ctx, trust{}) // says so
	}
	unverified, err := token.ParseForeign(text)
	if err != nil {
		return Profile{}, err
	}
	t, err := azureTrusts(s.Provider, unverified.Issuer, false)
	if err != nil {
		return Profile{}, err
	}
	return s.idProfile(ctx, t)
}

var azureNoClaims = strings.Fields(
	"aud iss iat nbf exp c_hash at_hash aio nonce rh uti jti ver sub name preferred_username")

func azureClaims(p *Provider, t *idToken, d *Profile) {
	d.set("full_name", t.claims.lookup("name"))
	d.set("preferred_username", t.claims.lookup("preferred_username"))
	for name, value := range t.claims {
		if !slices.Contains(azureNoClaims, name) {
			d.setCustom(name, value)
		}
	}
	email := t.claims.textAt("email")
	d.addEmail(email, azureProven(p, t, email), true)
}

// azureProven: a tenant's administrator can write any address into an account, so only what Microsoft vouches for
// counts: xms_edov, or the address among those of the tenant's verified domains. The operator of one tenant may list
// domains known to belong to it.
func azureProven(p *Provider, t *idToken, email string) bool {
	if v := t.claims.lookup("xms_edov"); v != nil {
		return v == true || v == "1" || v == "true"
	}
	for _, claim := range []string{"verified_primary_email", "verified_secondary_email"} {
		list, _ := t.claims.lookup(claim).([]any)
		for _, v := range list {
			if s, ok := v.(string); ok && s != "" && strings.EqualFold(s, email) {
				return true
			}
		}
	}
	_, domain, _ := strings.Cut(email, "@")
	return p.trust().issuer != "" &&
		slices.ContainsFunc(p.domains, func(d string) bool { return strings.EqualFold(d, domain) })
}
